"""What is compared: plain vLLM, vLLM's own speculation, and Paceline."""

from __future__ import annotations

import difflib
import typing
from dataclasses import dataclass
from typing import Literal

from paceline.cluster.config import PacelineConfig
from paceline.errors import ConfigError
from paceline.scheduler.config import SpeculationConfig

MODES: tuple[str, ...] = typing.get_args(typing.get_type_hints(SpeculationConfig)["mode"])

FORMS = "plain, vllm:NAME, paceline:NAME and paceline:NAME@MODE"


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """A way to decode, without the numbers that it is measured with."""

    kind: Literal["plain", "vllm", "paceline"]
    drafter: str | None = None
    """Name of a drafter of the configuration file; None: plain."""
    mode: str | None = None
    """``speculation.mode``; None unless the kind is ``paceline``."""

    def __str__(self) -> str:
        drafter = f":{self.drafter}" if self.drafter else ""
        return f"{self.kind}{drafter}{f'@{self.mode}' if self.mode else ''}"


PLAIN = System(kind="plain")


def parse_systems(text: str, config: PacelineConfig) -> list[System]:
    """Reads ``--systems``; plain is always among them and comes first, nothing comes twice.

    Raises:
        ConfigError: a system, a drafter's name or a mode that does not exist.
    """
    systems = [_parse(name.strip(), config) for name in text.split(",")]
    return list(dict.fromkeys([PLAIN, *systems]))


def _parse(text: str, config: PacelineConfig) -> System:
    if text == "plain":
        return PLAIN
    kind, _, rest = text.partition(":")
    drafter, at, mode = rest.partition("@")
    names = [drafter.name for drafter in config.drafters]
    if drafter in names:
        if kind == "vllm" and not at:
            return System(kind="vllm", drafter=drafter)
        if kind == "paceline":
            return System(kind="paceline", drafter=drafter, mode=_mode(text, at, mode, config))
    if not drafter and kind in ("vllm", "paceline") and not at:
        known = ", ".join(names) or "none"
        raise ConfigError(
            f"--systems names '{text}' without a drafter; write {kind}:NAME, where NAME is one of "
            f"the configuration's drafters ({known})"
        )
    if kind not in ("vllm", "paceline") or (kind == "vllm" and at):
        raise ConfigError(f"--systems names '{text}', which is no system; there are {FORMS}")
    nearest = difflib.get_close_matches(drafter, names, n=1, cutoff=0.5)
    known = f"it has {', '.join(names)}" if names else "it has none"
    hint = f"did you mean '{nearest[0]}'?" if nearest else known
    raise ConfigError(
        f"--systems names '{text}', but the configuration has no drafter '{drafter}'; {hint}"
    )


def _mode(text: str, at: str, mode: str, config: PacelineConfig) -> str:
    if not at:
        return config.speculation.mode
    if mode not in MODES:
        raise ConfigError(
            f"--systems names '{text}', but there is no mode '{mode}'; there are {', '.join(MODES)}"
        )
    return mode
