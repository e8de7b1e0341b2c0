"""Paceline: speculative decoding whose draft and target run in different processes."""

__version__ = "0.1.0"
