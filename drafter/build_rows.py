"""From a configuration to a loaded draft that works from the target's states."""

from __future__ import annotations

from pathlib import Path

import torch

from paceline import models
from paceline.drafter.block import BlockDrafter
from paceline.drafter.checkpoint import Checkpoint
from paceline.drafter.config import DrafterConfig
from paceline.drafter.dflash import DFlashDrafter
from paceline.drafter.draft_kind import DraftKind, kind_of
from paceline.drafter.dspark import DSparkDrafter
from paceline.drafter.eagle3 import Eagle3Drafter
from paceline.drafter.model import DraftModel
from paceline.drafter.mtp import MtpDrafter
from paceline.drafter.row_needs import row_needs
from paceline.drafter.sequential import SequentialDrafter
from paceline.drafter.target_parts import TargetParts, load_target_parts
from paceline.errors import ConfigError, EnvironmentError_
from paceline.messages import RowNeeds


def needs_of(config: DrafterConfig, target: str, target_dtype: str) -> RowNeeds:
    """Returns what the draft wants of the target's states, from both checkpoints' configs.

    Args:
        target: The target's folder or hub id.

    Raises:
        ConfigError: the checkpoint is a draft of another method.
        ModelError: a folder is missing or truncated, or the two do not fit.
    """
    kind, draft, whole = _pair(config, target, target_dtype)
    return row_needs(kind, draft, whole.config)


def build_row_drafter(config: DrafterConfig, target: str, target_dtype: str) -> DraftModel:
    """Loads the draft, and what it borrows of the target's checkpoint.

    Args:
        target: The target's folder or hub id.

    Raises:
        UserError: it cannot be loaded as configured.
    """
    device = torch.device(config.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EnvironmentError_(
            f"drafter device is {device}, but torch sees no GPU; set device to cpu"
        )
    kind, draft, whole = _pair(config, target, target_dtype)
    dtype: torch.dtype = getattr(torch, config.dtype or target_dtype)
    parts = load_target_parts(whole, device, dtype)
    drafter = _load(kind, draft, parts, device, dtype)
    # The draft's tokens are the target's: it has them from there.
    drafter.tokenizer_fingerprint = models.tokenizer_fingerprint(whole.folder)
    drafter.warm_up()
    return drafter


def _load(
    kind: DraftKind,
    draft: Checkpoint,
    target: TargetParts,
    device: torch.device,
    dtype: torch.dtype,
) -> SequentialDrafter | BlockDrafter:
    if kind.method == "eagle3":
        return Eagle3Drafter(kind, draft, target, device, dtype)
    if kind.method == "mtp":
        return MtpDrafter(kind, draft, target, device, dtype)
    if kind.method == "dflash":
        return DFlashDrafter(draft, target, device, dtype)
    assert kind.method == "dspark", "checked by _pair"
    return DSparkDrafter(draft, target, device, dtype)


def _pair(
    config: DrafterConfig, target: str, target_dtype: str
) -> tuple[DraftKind, Checkpoint, Checkpoint]:
    if config.method == "gemma4_mtp":
        raise ConfigError(
            f"drafter {config.name}: method gemma4_mtp is checked by the doctor, but not served "
            "yet; use another method"
        )
    whole = Checkpoint(_folder(target))
    if config.model is None:
        return kind_of(whole, config.method), whole, whole
    draft = Checkpoint(_folder(models.resolve(config.model, config.dtype or target_dtype)))
    return kind_of(draft, config.method), draft, whole


def _folder(resolved: str) -> Path:
    """Returns the model's files, which are fetched if ``resolved`` is a hub id."""
    path = Path(resolved)
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(resolved, allow_patterns=["*.json", "*.safetensors"]))
