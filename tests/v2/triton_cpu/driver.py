"""The backend's driver: the device is the CPU, and there is nothing to launch on it."""

from __future__ import annotations

from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class InterpreterDriver(DriverBase):
    """Never active by itself; vLLM takes it because of the backend's name."""

    def __init__(self) -> None:
        pass  # the base class would ask for the tools of a compiler

    @classmethod
    def is_active(cls) -> bool:
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError("this backend cannot compile: set TRITON_INTERPRET=1")

    def get_current_target(self) -> Any:
        return GPUTarget("cpu", "x86", 1)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("nothing is tuned in the interpreter")

    def get_empty_cache_for_benchmark(self) -> Any:
        raise NotImplementedError("nothing is tuned in the interpreter")

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, idx: int | None = 0) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cpu
