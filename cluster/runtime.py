"""A run's processes, from nothing to nothing: Ray, verifiers, drafters."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    RayError,
    RayTaskError,
)

from paceline.cluster.actors import DrafterActor, VerifierActor
from paceline.cluster.config import PacelineConfig
from paceline.cluster.run_folder import RunFolder, sweep
from paceline.drafter.config import DrafterConfig
from paceline.drafter.preflight import check_drafter
from paceline.errors import ConfigError, EngineDeadError, PacelineError, RequestFailedError
from paceline.scheduler.config import SpeculationConfig
from paceline.trace import begin
from paceline.transport import CurveKeys, probe_bind
from paceline.verifier.colocated import ColocatedSpeculation
from paceline.verifier.config import TargetConfig
from paceline.verifier.engine import Speculation
from paceline.verifier.environment import engine_environment
from paceline.verifier.preflight import check_target
from paceline.verifier.record_file import check_record

START_TIMEOUT = 1800.0
"""Seconds for a target to load; large models on network disks take many minutes."""


@contextlib.contextmanager
def unwrapped() -> Iterator[None]:
    """Turns what Ray wraps around an actor's error back into the error itself."""
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, PacelineError):
            raise error.cause from None
        raise RequestFailedError(
            f"an actor has failed: {type(error.cause).__name__}: {error.cause}"
        ) from error
    except ActorDiedError as error:
        raise EngineDeadError(
            "an actor's process has died; its log is in Ray's session folder"
        ) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One target of a run, with what drafts for it; without either way of drafting it is plain."""

    name: str
    target: TargetConfig
    drafters: Sequence[DrafterConfig] = ()
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    colocated: ColocatedSpeculation | None = None
    """vLLM drafts in the target's process; such a side has no ``drafters``."""


def drafted_side(config: PacelineConfig) -> Side:
    """Returns the target of a configuration file with all its drafters."""
    speculation = config.speculation
    if speculation.record is not None:
        # The engine's process is started in another folder.
        record = os.path.abspath(speculation.record)
        speculation = msgspec.structs.replace(speculation, record=record)
    return Side(
        name="target",
        target=config.target,
        drafters=config.active_drafters,
        speculation=speculation,
    )


def plain_side(config: PacelineConfig) -> Side:
    """Returns the same target without drafts."""
    return Side(name="plain", target=config.target)


def check_sides(config: PacelineConfig, sides: Sequence[Side]) -> None:
    """Checks what can be checked before anything is loaded.

    On a cluster that is nothing: folders are where the actors are, and the actors check them.

    Raises:
        UserError: a side cannot be started as configured.
    """
    if cluster_address(config) is not None:
        return
    if config.transport.control != "auto":
        probe_bind(config.transport.control)
    for side in sides:
        resolved = check_target(side.target)
        if side.colocated is not None:
            side.colocated.resolved(side.target.dtype)
        if side.drafters and side.speculation.record is not None:
            check_record(side.speculation.record)
        for drafter in side.drafters:
            check_drafter(drafter, resolved, side.target.dtype, side.target.max_model_len)


def cluster_address(config: PacelineConfig) -> str | None:
    """Returns the Ray cluster to join; None: a Ray of this run's own."""
    return config.cluster.address or os.environ.get("RAY_ADDRESS")


def node_resources(address: str) -> list[dict[str, float]]:
    """Joins a Ray cluster for a moment; returns what each of its nodes offers to actors.

    Raises:
        ConfigError: it cannot be joined.
    """
    with _ray(address, 0):
        return [node["Resources"] for node in ray.nodes() if node["Alive"]]


class Runtime:
    """The running processes of one configuration; use it with ``with``.

    Attributes:
        targets: The targets' actors, by the names of their sides.
        drafters: The drafters' actors.
    """

    def __init__(
        self,
        config: PacelineConfig,
        *,
        sides: Sequence[Side],
        progress: Callable[[str], None],
        trace: Path | None = None,
    ) -> None:
        """Takes what to run.

        Args:
            progress: Tells the user a sentence.
            trace: A folder for the parts of a trace, which is on every node; None: there is none.
        """
        self._config = config
        self._trace = trace
        self._sides = sides
        self._progress = progress
        self._stack = contextlib.ExitStack()
        self._run_refs: list[Any] = []
        self.targets: dict[str, Any] = {}
        self.drafters: list[Any] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack, unwrapped():
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def begin_trace(self) -> None:
        """Leaves out of the trace what was before now."""
        if self._trace is not None:
            begin(self._trace)

    def check_drafters(self) -> None:
        """Raises the error of a drafter that has given up; one that Ray restarts has not.

        Raises:
            UserError: what the drafter has raised.
        """
        done, self._run_refs = (
            ray.wait(self._run_refs, num_returns=len(self._run_refs), timeout=0)
            if self._run_refs
            else ([], [])
        )
        with unwrapped():
            ray.get(done)

    def _start(self, stack: contextlib.ExitStack) -> None:
        config = self._config
        address = cluster_address(config)
        check_sides(config, self._sides)
        sweep()
        run_folder = stack.enter_context(RunFolder())
        self._progress("starting Ray" if address is None else f"joining Ray at {address}")
        stack.enter_context(_ray(address, self._num_cpus()))
        self._check_gpus()

        targets = {(side.target.model, side.target.dtype) for side in self._sides}
        names = ", ".join(f"{model} ({dtype})" for model, dtype in sorted(targets))
        self._progress(f"loading the target {names}")
        started = time.monotonic()
        starting = [self._start_side(stack, side, run_folder) for side in self._sides]
        self._await(starting, "the target")
        self._progress(f"the target is ready after {time.monotonic() - started:.0f} s")
        for actor in self.drafters:
            self._await_welcome(actor)
        drafters = [drafter for side in self._sides for drafter in side.drafters]
        if drafters:
            names = ", ".join(dict.fromkeys(f"{d.name} ({d.method})" for d in drafters))
            self._progress(f"drafting: {names}")

    def _start_side(self, stack: contextlib.ExitStack, side: Side, run_folder: Path) -> Any:
        """Starts a target and its drafters; returns what is done when the target can serve."""
        control, keys = self._config.transport.control, None
        number = len(self.targets)
        speculation: Speculation | ColocatedSpeculation | None = side.colocated
        trace: str | None = None
        if self._trace is not None:
            (self._trace / str(number)).mkdir(parents=True)
            trace = str(self._trace / str(number))
        if side.drafters:
            if control == "auto":
                control = f"ipc://{run_folder}/control-{number}"
            elif control.startswith("tcp://"):
                keys = CurveKeys.generate()
            speculation = Speculation(
                num_speculative_tokens=max(d.num_speculative_tokens for d in side.drafters),
                control=control,
                key_file=str(run_folder / f"keys-{number}") if keys else None,
                config=side.speculation,
                transport=self._config.transport,
                trace_folder=trace,
            )
        actor = self._verifier(stack, side, speculation, keys, run_folder)
        self.targets[side.name] = actor
        starting = actor.start.remote()
        self._start_drafters(stack, side, control, keys, trace)
        return starting

    def _num_cpus(self) -> int:
        ranks = sum(side.target.threads * side.target.tensor_parallel_size for side in self._sides)
        drafters = sum(d.threads * d.replicas for side in self._sides for d in side.drafters)
        # Ray counts and does not measure: a run on a small machine must not wait for ever.
        return max(os.cpu_count() or 1, ranks + drafters)

    def _check_gpus(self) -> None:
        """Ray would wait for a GPU that it does not have, and say nothing."""
        available = int(ray.cluster_resources().get("GPU", 0))
        drafting = sum(
            d.replicas for side in self._sides for d in side.drafters if d.device != "cpu"
        )
        targets = sum(side.target.tensor_parallel_size for side in self._sides) if available else 0
        if targets + drafting > available:
            raise ConfigError(
                f"this run needs {targets + drafting} GPUs at the same time, {targets} for targets "
                f"and {drafting} for drafters, but Ray has {available}; set the drafters' device "
                "to cpu, or lower replicas"
            )

    def _verifier(
        self,
        stack: contextlib.ExitStack,
        side: Side,
        speculation: Speculation | ColocatedSpeculation | None,
        keys: CurveKeys | None,
        run_folder: Path,
    ) -> Any:
        target = side.target
        actor = VerifierActor.options(
            num_cpus=target.threads * target.tensor_parallel_size,
            num_gpus=target.tensor_parallel_size if ray.cluster_resources().get("GPU") else 0,
            runtime_env={"env_vars": engine_environment(target, str(run_folder))},
        ).remote(target, speculation, keys, str(run_folder), side.name)
        stack.callback(_end, actor, "close", None)
        return actor

    def _start_drafters(
        self,
        stack: contextlib.ExitStack,
        side: Side,
        control: str,
        keys: CurveKeys | None,
        trace: str | None,
    ) -> None:
        for drafter in side.drafters:
            for name in drafter.replica_names:
                actor = DrafterActor.options(
                    num_cpus=drafter.threads,
                    num_gpus=0 if drafter.device == "cpu" else 1,
                    runtime_env={"env_vars": {"OMP_NUM_THREADS": str(drafter.threads)}},
                ).remote(
                    drafter,
                    name,
                    side.target.dtype,
                    [control],
                    self._config.transport,
                    keys,
                    f"drafter {name} for {side.name}",
                    trace,
                )
                running = actor.run.remote()
                stack.callback(_end, actor, "stop", running)
                self.drafters.append(actor)
                self._run_refs.append(running)

    def _await(self, refs: list[Any], what: str) -> None:
        """Waits for all of ``refs``, or for the first error of theirs or of a drafter's."""
        started = last_word = time.monotonic()
        deadline = started + START_TIMEOUT
        while refs:
            done, refs = ray.wait(refs, timeout=0.5)
            ray.get(done)
            self.check_drafters()
            if time.monotonic() - last_word >= 10:
                last_word = time.monotonic()
                self._progress(f"still loading, {last_word - started:.0f} s")
            if time.monotonic() > deadline:
                raise ConfigError(f"{what} was not ready within {START_TIMEOUT:.0f} s")

    def _await_welcome(self, actor: Any) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            # A drafter that dies again and again while it loads never answers at all.
            with contextlib.suppress(ActorUnavailableError, GetTimeoutError):
                if ray.get(actor.wait_welcomed.remote(0.2), timeout=30):
                    return
            self.check_drafters()
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"a drafter was not ready within {START_TIMEOUT:.0f} s; its log is in Ray's "
                    "session folder"
                )


@contextlib.contextmanager
def _ray(address: str | None, num_cpus: int) -> Iterator[None]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # An actor with num_gpus=0 keeps the GPUs it can see; Ray announces this change at each start.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    on_terminate = signal.getsignal(signal.SIGTERM)
    arguments: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if address is None:
        # Ray's default for its workers, 15, lets whatever else runs here take their cores.
        os.environ.setdefault("RAY_worker_niceness", "0")
        arguments |= {
            # A Ray of this run's own: not reachable from outside, and gone with the run.
            "address": "local",
            "num_cpus": num_cpus,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            # Only requests and texts go through it.
            "object_store_memory": 100 << 20,
        }
    else:
        arguments["address"] = address
    try:
        ray.init(**arguments)
    except (ConnectionError, RayError, ValueError) as error:
        raise ConfigError(
            f"the Ray cluster at {address} cannot be joined: {' '.join(str(error).split())}"
        ) from error
    # Ray has put a handler of its own there, which prints a stack and forgets ours.
    signal.signal(signal.SIGTERM, on_terminate)
    if address is None:
        token = Path.home() / ".ray" / "auth_token"
        if token.is_file():
            token.chmod(0o600)  # Ray writes it readable for everybody
    try:
        yield
    finally:
        ray.shutdown()


def _end(actor: Any, method: str, running: Any) -> None:
    """Lets an actor, and its task ``running``, end in order; then makes sure that it has."""
    with contextlib.suppress(RayError, PacelineError):
        ray.get(getattr(actor, method).remote(), timeout=10)
        if running is not None:
            ray.wait([running], timeout=5)
    with contextlib.suppress(RayError):
        ray.kill(actor)
