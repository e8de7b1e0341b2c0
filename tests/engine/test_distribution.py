"""At a temperature above 0 the emitted law is the target's, whatever the drafter proposes.

The vocabulary has 16 tokens, so the law of three tokens is computed exactly from the model. The
distance of N samples from it is compared with what N samples of the exact law itself would show
(mean and standard deviation of that distance, from simulated draws): the noise floor.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.messages import Branch, Proposed
from paceline.verifier.engine import GenerationRequest
from tests.engine.conftest import EngineHost, speculation, start_engine, tiny_target
from tests.fakes import FakeDrafter, Script, branch, proposed
from tests.tiny import make_tiny_llama

pytestmark = pytest.mark.slow
VOCAB = 16
K = 2
NUM_SAMPLES = 3000
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
SAMPLINGS: dict[str, dict[str, Any]] = {
    "temperature 1": {"temperature": 1.0},
    "temperature 0.7": {"temperature": 0.7},
    "top_k 4": {"temperature": 1.0, "top_k": 4},
    "top_p 0.8": {"temperature": 0.7, "top_p": 0.8},
}


class Law:
    """The target's exact law of the first three tokens, [VOCAB, VOCAB, VOCAB]."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import LlamaForCausalLM

        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        contexts = [[*PROMPT, first, second] for first in range(VOCAB) for second in range(VOCAB)]
        with torch.inference_mode():
            logits = model(torch.tensor(contexts)).logits[:, -3:].double().numpy()
        grid = logits.reshape(VOCAB, VOCAB, 3, VOCAB)
        self.first = grid[0, 0, 0]  # [VOCAB]
        self.second = grid[:, 0, 1]  # [VOCAB, VOCAB]
        self.third = grid[:, :, 2]  # [VOCAB, VOCAB, VOCAB]

    def joint(self, sampling: dict[str, Any]) -> Any:
        law = np.array(
            [probabilities(row, sampling) for row in (self.first, *self.second)]
        )  # [1 + VOCAB, VOCAB]
        third = np.apply_along_axis(probabilities, 2, self.third, sampling)
        joint: np.ndarray = np.asarray(law[0][:, None, None] * law[1:, :, None] * third)
        return joint

    def likeliest(self, tokens: list[int], k: int) -> list[int]:
        """Greedy continuation behind the first token."""
        first = tokens[len(PROMPT)]
        second = tokens[len(PROMPT) + 1 : len(PROMPT) + 2] or [int(self.second[first].argmax())]
        chain = [int(self.second[first].argmax()), int(self.third[first, second[0]].argmax())]
        return chain[len(tokens) - len(PROMPT) - 1 :][:k]


def probabilities(logits: np.ndarray, sampling: dict[str, Any]) -> np.ndarray:
    """Temperature, then top-k, then top-p, as vLLM applies them."""
    scaled = logits / sampling["temperature"]
    if "top_k" in sampling:
        scaled = np.where(scaled >= np.sort(scaled)[-sampling["top_k"]], scaled, -np.inf)
    law: np.ndarray = np.exp(scaled - scaled.max())
    law /= law.sum()
    if "top_p" in sampling:
        order = np.argsort(law)[::-1]
        before = np.cumsum(law[order]) - law[order]
        law[order[before >= sampling["top_p"]]] = 0
        law /= law.sum()
    return law


def scripts(law: Law) -> dict[str, Script]:
    def likeliest(handle: int, tokens: list[int]) -> Iterable[Proposed]:
        return [proposed(handle, tokens, law.likeliest(tokens, K))]

    def unlikeliest(handle: int, tokens: list[int]) -> Iterable[Proposed]:
        first = tokens[len(PROMPT)]
        return [proposed(handle, tokens, [int(law.second[first].argmin())] * K)]

    generator = random.Random(0)

    def sampling(handle: int, tokens: list[int]) -> Iterable[Proposed]:
        return [proposed(handle, tokens, [generator.randrange(VOCAB) for _ in range(K)])]

    held: dict[int, Proposed] = {}

    def late(handle: int, tokens: list[int]) -> Iterable[Proposed]:
        before = held.get(handle)
        held[handle] = proposed(handle, tokens, law.likeliest(tokens, K))
        # Says that it has nothing now, so that nobody waits; then what it had before.
        return [p for p in (before, proposed(handle, tokens, [])) if p is not None]

    def branching(handle: int, tokens: list[int]) -> Iterable[Proposed | Branch]:
        """The likeliest drafts, and such behind every outcome of the pass that is at hand."""
        return with_branches(handle, tokens, law.likeliest)

    def sampling_branches(handle: int, tokens: list[int]) -> Iterable[Proposed | Branch]:
        """The same with drafts by chance: a target that does not wait for them has some in time."""
        return with_branches(
            handle, tokens, lambda _, k: [generator.randrange(VOCAB) for _ in range(k)]
        )

    return {
        "likeliest": likeliest,
        "wrong": unlikeliest,
        "sampling": sampling,
        "late": late,
        "branching": branching,
        "sampling branches": sampling_branches,
    }


def with_branches(
    handle: int, tokens: list[int], draft: Callable[[list[int], int], list[int]]
) -> Iterable[Proposed | Branch]:
    drafts = draft(tokens, K)
    yield proposed(handle, tokens, drafts)
    for path in outcomes(drafts, VOCAB):
        if len(tokens) + len(path) < len(PROMPT) + 3:
            yield branch(handle, tokens, path, draft([*tokens, *path], K))


def outcomes(drafts: list[int], vocab_size: int) -> Iterable[list[int]]:
    """Every outcome of a pass: some drafts accepted, and a bonus token behind them."""
    for num_accepted in range(len(drafts) + 1):
        for bonus in range(vocab_size):
            yield [*drafts[:num_accepted], bonus]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A smaller spread than the other tests': a law with more than one likely token.
    return make_tiny_llama(tmp_path_factory.mktemp("law"), vocab_size=VOCAB, spread=0.12)


@pytest.fixture(scope="module")
def engine(folder: Path, run_folder: Path, request: pytest.FixtureRequest) -> Iterator[EngineHost]:
    target = tiny_target(folder, max_num_seqs=64)
    spec = speculation(run_folder, f"law-{request.param}", K, mode=request.param)
    host = start_engine(target, spec, run_folder, f"law-{request.param}")
    yield host
    host.close()


@pytest.fixture(scope="module")
def law(folder: Path) -> Law:
    return Law(folder)


def noise_floor(law: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of the distance between N samples of ``law`` and ``law``."""
    generator = np.random.default_rng(0)
    draws = generator.multinomial(NUM_SAMPLES, law.ravel(), size=200) / NUM_SAMPLES
    distances = np.abs(draws - law.ravel()).sum(axis=1) / 2
    return float(distances.mean()), float(distances.std())


CASES = [
    pytest.param(
        mode,
        behaviour,
        name,
        # Whatever the way of the drafts, the same sampler takes them: some of all pairs will do.
        marks=[] if behaviour == "likeliest" or place % 4 == 1 else [pytest.mark.full],
        id=f"{mode}-{behaviour}-{name}",
    )
    for mode, behaviours in {
        "lockstep": ("likeliest", "wrong", "sampling", "late"),
        "pipelined": ("branching", "sampling branches"),
    }.items()
    for number, behaviour in enumerate(behaviours)
    for place, name in enumerate(SAMPLINGS, start=number)
]


@pytest.mark.parametrize(("engine", "behaviour", "name"), CASES, indirect=["engine"])
def test_the_emitted_law_is_the_target_s(
    engine: EngineHost, law: Law, name: str, behaviour: str
) -> None:
    sampling = SAMPLINGS[name]
    make: Callable[[int], GenerationRequest] = lambda number: GenerationRequest(  # noqa: E731
        request_id=f"{name}-{behaviour}-{number}",
        prompt_token_ids=PROMPT,
        sampling={**sampling, "max_tokens": 4, "ignore_eos": True, "detokenize": False},
    )
    with FakeDrafter(engine.control, scripts(law)[behaviour], k=K):
        results = engine.generate([make(n) for n in range(NUM_SAMPLES)], concurrency=64)
    proposals = sum(r["speculation"]["proposed"] for r in results)
    accepted = sum(r["speculation"]["accepted"] for r in results)
    assert proposals > NUM_SAMPLES / 10
    if behaviour in ("likeliest", "branching"):
        assert accepted > proposals / 10
    if behaviour in ("branching", "sampling branches"):
        # At their first pass's end, unless that was undrafted or took more than K + 1 tokens.
        assert sum(r["speculation"]["hits"] for r in results) > NUM_SAMPLES / 10
    counts = Counter(tuple(r["token_ids"][:3]) for r in results)
    observed = np.zeros((VOCAB, VOCAB, VOCAB))
    for tokens, count in counts.items():
        observed[tokens] = count / NUM_SAMPLES
    exact = law.joint(sampling)
    for axis in range(3):  # each pair of tokens, the third summed over
        ours, theirs = observed.sum(axis=axis), exact.sum(axis=axis)
        mean, deviation = noise_floor(theirs)
        distance = float(np.abs(ours - theirs).sum()) / 2
        assert distance < mean + 5 * deviation, (axis, distance, mean, deviation)
