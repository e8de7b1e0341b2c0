"""Suffix decoding by scanning whole texts for every count: slow and obvious."""

from __future__ import annotations

from collections.abc import Sequence


def occurrences(text: Sequence[int], part: Sequence[int]) -> list[int]:
    """Returns where ``part`` begins in ``text``."""
    size = len(part)
    return [i for i in range(len(text) - size + 1) if list(text[i : i + size]) == list(part)]


def favourite(text: Sequence[int], part: Sequence[int]) -> tuple[int, int] | None:
    """Returns the token that most often follows ``part``, the latest of equals, and how often."""
    followers: dict[int, list[int]] = {}
    for start in occurrences(text, part):
        if start + len(part) < len(text):
            followers.setdefault(text[start + len(part)], []).append(start)
    if not followers:
        return None
    token = max(followers, key=lambda token: (len(followers[token]), followers[token][-1]))
    return token, len(followers[token])


def best_path(
    text: Sequence[int],
    ending: Sequence[int],
    *,
    depth: int,
    factor: float,
    min_prob: float,
    num_tokens: int,
    vocab_size: int,
    foreign: bool = False,
) -> tuple[list[int], list[float], float]:
    """Returns draft, confidences and score for what ends with ``ending``, out of ``text``.

    In a ``foreign`` text the occurrence that is to be continued comes on top of those in it.
    """
    best: tuple[list[int], list[float], float] = ([], [], 0.0)
    for length in range(min(depth - 1, len(ending)), 0, -1):
        part = list(ending[-length:])
        tokens: list[int] = []
        confidence: list[float] = []
        probability, score = 1.0, 0.0
        for _ in range(min(num_tokens, int(length * factor), depth - length)):
            following = favourite(text, part + tokens)
            if following is None:
                break
            total = len(occurrences(text, part + tokens)) + (foreign and not tokens)
            probability *= following[1] / total
            if probability < min_prob or following[0] >= vocab_size:
                break
            tokens.append(following[0])
            confidence.append(following[1] / total)
            score += probability
        if score > best[2]:
            best = (tokens, confidence, score)
    return best
