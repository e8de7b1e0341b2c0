"""A draft's or target's folder: its config, and its tensors by header until one is asked for.

Only safetensors are read. The headers need no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import model_folder
from paceline.errors import ModelError

if TYPE_CHECKING:
    import torch

MAX_LISTED = 10
"""Tensors that one sentence names."""

FLOATS = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
"""Bytes of a value of each floating-point dtype that is computed with, in safetensors' words."""

MASK_EMBEDDING = "mask_embedding"
"""A DFlash draft's own embedding of its mask token, as a tensor."""


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One tensor, as its file's header has it."""

    shape: tuple[int, ...]
    dtype: str
    """In safetensors' words: ``BF16``, ``I64``, …"""
    file: Path

    @property
    def num_values(self) -> int:
        return prod(self.shape)


class Checkpoint:
    """A folder with ``config.json`` and ``*.safetensors``, in one file or several."""

    def __init__(self, folder: str | Path) -> None:
        """Reads the config and the headers.

        Raises:
            ModelError: the folder, its config or a weights file is missing, cut off, or pickled.
        """
        self.folder = Path(folder)
        self.config: dict[str, Any] = model_folder.read_config(self.folder)
        self.headers: dict[str, TensorHeader] = _headers(self.folder)
        """By the tensor's name, sorted."""
        pickle = self.folder / f"{MASK_EMBEDDING}.pt"
        if pickle.is_file() and MASK_EMBEDDING not in self.headers:
            raise ModelError(
                f"{pickle} is a pickle, which is not read, because reading it may run any code: "
                f"save its tensor as {MASK_EMBEDDING} in a .safetensors file of the folder and "
                "remove it"
            )

    def tensors(
        self, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
    ) -> Tensors:
        """The tensors, to be read onto ``device``; floating-point ones as ``dtype``, None: as
        they are stored."""
        return Tensors(self.headers, device, dtype)


class Tensors(Mapping[str, "torch.Tensor"]):
    """Tensors by name; each access reads the tensor from its file."""

    def __init__(
        self,
        headers: Mapping[str, TensorHeader],
        device: torch.device | str,
        dtype: torch.dtype | None,
    ) -> None:
        self._headers = headers
        self._device = device
        self._dtype = dtype

    def __getitem__(self, name: str) -> torch.Tensor:
        from safetensors import SafetensorError, safe_open

        file = self._headers[name].file
        try:
            with safe_open(file, "pt") as opened:
                tensor: torch.Tensor = opened.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file} cannot be read ({error}): copy it again") from None
        dtype = self._dtype if tensor.is_floating_point() else None
        return tensor.to(self._device, dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._headers)

    def __len__(self) -> int:
        return len(self._headers)


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a config that is about text; a multimodal model has it one level down."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else dict(config)


def names_problem(
    found: Collection[str], required: Collection[str], optional: Collection[str] = ()
) -> str:
    """Says which tensors are missing and which are not known, each at most ten; "" if none are."""
    missing = sorted(set(required) - set(found))
    extra = sorted(set(found) - set(required) - set(optional))
    parts = []
    if missing:
        parts.append(f"lacks {_listed(missing)}")
    if extra:
        parts.append(f"has {_listed(extra)}, which it should not have")
    return " and ".join(parts)


def _listed(names: list[str]) -> str:
    text = ", ".join(names[:MAX_LISTED])
    more = len(names) - MAX_LISTED
    noun = "tensor" if len(names) == 1 else "tensors"
    return f"the {noun} {text}" + (f" and {more} more" if more > 0 else "")


def _headers(folder: Path) -> dict[str, TensorHeader]:
    found: dict[str, TensorHeader] = {}
    main = folder / "model.safetensors"
    files = model_folder.weight_files(folder)
    for file in sorted(files, key=lambda file: file != main):
        for name, entry in model_folder.read_header(file).items():
            if name in found and found[name].file == main:
                continue  # another format's copy beside it, which loaders do not read either
            if name in found:
                raise ModelError(
                    f"{folder} has the tensor {name} in {found[name].file.name} and in "
                    f"{file.name}: keep one copy of the weights"
                )
            try:
                shape = tuple(int(size) for size in entry["shape"])
                found[name] = TensorHeader(shape, str(entry["dtype"]), file)
            except (KeyError, TypeError, ValueError):
                raise ModelError(
                    f"{file} tells no shape or dtype of {name}: copy it again"
                ) from None
    listed = model_folder.read_index(folder)
    if listed:
        if problem := names_problem(found, listed, found):
            raise ModelError(
                f"{folder} {problem}, as {model_folder.INDEX_FILE} says: copy the folder again"
            )
        found = {name: found[name] for name in listed}
    return dict(sorted(found.items()))
