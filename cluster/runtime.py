"""A run's processes, from nothing to nothing: Ray, a verifier or two, drafters."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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
from paceline.drafter.preflight import check_drafter
from paceline.errors import ConfigError, EngineDeadError, PacelineError, RequestFailedError
from paceline.transport import CurveKeys, probe_bind
from paceline.verifier.engine import Speculation
from paceline.verifier.environment import engine_environment
from paceline.verifier.preflight import check_target

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


class Runtime:
    """The running processes of one configuration; use it with ``with``.

    Attributes:
        drafted: Actor of the target that takes drafts (plain if there are no drafters).
        plain: Actor of the same target without speculation, for comparison; None if not asked for.
        drafters: The drafters' actors.
    """

    def __init__(
        self, config: PacelineConfig, *, with_plain: bool, progress: Callable[[str], None]
    ) -> None:
        self._config = config
        self._with_plain = with_plain
        self._progress = progress
        self._stack = contextlib.ExitStack()
        self._run_refs: list[Any] = []
        self.drafted: Any = None
        self.plain: Any = None
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
        target = config.target
        address = config.cluster.address or os.environ.get("RAY_ADDRESS")
        if address is None:
            # On a cluster, folders are where the actors are, and the actors check them.
            if config.transport.control != "auto":
                probe_bind(config.transport.control)
            resolved = check_target(target)
            for drafter in config.active_drafters:
                check_drafter(drafter, resolved, target.dtype)
        run_folder = Path(tempfile.mkdtemp(prefix="paceline-"))
        stack.push(_Removal(run_folder))
        self._progress("starting Ray" if address is None else f"joining Ray at {address}")
        stack.enter_context(_ray(address, self._num_cpus()))
        self._check_gpus()

        control, keys = config.transport.control, None
        if control == "auto":
            control = f"ipc://{run_folder}/control"
        elif control.startswith("tcp://"):
            keys = CurveKeys.generate()
        speculation = None
        if config.num_speculative_tokens:
            speculation = Speculation(
                num_speculative_tokens=config.num_speculative_tokens,
                control=control,
                key_file=str(run_folder / "keys") if keys else None,
                config=config.speculation,
                transport=config.transport,
            )
        self._progress(f"loading the target {target.model} ({target.dtype})")
        started = time.monotonic()
        self.drafted = self._verifier(stack, "target", speculation, keys, run_folder)
        starting = [self.drafted.start.remote()]
        if self._with_plain:
            self.plain = self._verifier(stack, "plain", None, None, run_folder)
            starting.append(self.plain.start.remote())
        if speculation is not None:
            self._start_drafters(stack, control, keys)
        self._await(starting, "the target")
        self._progress(f"the target is ready after {time.monotonic() - started:.0f} s")
        for actor in self.drafters:
            self._await_welcome(actor)
        if self.drafters:
            names = ", ".join(f"{d.name} ({d.method})" for d in config.active_drafters)
            self._progress(f"drafting: {names}")

    def _check_gpus(self) -> None:
        """Ray would wait for a GPU that it does not have, and say nothing."""
        wanted = sum(d.replicas for d in self._config.active_drafters if d.device == "cuda")
        available = int(ray.cluster_resources().get("GPU", 0))
        if wanted > available:
            raise ConfigError(
                f"drafters with device cuda want {wanted} GPUs, but Ray has {available}; set their "
                "device to cpu, or lower replicas"
            )

    def _num_cpus(self) -> int:
        target = self._config.target
        rank_cpus = target.threads * target.tensor_parallel_size
        drafters = sum(d.threads * d.replicas for d in self._config.active_drafters)
        needed = rank_cpus * (2 if self._with_plain else 1) + drafters
        # Ray counts and does not measure: a run on a small machine must not wait for ever.
        return max(os.cpu_count() or 1, needed)

    def _verifier(
        self,
        stack: contextlib.ExitStack,
        name: str,
        speculation: Speculation | None,
        keys: CurveKeys | None,
        run_folder: Path,
    ) -> Any:
        target = self._config.target
        actor = VerifierActor.options(
            num_cpus=target.threads * target.tensor_parallel_size,
            num_gpus=target.tensor_parallel_size if ray.cluster_resources().get("GPU") else 0,
            runtime_env={"env_vars": engine_environment(target, str(run_folder))},
        ).remote(target, speculation, keys, str(run_folder), name)
        stack.callback(_end, actor, "close", None)
        return actor

    def _start_drafters(
        self, stack: contextlib.ExitStack, control: str, keys: CurveKeys | None
    ) -> None:
        config = self._config
        for drafter in config.active_drafters:
            for name in drafter.replica_names:
                actor = DrafterActor.options(
                    num_cpus=drafter.threads,
                    num_gpus=0 if drafter.device == "cpu" else 1,
                    runtime_env={"env_vars": {"OMP_NUM_THREADS": str(drafter.threads)}},
                ).remote(drafter, name, config.target.dtype, [control], config.transport, keys)
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


class _Removal:
    """Removes the run's folder at the end, unless the engine died: its log is wanted then."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not isinstance(error, EngineDeadError):
            shutil.rmtree(self._folder, ignore_errors=True)
