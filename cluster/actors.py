"""The processes, as Ray actors: thin hosts of the verifier's engine and the drafter's service."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from pathlib import Path
from typing import Any

import ray

from paceline.drafter.build import build_draft_model
from paceline.drafter.config import DrafterConfig
from paceline.drafter.service import DraftService
from paceline.drafter.session import make_hello
from paceline.errors import UserError
from paceline.models import resolve_target
from paceline.trace import Tracer
from paceline.transport import CurveKeys, TransportConfig
from paceline.verifier.colocated import ColocatedSpeculation
from paceline.verifier.config import TargetConfig
from paceline.verifier.engine import GenerationRequest, Speculation, VerifierEngine

logger = logging.getLogger("paceline.drafter")

MAX_CONCURRENT_REQUESTS = 10_000
"""Requests that one verifier actor takes at a time; vLLM queues what does not fit a pass."""


class Verifier:
    """Hosts one target."""

    def __init__(
        self,
        target: TargetConfig,
        speculation: Speculation | ColocatedSpeculation | None,
        keys: CurveKeys | None,
        run_folder: str,
        name: str,
    ) -> None:
        folder = Path(run_folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if keys is not None and isinstance(speculation, Speculation) and speculation.key_file:
            # vLLM's engine is a process of its own, and its arguments are logged: a file it is.
            keys.save(Path(speculation.key_file))
        self._engine = VerifierEngine(target, speculation, folder, name)

    async def start(self) -> None:
        """Loads the target; see ``VerifierEngine.start``."""
        await self._engine.start()

    async def generate(self, request: GenerationRequest) -> dict[str, Any]:
        """Completes one prompt; see ``VerifierEngine.generate``."""
        return await self._engine.generate(request)

    async def close(self) -> None:
        """Ends the engine's processes."""
        await self._engine.close()


class Drafter:
    """Hosts one draft model; Ray restarts it when its process dies, and ``run`` with it."""

    def __init__(
        self,
        config: DrafterConfig,
        name: str,
        target: TargetConfig,
        addresses: list[str],
        transport: TransportConfig,
        keys: CurveKeys | None,
        process: str,
        trace_folder: str | None,
    ) -> None:
        self._config = config
        self._name = name
        self._target = target
        self._addresses = addresses
        self._transport = transport
        self._keys = keys
        self._tracer = Tracer(process, Path(trace_folder) if trace_folder else None)
        self._service: DraftService | None = None
        self._stopped = threading.Event()

    def run(self) -> None:
        """Loads the draft model and serves until ``stop``.

        Raises:
            UserError: the model cannot be loaded, or a verifier refuses this drafter.
        """
        logging.basicConfig(level=logging.INFO)
        try:
            with self._tracer:
                self._run()
        except UserError:
            raise
        except Exception:  # the outermost loop of this process
            logger.exception(
                "drafter %s has failed; its process ends and is started anew", self._name
            )
            # Ray restarts an actor that dies, and runs this task again; an error it would keep.
            os._exit(1)

    def _run(self) -> None:
        resolved = resolve_target(self._target.model, self._target.dtype)
        model = build_draft_model(self._config, self._target.dtype, resolved)
        hello = make_hello(
            drafter=self._name,
            incarnation=secrets.randbits(62) + 1,
            method=self._config.method,
            model=model,
            num_speculative_tokens=self._config.num_speculative_tokens,
            max_requests=self._config.max_requests,
        )
        self._service = DraftService(
            hello=hello,
            model=model,
            addresses=self._addresses,
            transport=self._transport,
            keys=self._keys,
            tracer=self._tracer,
        )
        if not self._stopped.is_set():
            self._service.run()

    def wait_welcomed(self, seconds: float) -> bool:
        """Waits until every verifier has taken this drafter in; returns whether that is so."""
        if self._service is None:
            self._stopped.wait(seconds)
            return False
        return self._service.welcomed.wait(seconds)

    def process_id(self) -> int:
        """Returns the number of the process that drafts."""
        return os.getpid()

    def stop(self) -> None:
        """Ends ``run``."""
        self._stopped.set()
        if self._service is not None:
            self._service.stop()


VerifierActor = ray.remote(max_concurrency=MAX_CONCURRENT_REQUESTS)(Verifier)
DrafterActor = ray.remote(max_restarts=-1, max_task_retries=-1, max_concurrency=4)(Drafter)
