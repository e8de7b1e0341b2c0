"""The exactness matrix: every feature × every scripted drafter × K × concurrency, float32, greedy.

Each cell compares all that a client can see (ids, text, log probabilities, reasons, usage, what a
stream showed on the way) with plain vLLM. How often drafts were used is not asserted here: where
the clock has a say, only the output may be relied on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import InputError
from paceline.verifier.engine import GenerationRequest
from tests.engine.conftest import EngineHost, prompt, speculation, start_engine, tiny_target
from tests.engine.scripts import SCRIPTS
from tests.engine.views import check_same, in_kinds, view_all
from tests.fakes import FakeDrafter, Oracle, oracle_of
from tests.tiny import add_tokenizer, make_tiny_llama

pytestmark = pytest.mark.slow
BLOCK = 32
PROMPTS = [(101, 7), (102, 23), (103, BLOCK + 1), (104, 70)]
"""Number and length. Of the third all but one token comes from the prefix cache, in the end."""
NUM_TOKENS = 24
MAX_K = 8


class Matrix:
    """The engines and what plain decoding says, computed once."""

    def __init__(self, plain: EngineHost, drafted: EngineHost) -> None:
        self.plain = plain
        self.drafted = drafted
        self._expected: dict[str, list[Any]] = {}
        base = view_all(plain, [prompt(*p, NUM_TOKENS, detokenize=True) for p in PROMPTS], 4)
        self.base = [view["completions"][0] for view in base]

    def requests(self, feature: str) -> list[GenerationRequest]:
        return [self._request(feature, number) for number in range(len(PROMPTS))]

    def _request(self, feature: str, number: int) -> GenerationRequest:
        name, length = PROMPTS[number]
        tokens, text = self.base[number]["token_ids"], self.base[number]["text"]
        sampling = {"max_tokens": NUM_TOKENS, "detokenize": True, **FEATURES[feature](tokens, text)}
        if "lengths" in sampling:
            length = sampling.pop("lengths")[number]
        if "max_tokens_by_prompt" in sampling:
            sampling["max_tokens"] = sampling.pop("max_tokens_by_prompt")[number]
        return prompt(name, length, **sampling)

    def expected(self, feature: str) -> list[Any]:
        if feature not in self._expected:
            for host in (self.plain, self.drafted):
                # Both know all prompts, so that as much of each comes from the prefix cache.
                view_all(host, self.requests(feature), 4)
            self._expected[feature] = view_all(self.plain, self.requests(feature), 4)
        return self._expected[feature]

    def oracle(self, feature: str) -> Oracle:
        """Knows what plain decoding gives under this very feature."""
        return oracle_of(
            (request.prompt_token_ids or []) + completion["token_ids"] + [0] * MAX_K
            for request, view in zip(self.requests(feature), self.expected(feature), strict=True)
            for completion in view.get("completions", ())
        )


REGEX = r"[a-c]{3}(,[0-9]{2}){4}"
CHOICES = ["positive", "negative", "neither of them"]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"side": {"enum": ["left", "right"]}, "open": {"type": "boolean"}},
    "required": ["side", "open"],
    "additionalProperties": False,
}
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
    "regex": lambda tokens, text: {
        "structured_outputs": {"regex": REGEX},
        "ignore_eos": False,
    },
    # Goes on, without the grammar, behind the grammar's end.
    "choice": lambda tokens, text: {"structured_outputs": {"choice": CHOICES}},
    "JSON schema": lambda tokens, text: {
        "structured_outputs": {"json": SCHEMA},
        "ignore_eos": False,
        "max_tokens": 60,
    },
    "prompts at the limit": lambda tokens, text: {"lengths": [255, 256, 254, 257]},
    "max_tokens at the limit": lambda tokens, text: {"lengths": [232, 231, 233, 230]},
    "n 2, top_k 1": lambda tokens, text: {"n": 2, "temperature": 1.0, "top_k": 1},
    "n 2, seeded": lambda tokens, text: {"n": 2, "temperature": 1.0, "seed": 5},
}
"""Sampling of each feature, from plain greedy decoding's tokens and text."""


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory, run_folder: Path) -> Iterator[Matrix]:
    folder = tmp_path_factory.mktemp("tiny-with-tokenizer")
    # A token that greedy decoding produces within the first twenty of some of the prompts.
    make_tiny_llama(folder, eos_token_id=EOS)
    add_tokenizer(folder)
    target = tiny_target(folder, engine_args={"skip_tokenizer_init": False, "block_size": BLOCK})
    plain = start_engine(target, None, run_folder, "matrix-plain")
    try:
        spec = speculation(run_folder, "matrix", MAX_K, patience_ms=50)
        drafted = start_engine(target, spec, run_folder, "matrix")
        try:
            yield Matrix(plain, drafted)
        finally:
            drafted.close()
    finally:
        plain.close()


EOS = 162


def ids(view: dict[str, Any]) -> list[list[int]]:
    return [completion["token_ids"] for completion in view.get("completions", ())]


def test_the_features_do_what_their_names_say(matrix: Matrix) -> None:
    """A matrix whose features never bite would pass whatever the engine does."""
    greedy = [ids(view) for view in matrix.expected("greedy")]
    assert greedy == [[completion["token_ids"]] for completion in matrix.base]
    for feature in FEATURES:
        views = matrix.expected(feature)
        if feature in (
            "greedy",
            "logprobs",
            "prompt logprobs",
            "top_k 1 at temperature 1",
            "min_p",
        ):
            assert [ids(view) for view in views] == greedy, feature
        else:
            assert [ids(view) for view in views] != greedy, feature
    for feature in ("EOS inside a block", "regex", "JSON schema"):
        for view in matrix.expected(feature):
            assert view["completions"][0]["finish_reason"] == "stop", feature
    assert any(view["usage"]["cached_tokens"] for view in matrix.expected("greedy"))
    for view in matrix.expected("regex"):
        assert re.fullmatch(REGEX, view["completions"][0]["text"])
    for view in matrix.expected("choice"):
        assert view["completions"][0]["text"].startswith(tuple(CHOICES))
    for view in matrix.expected("JSON schema"):
        assert json.loads(view["completions"][0]["text"]).keys() == SCHEMA["properties"].keys()
    for view in matrix.expected("max_tokens at the limit"):
        assert view["usage"]["prompt_tokens"] + view["usage"]["completion_tokens"] > 253
    lengths = [len(*ids(view)) for view in matrix.expected("prompts at the limit") if ids(view)]
    assert lengths == [1, 2]


def test_n_2_is_refused_for_greedy_requests(matrix: Matrix) -> None:
    asked = [prompt(*PROMPTS[0], NUM_TOKENS, n=2)]
    expected = view_all(matrix.plain, asked, 1)
    assert "n must be 1" in expected[0]["refused"]
    assert view_all(matrix.drafted, asked, 1) == expected


@pytest.mark.parametrize("feature", [name for name in FEATURES if not name.startswith("n 2")])
def test_a_result_says_what_its_stream_said(matrix: Matrix, feature: str) -> None:
    with FakeDrafter(matrix.drafted.control, SCRIPTS["accepts"](matrix.oracle(feature), 5), k=5):
        for request, expected in zip(
            matrix.requests(feature), matrix.expected(feature), strict=True
        ):
            if "refused" in expected:
                with pytest.raises(InputError, match=re.escape(expected["refused"])):
                    matrix.drafted.generate([request], 1)
                continue
            result = matrix.drafted.generate([request], 1)[0]
            completion, usage = expected["completions"][0], expected["usage"]
            for name in ("token_ids", "text", "finish_reason"):
                assert result[name] == completion[name], name
            assert result["usage"] == {
                "prompt_tokens": usage["prompt_tokens"],
                "completion_tokens": usage["completion_tokens"],
                "total_tokens": usage["prompt_tokens"] + usage["completion_tokens"],
            }
            assert len(result["top_two_gaps"]) == len(completion["logprobs"] or ())


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
            # Each prompt's output comes in another kind at each concurrency, and at each K.
            requests = in_kinds(matrix.requests(feature), k + concurrency // 4)
            views = view_all(matrix.drafted, requests, concurrency)
            for view, expected in zip(views, matrix.expected(feature), strict=True):
                check_same(view, expected)
