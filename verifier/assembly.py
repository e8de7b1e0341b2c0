"""What the engine's process is given, and the parts that are built of it there."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import msgspec

from paceline.config import Config
from paceline.scheduler.config import SpeculationConfig
from paceline.trace import Tracer
from paceline.transport import CurveKeys, TransportConfig
from paceline.verifier.control import ControlThread
from paceline.verifier.handshake import TargetIdentity
from paceline.verifier.pipeline import Pipeline
from paceline.verifier.record_file import RecordFile
from paceline.verifier.rows_offer import RowsOffer

SETTINGS_KEY = "paceline"
"""Key of ``EngineSettings`` in vLLM's ``additional_config``."""


class EngineSettings(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What vLLM carries to the engine's process in ``additional_config``.

    vLLM logs it: keys travel as the path of a file.
    """

    model: str
    """Name of the target, for messages to the user."""
    tokenizer_fingerprint: str
    control: str
    """Address to bind."""
    key_file: str | None
    """File of the CURVE keys; None on ``ipc``."""
    speculation: SpeculationConfig
    transport: TransportConfig
    process: str = "verifier"
    """Name of the engine's process in a trace."""
    trace_folder: str | None = None
    """Where it writes its part of the run's trace; None: there is no trace."""
    rows: RowsOffer | None = None
    """The target's states that it can send; None: none."""

    def tracer(self) -> Tracer:
        """Returns the tracer of the engine's process."""
        return Tracer(self.process, Path(self.trace_folder) if self.trace_folder else None)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, as vLLM's configuration wants them."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> EngineSettings:
        """Reads what ``to_dict`` returned."""
        return msgspec.convert(values, cls)


def build_pipeline(
    settings: EngineSettings,
    *,
    vocab_size: int,
    max_model_len: int,
    num_speculative_tokens: int,
    hidden_size: int = 0,
    num_layers: int = 0,
    num_kv_heads: int = 1,
    block_size: int = 0,
    tracer: Tracer,
) -> Pipeline:
    """Builds the pipeline of one engine, not started; ``tracer`` stays the caller's to close."""
    target = TargetIdentity(
        model=settings.model,
        vocab_size=vocab_size,
        tokenizer_fingerprint=settings.tokenizer_fingerprint,
        num_speculative_tokens=num_speculative_tokens,
        max_model_len=max_model_len,
        incarnation=secrets.randbits(62) + 1,
        max_branches=(
            settings.speculation.fanout if settings.speculation.mode == "pipelined" else 0
        ),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_kv_heads=num_kv_heads,
        rows=settings.rows,
        block_size=block_size,
    )
    keys = CurveKeys.read(Path(settings.key_file)) if settings.key_file else None
    control = ControlThread(settings.control, settings.transport, keys, target, tracer=tracer)
    path = settings.speculation.record
    record = RecordFile(Path(path)) if path is not None else None
    return Pipeline(settings.speculation, control, tracer=tracer, record=record)
