"""The exactness matrix: every feature × every scripted drafter × K × concurrency, float32, greedy.

Each cell compares all that a client can see (ids, text, log probabilities, reasons, usage, what a
stream showed on the way) with plain vLLM. How often drafts were used is not asserted here: where
the clock has a say, only the output may be relied on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.verifier.engine import GenerationRequest
from tests.engine.conftest import EngineHost, prompt, speculation, start_engine, tiny_target
from tests.engine.scripts import SCRIPTS
from tests.engine.views import check_same, view_all
from tests.fakes import FakeDrafter, Oracle, oracle_of
from tests.tiny import add_tokenizer, make_tiny_llama

pytestmark = pytest.mark.slow
PROMPTS = [(101, 7), (102, 23), (103, 40), (104, 70)]
NUM_TOKENS = 24
MAX_K = 8


class Matrix:
    """The engines and what plain decoding says, computed once."""

    def __init__(self, plain: EngineHost, drafted: EngineHost) -> None:
        self.plain = plain
        self.drafted = drafted
        self._expected: dict[str, list[Any]] = {}
        base = plain.generate([prompt(*p, max_tokens=NUM_TOKENS) for p in PROMPTS], 4)
        self.base = [list(result["token_ids"]) for result in base]
        self.texts = [
            plain.generate([prompt(*p, max_tokens=NUM_TOKENS, detokenize=True)], 1)[0]["text"]
            for p in PROMPTS
        ]

    def requests(self, feature: str) -> list[GenerationRequest]:
        return [self._request(feature, number) for number in range(len(PROMPTS))]

    def _request(self, feature: str, number: int) -> GenerationRequest:
        tokens, text = self.base[number], self.texts[number]
        sampling = {"max_tokens": NUM_TOKENS, "detokenize": True, **FEATURES[feature](tokens, text)}
        if "max_tokens_by_prompt" in sampling:
            sampling["max_tokens"] = sampling.pop("max_tokens_by_prompt")[number]
        return prompt(*PROMPTS[number], **sampling)

    def expected(self, feature: str) -> list[Any]:
        if feature not in self._expected:
            self._expected[feature] = view_all(self.plain, self.requests(feature), 4)
        return self._expected[feature]

    def oracle(self, feature: str) -> Oracle:
        """Knows what plain decoding gives under this very feature."""
        return oracle_of(
            (request.prompt_token_ids or []) + list(view["token_ids"]) + [0] * MAX_K
            for request, view in zip(self.requests(feature), self.expected(feature), strict=True)
        )


FEATURES: dict[str, Any] = {
    "greedy": lambda tokens, text: {},
    "stop string inside a block": lambda tokens, text: {"stop": [text[9]]},
    "stop string over two tokens": lambda tokens, text: {"stop": [text[10:12]]},
    "stop string kept": lambda tokens, text: {
        "stop": [text[10:12]],
        "include_stop_str_in_output": True,
    },
    "stop token inside a block": lambda tokens, text: {"stop_token_ids": [tokens[8]]},
    "min_tokens before the stop": lambda tokens, text: {
        "stop_token_ids": [tokens[5]],
        "min_tokens": 12,
    },
    "min_tokens inside a block": lambda tokens, text: {
        "stop_token_ids": list(range(0, 256, 5)),
        "min_tokens": 9,
    },
    "EOS inside a block": lambda tokens, text: {"ignore_eos": False},
    "EOS before min_tokens": lambda tokens, text: {"ignore_eos": False, "min_tokens": 18},
    "max_tokens 1 to 4": lambda tokens, text: {"max_tokens_by_prompt": [1, 2, 3, 4]},
    "max_tokens 5 to 8": lambda tokens, text: {"max_tokens_by_prompt": [5, 6, 7, 8]},
    "max_tokens 9 to 12": lambda tokens, text: {"max_tokens_by_prompt": [9, 10, 11, 12]},
    "repetition penalty": lambda tokens, text: {"repetition_penalty": 1.3},
    "presence penalty": lambda tokens, text: {"presence_penalty": 1.5},
    "frequency penalty": lambda tokens, text: {"frequency_penalty": 0.7},
    "bad words": lambda tokens, text: {"bad_words": [text[4], text[7:9]]},
    "allowed tokens": lambda tokens, text: {"allowed_token_ids": list(range(0, 256, 3))},
    "logprobs": lambda tokens, text: {"logprobs": 3},
    "prompt logprobs": lambda tokens, text: {"prompt_logprobs": 2, "logprobs": 1},
    "top_k 1 at temperature 1": lambda tokens, text: {"temperature": 1.0, "top_k": 1},
    "seeded sample": lambda tokens, text: {"temperature": 1.0, "seed": 5},
    "min_p": lambda tokens, text: {"temperature": 1.0, "min_p": 1.0},
    "logit bias": lambda tokens, text: {"logit_bias": {tokens[3]: -100.0, 65: 4.0}},
    "grammar": lambda tokens, text: {"structured": r"[a-c]{3}(,[0-9]{2}){4}"},
    "choice": lambda tokens, text: {"choice": ["positive", "negative", "neither of them"]},
}
"""Sampling of each feature, from plain greedy decoding's tokens and text."""


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory, run_folder: Path) -> Iterator[Matrix]:
    folder = tmp_path_factory.mktemp("tiny-with-tokenizer")
    # A token that greedy decoding produces within the first twenty of some of the prompts.
    make_tiny_llama(folder, eos_token_id=EOS)
    add_tokenizer(folder)
    target = tiny_target(folder, engine_args={"skip_tokenizer_init": False})
    plain = start_engine(target, None, run_folder, "matrix-plain")
    try:
        spec = speculation(run_folder, "matrix", MAX_K, patience_ms=100)
        drafted = start_engine(target, spec, run_folder, "matrix")
        try:
            yield Matrix(plain, drafted)
        finally:
            drafted.close()
    finally:
        plain.close()


EOS = 7


def test_the_features_do_what_their_names_say(matrix: Matrix) -> None:
    """A matrix whose features never bite would pass whatever the engine does."""
    greedy = [view["token_ids"] for view in matrix.expected("greedy")]
    assert greedy == matrix.base
    for feature in FEATURES:
        views = matrix.expected(feature)
        if feature in (
            "greedy",
            "logprobs",
            "prompt logprobs",
            "top_k 1 at temperature 1",
            "min_p",
        ):
            assert [view["token_ids"] for view in views] == greedy, feature
        else:
            assert [view["token_ids"] for view in views] != greedy, feature
    assert any(view["finish_reason"] == "stop" for view in matrix.expected("EOS inside a block"))


KS = (1, 2, 3, 5, 8)
CELLS = [
    pytest.param(
        feature,
        behaviour,
        k,
        # One K for each pair, in turn; scripts/test --full runs the others, too (20 minutes).
        marks=[] if (row + column) % len(KS) == index else [pytest.mark.full],
        id=f"{feature}-{behaviour}-K{k}",
    )
    for row, feature in enumerate(FEATURES)
    for column, behaviour in enumerate(SCRIPTS)
    for index, k in enumerate(KS)
]


@pytest.mark.parametrize(("feature", "behaviour", "k"), CELLS)
def test_cell(matrix: Matrix, feature: str, behaviour: str, k: int) -> None:
    script = SCRIPTS[behaviour](matrix.oracle(feature), k)
    with FakeDrafter(matrix.drafted.control, script, k=k):
        for concurrency in (1, 4):
            views = view_all(matrix.drafted, matrix.requests(feature), concurrency)
            for view, expected in zip(views, matrix.expected(feature), strict=True):
                check_same(view, expected)
