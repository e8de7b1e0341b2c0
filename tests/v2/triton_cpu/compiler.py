"""The backend's compiler. With TRITON_INTERPRET=1 nothing is ever compiled."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from triton.backends.compiler import BaseBackend


class InterpreterBackend(BaseBackend):
    """Takes the target "cpu"; fails as soon as something is to be compiled."""

    @staticmethod
    def supports_target(target: Any) -> bool:
        return bool(target.backend == "cpu")

    def hash(self) -> str:
        return "interpreter"

    def parse_options(self, options: dict[str, Any]) -> object:
        raise NotImplementedError("this backend cannot compile: set TRITON_INTERPRET=1")

    def add_stages(self, stages: dict[str, Any], options: object, language: Any) -> None:
        raise NotImplementedError("this backend cannot compile: set TRITON_INTERPRET=1")

    def load_dialects(self, context: Any) -> None:
        raise NotImplementedError("this backend cannot compile: set TRITON_INTERPRET=1")

    def get_module_map(self) -> dict[str, ModuleType]:
        return {}
