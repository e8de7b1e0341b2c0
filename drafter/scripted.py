"""A simulated draft: how often it is right, and how long it takes, are set and not measured.

With it the rest of the machinery is measured at an acceptance and a speed of the draft that no
model at hand has. It knows the target's answer beforehand, so it is of no use for serving.

The target's next token has a rank in the draft's ranking, drawn anew at every position:

    P(rank > F) = (1 - accuracy) * F^-1.5        F = 1, 2, 3, …

so that the first choice is right with probability ``accuracy``, and more choices catch the rest by
a power law, which is how the hit rate of a growing fan-out is modelled.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.drafter.config import DrafterConfig
from paceline.drafter.model import Draft, DraftModel, DraftRequest
from paceline.drafter.scripted_answers import AnswerFile
from paceline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class _Script:
    """What is known of one request."""

    key: bytes
    """All draws follow from it and the position."""
    num_prompt_tokens: int
    answer: list[int]
    """Empty: unknown."""

    def next_token(self, tokens: list[int], chain: list[int]) -> int | None:
        """Returns the target's choice behind ``tokens + chain``; None off the answer."""
        num_committed = len(tokens) - self.num_prompt_tokens
        end = num_committed + len(chain)
        if end >= len(self.answer) or self.answer[num_committed:end] != chain:
            return None
        if self.answer[:num_committed] != tokens[self.num_prompt_tokens :]:
            return None
        return self.answer[end]

    def draw(self, purpose: int, position: int) -> int:
        """Returns 64 random bits, always the same."""
        message = struct.pack("<QQ", purpose, position)
        digest = hashlib.blake2b(message, digest_size=8, key=self.key).digest()
        return int.from_bytes(digest, "little")


class ScriptedDrafter(DraftModel):
    """Needs no model. Each forward takes its time in CPU time of this thread, so that it competes
    for a core as a real one does."""

    def __init__(self, config: DrafterConfig, spend: Callable[[float], None] | None = None) -> None:
        """Reads nothing yet.

        Args:
            spend: Takes this many seconds of CPU time; default: a busy loop.

        Raises:
            ConfigError: see ``answers_path``.
        """
        self._answers = AnswerFile(answers_path(config))
        self._accuracy = config.scripted_accuracy
        self._seed = str(config.scripted_seed).encode()
        self._forward_seconds = config.scripted_forward_ms / 1000
        self._spend = _burn if spend is None else spend
        self._scripts: dict[DraftRequest, _Script] = {}

    def open(self, request: DraftRequest) -> None:
        length, answer = self._answers.find(request.tokens) or (len(request.tokens), [])
        prompt = struct.pack(f"<{length}q", *request.tokens[:length])
        key = hashlib.blake2b(prompt, key=self._seed[:64]).digest()
        self._scripts[request] = _Script(key, length, answer)

    def close(self, request: DraftRequest) -> None:
        self._scripts.pop(request, None)

    def is_ready(self, request: DraftRequest) -> bool:
        return True

    def prepare(self, request: DraftRequest) -> None:
        pass

    def draft(
        self, requests: Sequence[DraftRequest], num_tokens: int, vocab_size: int
    ) -> list[Draft]:
        chains: list[list[int]] = [[] for _ in requests]
        for _ in range(num_tokens):
            self._spend(self._forward_seconds)
            for request, chain in zip(requests, chains, strict=True):
                chain.extend(self.ranking(request, chain, 1, vocab_size))
        return [Draft(chain) for chain in chains]

    def ranking(
        self, request: DraftRequest, chain: list[int], num_ranked: int, vocab_size: int
    ) -> list[int]:
        """Returns the draft's choices behind ``request.tokens + chain``, the likeliest first.

        Off the answer, behind a wrong token or for an unknown prompt, they are arbitrary, and
        always the same. Takes no time: who calls it spends that of the forward.

        Returns:
            At most ``num_ranked`` different tokens below ``vocab_size``.
        """
        script = self._scripts[request]
        right = script.next_token(request.tokens, chain)
        position = len(request.tokens) + len(chain) - script.num_prompt_tokens
        start = script.draw(_ARBITRARY, position) % vocab_size
        choices = ((start + offset) % vocab_size for offset in range(vocab_size))
        ranked = list(itertools.islice((c for c in choices if c != right), num_ranked))
        if right is not None and right < vocab_size:
            rank = rank_of(script.draw(_RANK, position), self._accuracy)
            if rank <= num_ranked:
                ranked.insert(rank - 1, right)
        return ranked[:num_ranked]


_RANK, _ARBITRARY = range(2)
"""What is drawn at a position."""


def rank_of(bits: int, accuracy: float) -> int:
    """Returns the rank, counted from 1, that 64 random bits stand for under the module's law."""
    uniform = (bits + 1) / (1 << 64)  # above 0, at most 1
    return 1 + int(((1 - accuracy) / uniform) ** (2 / 3))


def answers_path(config: DrafterConfig) -> str:
    """Returns the file of answers.

    Raises:
        ConfigError: the configuration names none.
    """
    if config.scripted_answers is None:
        raise ConfigError(
            f"drafter {config.name}: method scripted is for paceline bench, which makes the file "
            "of answers itself; elsewhere set scripted_answers to such a file, or use another "
            "method"
        )
    return config.scripted_answers


def _burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
