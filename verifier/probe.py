"""Run as a process of its own: prints as JSON what this environment's vLLM and torch are.

vLLM takes many seconds to import and reads the environment then, and a broken build of it may end
the process: whoever asks stays unharmed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from paceline.errors import EnvironmentError_


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that torch sees."""

    name: str
    memory_gib: float


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    torch: str
    """Version, with what it was built for."""
    devices: list[Device]
    vllm: str
    engine_args: list[str]
    """Names of the arguments that this vLLM's engine takes."""
    is_cpu: bool
    """Whether this vLLM runs on the CPU."""
    problem: str
    """Why Paceline cannot use this vLLM, one sentence; "" if it can."""


def probe() -> Probe:
    """Imports torch and vLLM and looks."""
    import torch
    from vllm.platforms import current_platform
    from vllm.version import __version__ as version

    from paceline.verifier.vllm_check import check_vllm

    problem = ""
    try:
        check_vllm()
    except EnvironmentError_ as error:
        problem = str(error)
    # Only now: on a CPU, what `check_vllm` imports first changes what this imports.
    from paceline.verifier.preflight import known_engine_args

    count = torch.cuda.device_count()
    properties: list[Any] = [torch.cuda.get_device_properties(index) for index in range(count)]
    return Probe(
        torch=torch.__version__ + (f" (HIP {torch.version.hip})" if torch.version.hip else ""),
        devices=[Device(name=p.name, memory_gib=p.total_memory / (1 << 30)) for p in properties],
        vllm=version,
        engine_args=known_engine_args(),
        is_cpu=current_platform.is_cpu(),
        problem=problem,
    )


if __name__ == "__main__":
    # The last line: what the libraries print at their import stands before it.
    print(msgspec.json.encode(probe()).decode())
