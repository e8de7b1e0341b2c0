"""A block draft's tensors, each checked against its config as it is taken."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.drafter.checkpoint import Checkpoint, names_problem
from paceline.errors import ModelError


class Weights:
    """The tensors of a checkpoint, on a device and in a dtype."""

    def __init__(self, draft: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        self._folder = draft.folder
        self._tensors = draft.tensors(device, dtype)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, *shape: int) -> Tensor:
        """Returns a tensor.

        Raises:
            ModelError: it is missing, or has another shape.
        """
        if name not in self._tensors:
            raise ModelError(
                f"the draft in {self._folder} {names_problem([], [name])}: copy its folder again"
            )
        tensor = self._tensors[name]
        if tensor.shape != shape:
            raise ModelError(
                f"the tensor {name} of the draft in {self._folder} has the shape "
                f"{list(tensor.shape)}, but by its config it is {list(shape)}: copy its folder "
                "again, or use a draft for this target"
            )
        return tensor

    def load(self, module: nn.Module) -> None:
        """Gives ``module`` its parameters, by their names in it.

        Raises:
            ModelError: one is missing, or has another shape.
        """
        wanted = module.state_dict()
        if problem := names_problem(self._tensors, wanted, self._tensors):
            raise ModelError(f"the draft in {self._folder} {problem}: copy its folder again")
        tensors = {name: self.take(name, *like.shape) for name, like in wanted.items()}
        module.load_state_dict(tensors, assign=True)
        module.eval().requires_grad_(False)
