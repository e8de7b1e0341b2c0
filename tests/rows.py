"""Rows as they come out of an engine, and what Hugging Face's model says they should be."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from paceline.messages import RowNeeds, Rows, RowTensor

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def tensor_of(described: RowTensor, frame: bytes) -> torch.Tensor:
    """Returns the tensor that ``frame`` holds."""
    return torch.frombuffer(bytearray(frame), dtype=_DTYPES[described.dtype]).view(described.shape)


class Collected:
    """All rows that came, by handle and position. ``take`` is called in the drafter's thread."""

    def __init__(self) -> None:
        self.messages: list[Rows] = []
        self.tokens: dict[int, dict[int, int]] = {}
        self.rows: dict[int, dict[int, list[dict[str, torch.Tensor]]]] = {}
        """A position may come more than once: after a preemption, and from several ranks."""
        self._changed = threading.Condition()

    def take(self, message: Rows, frames: list[bytes]) -> None:
        tensors = {
            described.name: tensor_of(described, frame)
            for described, frame in zip(message.tensors, frames, strict=True)
        }
        with self._changed:
            self.messages.append(message)
            for number, token in enumerate(message.input_ids):
                position = message.first_position + number
                known = self.tokens.setdefault(message.handle, {}).setdefault(position, token)
                assert known == token, "a position came with two tokens"
                self.rows.setdefault(message.handle, {}).setdefault(position, []).append(
                    {name: tensor[number] for name, tensor in tensors.items()}
                )
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> bool:
        """Waits until ``condition`` holds; False: it never did."""
        with self._changed:
            return self._changed.wait_for(condition, timeout=60)


class Reference:
    """Hugging Face's model of the same checkpoint."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        self.num_layers: int = self._model.config.num_hidden_layers

    @torch.inference_mode()
    def states(self, tokens: list[int]) -> dict[str, torch.Tensor]:
        """Returns ``layer.<i>``, the input of layer i, [L, H]; one behind the last layer is its
        output; ``final``; and ``key.<i>``, ``value.<i>``, [L, heads, size]."""
        leaves: list[torch.Tensor] = []
        hook = self._model.model.layers[-1].register_forward_hook(
            lambda module, inputs, output: leaves.append(
                output[0] if isinstance(output, tuple) else output
            )
        )
        result = self._model(torch.tensor([tokens]), output_hidden_states=True, use_cache=True)
        hook.remove()
        states = {f"layer.{i}": result.hidden_states[i][0] for i in range(self.num_layers)}
        states[f"layer.{self.num_layers}"] = leaves[0].reshape(len(tokens), -1)
        states["final"] = result.hidden_states[-1][0]
        for number, layer in enumerate(result.past_key_values.layers):
            states[f"key.{number}"] = layer.keys[0].transpose(0, 1)
            states[f"value.{number}"] = layer.values[0].transpose(0, 1)
        return states


def is_complete(collected: Collected, whole: list[list[int]]) -> bool:
    """Whether as many handles as texts have rows up to the last token but one."""
    ends = sorted(max(rows) + 1 for rows in collected.rows.values())
    return ends == sorted(len(text) - 1 for text in whole)


def text_of(collected: Collected, handle: int, whole: list[list[int]]) -> list[int]:
    """Returns the text that the handle's rows are of."""
    tokens = collected.tokens[handle]
    [text, *_] = [
        text
        for text in sorted(whole, key=len)
        if len(text) > max(tokens) + 1 and all(text[p] == t for p, t in tokens.items())
    ]
    return text


def expected_states(
    reference: Reference, text: list[int], needs: RowNeeds
) -> dict[str, torch.Tensor]:
    """Returns what ``needs`` ask for, of every position of ``text``."""
    states = reference.states(text)
    expected = {}
    if needs.aux_layers:
        expected["aux"] = torch.cat([states[f"layer.{n}"] for n in needs.aux_layers], dim=1)
    if needs.final:
        expected["final"] = states["final"]
    for layer in needs.kv_layers:
        expected |= {name: states[name] for name in (f"key.{layer}", f"value.{layer}")}
    return expected


def compare(
    collected: Collected,
    whole: list[list[int]],
    reference: Reference,
    needs: RowNeeds,
    tolerance: float,
) -> None:
    """Compares every row with the model's, and asks that none is missing behind the first."""
    worst = 0.0
    for handle, rows in collected.rows.items():
        text = text_of(collected, handle, whole)
        assert sorted(rows) == list(range(min(rows), len(text) - 1)), "rows are missing"
        expected = expected_states(reference, text, needs)
        for position, there in rows.items():
            for row in there:
                assert row.keys() == expected.keys()
                for name, tensor in row.items():
                    want = expected[name][position]
                    error = (tensor - want).abs().max() / want.abs().max().clamp(min=1)
                    worst = max(worst, float(error))
    print(f"{sum(map(len, collected.rows.values()))} rows, worst error {worst:.1e}")
    assert worst <= tolerance, worst


def distances(
    collected: Collected, whole: list[list[int]], reference: Reference, needs: RowNeeds
) -> dict[str, float]:
    """Returns by tensor the root of the mean square error, relative to the values themselves."""
    errors: dict[str, float] = {}
    squares: dict[str, float] = {}
    for handle, rows in collected.rows.items():
        text = text_of(collected, handle, whole)
        assert sorted(rows) == list(range(min(rows), len(text) - 1)), "rows are missing"
        expected = expected_states(reference, text, needs)
        for position, there in rows.items():
            for row in there:
                assert row.keys() == expected.keys()
                for name, tensor in row.items():
                    want = expected[name][position]
                    error = float((tensor.float() - want).square().sum())
                    errors[name] = errors.get(name, 0.0) + error
                    squares[name] = squares.get(name, 0.0) + float(want.square().sum())
    return {name: (errors[name] / squares[name]) ** 0.5 for name in errors}


def from_model(
    collected: Collected, whole: list[list[int]], model: Reference, needs: RowNeeds
) -> Collected:
    """Returns the same rows as ``model`` computes them."""
    made = Collected()
    made.tokens = collected.tokens
    for handle, rows in collected.rows.items():
        states = expected_states(model, text_of(collected, handle, whole), needs)
        made.rows[handle] = {
            position: [{name: tensor[position] for name, tensor in states.items()}]
            for position in rows
        }
    return made
