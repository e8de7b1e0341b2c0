"""What the exactness matrix is made of: features, prompts, and what plain decoding says to them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.verifier.engine import GenerationRequest
from tests.engine.conftest import EngineHost, prompt, speculation, start_engine, tiny_target
from tests.engine.views import view_all
from tests.fakes import Oracle, oracle_of
from tests.tiny import add_tokenizer, make_tiny_llama

EOS = 162
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


@contextlib.contextmanager
def running_matrix(folder: Path, run_folder: Path, name: str, **changes: Any) -> Iterator[Matrix]:
    """Starts both engines; ``changes`` of the drafted one's ``SpeculationConfig``."""
    # A token that greedy decoding produces within the first twenty of some of the prompts.
    make_tiny_llama(folder, eos_token_id=EOS)
    add_tokenizer(folder)
    target = tiny_target(folder, engine_args={"skip_tokenizer_init": False, "block_size": BLOCK})
    with contextlib.ExitStack() as stack:
        plain = start_engine(target, None, run_folder, f"{name}-plain")
        stack.callback(plain.close)
        spec = speculation(run_folder, name, MAX_K, **{"patience_ms": 50, **changes})
        drafted = start_engine(target, spec, run_folder, name)
        stack.callback(drafted.close)
        yield Matrix(plain, drafted)
