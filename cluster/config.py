"""The whole configuration file: one section per component, put together here."""

from __future__ import annotations

from pathlib import Path

from paceline.config import Config, load
from paceline.drafter.config import ROW_METHODS, DrafterConfig
from paceline.scheduler.config import SpeculationConfig
from paceline.transport import TransportConfig
from paceline.verifier.config import TargetConfig


class ClusterConfig(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the processes run."""

    address: str | None = None
    """A Ray cluster to join (``auto``, or HOST:PORT); default: the one of ``RAY_ADDRESS``, which
    ``ray job submit`` sets, else a Ray of this run's own on this machine."""


class PacelineConfig(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A configuration file."""

    target: TargetConfig
    drafters: list[DrafterConfig] = []
    """Pools of drafters; each request is given to the least loaded one. Empty: plain decoding."""
    speculation: SpeculationConfig = SpeculationConfig()
    transport: TransportConfig = TransportConfig()
    cluster: ClusterConfig = ClusterConfig()

    def __post_init__(self) -> None:
        names = [name for drafter in self.drafters for name in drafter.replica_names]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"drafters: the name '{name}' is used twice; names are unique (replicas are "
                    "NAME-0, NAME-1, …)"
                )
        for drafter in self.active_drafters:
            if drafter.method in ROW_METHODS and self.speculation.mode == "pipelined":
                raise ValueError(
                    f"drafters: {drafter.name} has the method {drafter.method}, which drafts in "
                    "lockstep only for now; set speculation.mode: lockstep"
                )

    @property
    def active_drafters(self) -> list[DrafterConfig]:
        """The drafters that draft at all."""
        return [drafter for drafter in self.drafters if drafter.num_speculative_tokens > 0]

    @property
    def num_speculative_tokens(self) -> int:
        """The most draft tokens that a pass verifies for one request; 0: speculation is off."""
        return max((drafter.num_speculative_tokens for drafter in self.drafters), default=0)


def load_config(path: str | Path) -> PacelineConfig:
    """Reads a configuration file; raises ``ConfigError`` if it is not one."""
    return load(path, PacelineConfig)
