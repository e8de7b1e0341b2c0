"""Tests; a package so that fakes are imported as tests.fakes."""
