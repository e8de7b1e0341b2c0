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
from tests.engine.conftest import prompt
from tests.engine.matrix import (
    CHOICES,
    FEATURES,
    NUM_TOKENS,
    PROMPTS,
    REGEX,
    SCHEMA,
    Matrix,
    running_matrix,
)
from tests.engine.scripts import SCRIPTS
from tests.engine.views import check_same, in_kinds, view_all
from tests.fakes import FakeDrafter

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory, run_folder: Path) -> Iterator[Matrix]:
    folder = tmp_path_factory.mktemp("tiny-with-tokenizer")
    with running_matrix(folder, run_folder, "matrix") as running:
        yield running


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
