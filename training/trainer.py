"""The training loop: schedule, progress, a held-out figure, and going on after an interruption."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from paceline.errors import InputError
from paceline.training.corpus import Batch, Corpus
from paceline.training.objective import Objective, Rounds

CHECKPOINT = "checkpoint.safetensors"
CURVE = "held_out.jsonl"
"""A line for each held-out figure."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how fast."""

    rows: int
    """Rows to train on; a row is an answer's position."""
    seconds: float = math.inf
    """The training ends after so long, all starts together, if its rows are not done before."""
    rows_per_step: int = 2048
    learning_rate: float = 4e-3
    """Of the matrices, by Muon."""
    other_learning_rate: float = 1e-3
    """Of everything else, by Adam."""
    weight_decay: float = 0.01
    warmup: float = 0.03
    """Share of the training in which the learning rate rises."""
    num_speculative_tokens: int = 4
    """K of the held-out figure."""
    report_seconds: float = 20.0
    validate_seconds: float = 180.0

    def rate(self, done: float) -> float:
        """Returns the factor of the learning rate when ``done`` (0 to 1) is done."""
        if done < self.warmup:
            return max(done / self.warmup, 0.02)
        return 0.5 * (1.0 + math.cos(math.pi * (done - self.warmup) / (1.0 - self.warmup)))


class _State(msgspec.Struct):
    """Where a training stands."""

    rows: int = 0
    steps: int = 0
    number: int = 0
    """Number of the pass over the corpus."""
    batches: int = 0
    """Batches of this pass that are done."""
    seconds: float = 0.0


class Trainer:
    """Trains one draft; a second one with the same folder goes on where the first was ended."""

    def __init__(
        self,
        objective: Objective,
        corpus: Corpus,
        validation: list[Batch],
        schedule: Schedule,
        folder: Path,
        say: Callable[[str], None] = print,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.objective, self.corpus, self.validation = objective, corpus, validation
        self.schedule, self.folder, self.say = schedule, folder, say
        self.dtype = dtype
        self.state = _State()
        self.device = next(objective.model.parameters()).device
        matrices, others = _split(objective.model)
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                matrices,
                lr=schedule.learning_rate,
                weight_decay=schedule.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        ]
        if others:
            self.optimizers.append(
                torch.optim.AdamW(
                    others,
                    lr=schedule.other_learning_rate,
                    betas=(0.9, 0.95),
                    weight_decay=0.0,
                    fused=True,
                )
            )
        self._rates = [
            [float(group["lr"]) for group in optimizer.param_groups]
            for optimizer in self.optimizers
        ]
        folder.mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        """Trains to the schedule's end, saving on the way."""
        self._load()
        if self.done >= 1.0:
            return
        if not self.state.rows:
            self.validate()
        started, reported, validated = time.monotonic(), time.monotonic(), time.monotonic()
        spent = self.state.seconds
        recent: list[tuple[float, list[float]]] = []
        rows_before = self.state.rows
        for batch in self._batches():
            loss = self.step(batch)
            recent.append(loss)
            now = time.monotonic()
            self.state.seconds = spent + now - started
            if now - reported > self.schedule.report_seconds:
                self._report(recent, (self.state.rows - rows_before) / (now - reported))
                recent, reported, rows_before = [], now, self.state.rows
            if now - validated > self.schedule.validate_seconds:
                self.validate()
                self._save()
                reported = validated = time.monotonic()
                rows_before = self.state.rows
        self.validate()
        self._save()

    def _batches(self) -> Iterator[Batch]:
        state = self.state
        while True:
            skip = state.batches
            for index, batch in enumerate(
                self.corpus.batches(self.schedule.rows_per_step, state.number)
            ):
                if index < skip:
                    continue
                # Before it is trained on: what is saved with its step counts it.
                state.batches = index + 1
                yield batch.to(self.device)
                if self.done >= 1.0:
                    return
            state.number += 1
            state.batches = 0

    def _cast(self) -> torch.autocast:
        is_mixed = self.dtype != torch.float32
        return torch.autocast(self.device.type, self.dtype if is_mixed else None, is_mixed)

    @property
    def done(self) -> float:
        """How much of the training is done, from 0 to 1."""
        schedule, state = self.schedule, self.state
        return min(1.0, max(state.rows / schedule.rows, state.seconds / schedule.seconds))

    def step(self, batch: Batch) -> tuple[float, list[float]]:
        """Returns the loss, and of each step the share of right drafts."""
        rate = self.schedule.rate(self.done)
        for optimizer, rates in zip(self.optimizers, self._rates, strict=True):
            for group, base in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = base * rate
        with self._cast():
            loss = self.objective.loss(batch)
        loss.total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.objective.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.state.rows += batch.num_rows
        self.state.steps += 1
        return loss.total.item(), [share.item() for share in loss.right]

    def validate(self) -> Rounds:
        """Says, and returns, what would be accepted of the validation's greedy answers."""
        rounds = Rounds()
        with torch.inference_mode(), self._cast():
            for batch in self.validation:
                right = self.objective.right(batch, self.schedule.num_speculative_tokens)
                rounds.add(right.cpu(), batch.valid.cpu())
        length = rounds.mean_acceptance_length
        shares = " ".join(f"{share:.3f}" for share in rounds.per_position())
        self.say(
            f"held out after {self.state.rows:,} rows, {self.state.seconds:.0f} s: "
            f"mean acceptance length {length:.3f} (positions {shares}; {rounds.rounds} rounds)"
        )
        with (self.folder / CURVE).open("a") as file:
            line = {
                "rows": self.state.rows,
                "seconds": round(self.state.seconds, 1),
                "mean_acceptance_length": length,
                "acceptance_per_position": rounds.per_position(),
            }
            file.write(json.dumps(line) + "\n")
        return rounds

    def _report(self, recent: list[tuple[float, list[float]]], speed: float) -> None:
        loss = sum(total for total, _ in recent) / len(recent)
        steps = zip(*(shares for _, shares in recent), strict=True)
        shares = " ".join(f"{sum(step) / len(recent):.3f}" for step in steps)
        left = (self.schedule.rows - self.state.rows) / max(speed, 1e-9)
        self.say(
            f"{self.state.rows:,} of {self.schedule.rows:,} rows, pass {self.state.number + 1}: "
            f"loss {loss:.3f}, right {shares}, {speed:.0f} rows/s, {left / 60:.0f} min left"
        )

    # --- going on

    def _save(self) -> None:
        model: dict[str, Tensor] = self.objective.model.state_dict()
        tensors = {f"model.{name}": value for name, value in model.items()}
        for number, optimizer in enumerate(self.optimizers):
            for index, values in optimizer.state_dict()["state"].items():
                for name, value in values.items():
                    tensors[f"optimizer.{number}.{index}.{name}"] = torch.as_tensor(value)
        part = self.folder / "checkpoint.part"
        state = {"state": json.dumps(msgspec.to_builtins(self.state))}
        save_file({name: value.contiguous() for name, value in tensors.items()}, part, state)
        os.replace(part, self.folder / CHECKPOINT)

    def _load(self) -> None:
        path = self.folder / CHECKPOINT
        if not path.is_file():
            return
        tensors = load_checkpoint(path, self.objective.model)
        for number, optimizer in enumerate(self.optimizers):
            state: dict[int, dict[str, Tensor]] = {}
            for name, value in tensors.items():
                kind, *rest = name.split(".")
                if kind == "optimizer" and int(rest[0]) == number:
                    state.setdefault(int(rest[1]), {})[rest[2]] = value
            optimizer.load_state_dict(
                {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
            )
        self.state = msgspec.convert(json.loads(_metadata(path)["state"]), _State)
        self.say(f"going on at {self.state.rows:,} rows")


def _metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        metadata: dict[str, str] = file.metadata()
    return metadata


def load_checkpoint(path: Path, model: nn.Module) -> dict[str, Tensor]:
    """Loads a model's parameters and its buffers; returns all tensors of the checkpoint."""
    tensors: dict[str, Tensor] = load_file(path)
    own = {name: value for name, value in tensors.items() if name.startswith("model.")}
    model.load_state_dict({name.removeprefix("model."): value for name, value in own.items()})
    return tensors


def load_start(path: Path, model: nn.Module) -> None:
    """Loads another training's parameters into a model that has more of them.

    Raises:
        InputError: there is no such training, or it has parameters that the model has not.
    """
    if not path.is_file():
        raise InputError(f"{path} is not there: train the draft that this one starts from first")
    own = {
        name.removeprefix("model."): value
        for name, value in load_file(path).items()
        if name.startswith("model.")
    }
    known = model.state_dict()
    for name, value in own.items():
        if name not in known or known[name].shape != value.shape:
            raise InputError(f"{path} has {name} of shape {list(value.shape)}, which has no place")
    model.load_state_dict(own, strict=False)


def _parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, value) for name, value in model.named_parameters() if value.requires_grad]


def _split(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Muon is for the matrices of layers; embeddings, heads and vectors are not."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, value in _parameters(model):
        is_matrix = value.ndim == 2 and not any(
            word in name for word in ("embed", "head", "markov")
        )
        (matrices if is_matrix else others).append(value)
    return matrices, others
