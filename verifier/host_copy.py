"""Tensors from the target's device to host memory, behind the target's back.

On a GPU the copies run on a stream of their own into pinned memory, and an event tells when they
are there: the pass that follows does not wait for them. In host memory there is nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


class HostCopier:
    """Copies from one device. Belongs to the thread that computes there."""

    def __init__(self, device: torch.device) -> None:
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, tensors: Mapping[str, torch.Tensor]) -> Callable[[], dict[str, torch.Tensor]]:
        """Begins to copy; returns what waits for the end, from any thread, and has the copies.

        Args:
            tensors: Written by the present stream, and by nobody any more.
        """
        if self._stream is None:
            there = dict(tensors)
            return lambda: there
        copies = {}
        # The rows must be computed before they are read.
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            for name, tensor in tensors.items():
                if tensor.device.type == "cpu":
                    copies[name] = tensor
                    continue
                # Pinned memory is kept and handed out again by torch's host allocator.
                copies[name] = torch.empty_like(tensor, device="cpu", pin_memory=True)
                copies[name].copy_(tensor, non_blocking=True)
                # Its memory on the device must not be used anew before it has been read.
                tensor.record_stream(self._stream)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._stream)

        def wait() -> dict[str, torch.Tensor]:
            done.synchronize()
            return copies

        return wait
