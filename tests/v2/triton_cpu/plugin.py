"""Two of vLLM's kernels do not run in Triton 3.9's interpreter; vLLM loads this in each process."""

from __future__ import annotations

from typing import Any


def apply() -> None:
    """Mends what the interpreter cannot do; may be called twice."""
    import vllm.v1.sample.ops.topk_topp_sampler as sampler
    from triton.runtime.interpreter import InterpreterBuilder

    # The top-k and top-p kernel calls a method of tl.range's index, which is a Python int here.
    # vLLM has the same in PyTorch.
    sampler.HAS_TRITON = False
    # The grammar's kernel masks a store with what is no array of bool here.
    if InterpreterBuilder.create_masked_store is not _masked_store:
        _originals.append(InterpreterBuilder.create_masked_store)
        InterpreterBuilder.create_masked_store = _masked_store


_originals: list[Any] = []


def _masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
    mask.data = mask.data.astype(bool)
    return _originals[0](self, ptrs, value, mask, *rest)
