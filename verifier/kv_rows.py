"""Rows of keys and values out of a paged cache, whatever the attention backend's layout.

vLLM's backends agree on a cache's outer shape, and each has its own order within a block: keys
transposed, packed by twos for a matrix unit, keys and values in turn or one after the other. So the
order is not told here but learnt: the backend itself writes numbers into an empty cache, and where
they turn up is where it keeps its values. A backend that keeps anything else than the values (a
quantized cache, a compressed one) is found out by the same look.

Shape legend: B blocks of S slots, H heads of this rank, D the size of a head, C what a slot of a
head holds, N rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from paceline.errors import ModelError

Write = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Writes keys [N, H, D], values [N, H, D] and the slots [N] that they go to into the cache."""

_BASE = 128
"""Numbers are written as digits of this base: every float type holds them exactly."""


class KvReader:
    """Reads one layer's keys and values, in the order in which the backend keeps them."""

    def __init__(
        self,
        cache: torch.Tensor,
        write: Write,
        num_heads: int,
        sizes: tuple[int, int],
        dtype: torch.dtype,
    ) -> None:
        """Learns the layout; the cache's first two blocks are zeros afterwards.

        Args:
            cache: [B, H, S, C] with any strides, still empty.
            write: The backend's own way to fill it.
            sizes: D of keys and of values.
            dtype: Of keys and values.

        Raises:
            ModelError: what is written does not turn up there.
        """
        if cache.dtype != dtype or cache.dim() != 4 or len(cache) < 2:
            raise ModelError(f"a cache of {cache.dtype} and shape {list(cache.shape)}")
        self._block_size = cache.shape[2]
        self._block_stride = cache.stride(0)
        # All that lies between the layer's first and last element, as one row.
        length = 1 + sum((n - 1) * s for n, s in zip(cache.shape, cache.stride(), strict=True))
        self._flat = cache.as_strided((length,), (1,), cache.storage_offset())
        self._key, self._value = _learn(cache, write, num_heads, sizes)

    def read(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns keys and values of ``slots`` [N], each a new tensor [N, H, D]."""
        slots = slots.to(torch.int64)
        begin = (slots // self._block_size) * self._block_stride  # [N]
        within = slots % self._block_size
        key = self._flat[begin[:, None, None] + self._key[within]]
        value = self._flat[begin[:, None, None] + self._value[within]]
        return key, value


def _learn(
    cache: torch.Tensor, write: Write, num_heads: int, sizes: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns where a block keeps its keys and values: offsets from its begin, [S, H, D] each."""
    block_size, device = cache.shape[2], cache.device
    shapes = [(block_size, num_heads, size) for size in sizes]
    num_keys, num_values = (block_size * num_heads * size for size in sizes)
    # Zero is what an element holds that nobody wrote.
    numbers = torch.arange(1, num_keys + num_values + 1, device=device)
    found = torch.zeros(2, *cache.shape[1:], dtype=torch.int64, device=device)
    slots = torch.arange(2 * block_size, device=device)
    scale = 1
    while scale <= num_keys + num_values:
        digits = (numbers // scale % _BASE).to(cache.dtype)
        key = digits[:num_keys].view(shapes[0]).repeat(2, 1, 1)
        value = digits[num_keys:].view(shapes[1]).repeat(2, 1, 1)
        cache[:2].zero_()
        write(key, value, slots)
        found += cache[:2].to(torch.int64) * scale
        scale *= _BASE
    cache[:2].zero_()
    offsets = sum(
        torch.arange(size, device=device).view([-1 if d == axis else 1 for d in range(3)]) * stride
        for axis, (size, stride) in enumerate(zip(cache.shape[1:], cache.stride()[1:], strict=True))
    )
    assert isinstance(offsets, torch.Tensor)
    seen = found[0].flatten()
    place = seen.nonzero().flatten()
    written = seen[place]
    if not torch.equal(found[0], found[1]) or not torch.equal(written.sort().values, numbers):
        raise ModelError("a cache that does not keep the values as they are written")
    ordered = offsets.flatten()[place][written.argsort()]
    return ordered[:num_keys].view(shapes[0]), ordered[num_keys:].view(shapes[1])
