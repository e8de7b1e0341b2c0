"""Which method a draft's checkpoint is made for, and in whose layout, told from its config and its
tensors' names.

| method        | layouts                                                                         |
|---------------|---------------------------------------------------------------------------------|
| `eagle3`      | `safeailab` (yuhuili, SafeAILab, DeepSpec), `speculators`                       |
| `dflash`      | `z-lab`, `speculators`                                                          |
| `dspark`      | `deepspec`, `speculators`                                                       |
| `mtp`         | `deepseek-v3`, `glm-4.5`, `qwen3-next` (Qwen3.5 too), `mimo`                    |
| `gemma4_mtp`  | `gemma4-assistant`                                                              |
| `draft_model` | `causal-lm`                                                                     |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.drafter.checkpoint import Checkpoint, text_config
from paceline.errors import ConfigError, ModelError

_GEMMA_ASSISTANTS = ("gemma4_assistant", "gemma4_unified_assistant")

_ARCHITECTURES = {
    re.compile("eagle3", re.I): ("eagle3", "safeailab"),
    re.compile("^DFlash(?!2)"): ("dflash", "z-lab"),
    re.compile("DSpark"): ("dspark", "deepspec"),
}

_NOT_SERVED = re.compile(r"^Eagle(?!3)|DFlash2|LiLiCorr|Medusa|MLPSpeculator|PEagle", re.I)
"""Drafts by other methods than ours."""

_MTP_TENSORS = {
    "mimo": re.compile(r"model\.mtp_layers\.0\.token_layernorm\.weight"),
    "qwen3-next": re.compile(r"mtp\.pre_fc_norm_hidden\.weight"),
    "deepseek-v3": re.compile(r"model\.layers\.\d+\.eh_proj\.weight"),
}
"""One tensor of each that no other layout has."""

_EMBEDDINGS = re.compile(r"(^|\.)(embed_tokens|wte|word_embeddings|embed_in|embedding)\.weight$")

_LAYER_OF_A_MODEL = re.compile(r"(^|\.)(layers|h|blocks)\.0\.")


@dataclass(frozen=True, slots=True)
class DraftKind:
    """How a checkpoint drafts, and how it is written down."""

    method: str
    layout: str

    def __str__(self) -> str:
        return f"{self.method} in the layout {self.layout}"


def kinds_of(draft: Checkpoint) -> list[DraftKind]:
    """Returns what the checkpoint can serve as; a target with an MTP block is a causal model, too.

    Raises:
        ModelError: it is a draft by a method that is not served.
    """
    config = draft.config
    names = [str(name) for name in config.get("architectures") or ()]
    if (written := config.get("speculators_model_type")) is not None:
        if written in ("eagle3", "dflash", "dspark"):
            return [DraftKind(written, "speculators")]
        advice = (
            "stitch it into its target with 'speculators stitch' and name that"
            if written == "mtp"
            else "use an eagle3, dflash or dspark one"
        )
        raise ModelError(
            f"{draft.folder} is a speculators draft of type {written}, which is not served: "
            f"{advice}"
        )
    if config.get("model_type") in _GEMMA_ASSISTANTS:
        return [DraftKind("gemma4_mtp", "gemma4-assistant")]
    for name in names:
        if _NOT_SERVED.search(name):
            raise ModelError(
                f"{draft.folder} is a draft of the architecture {name}, which is not served: use "
                "one for eagle3, dflash, dspark or mtp"
            )
        for pattern, (method, layout) in _ARCHITECTURES.items():
            if pattern.search(name):
                return [DraftKind(method, layout)]
    if kind := _by_tensors(draft):
        return [kind]
    kinds = []
    if layout := mtp_layout(draft):
        kinds.append(DraftKind("mtp", layout))
    if any(map(_EMBEDDINGS.search, draft.headers)) and any(
        map(_LAYER_OF_A_MODEL.search, draft.headers)
    ):
        kinds.append(DraftKind("draft_model", "causal-lm"))
    return kinds


def kind_of(draft: Checkpoint, method: str) -> DraftKind:
    """Returns the kind that the checkpoint has under the configured ``method``.

    Raises:
        ConfigError: it is made for another method; names both.
        ModelError: it is no draft of any kind that is known.
    """
    kinds = kinds_of(draft)
    for kind in kinds:
        if kind.method == method:
            return kind
    if method == "mtp":
        family = text_config(draft.config).get("model_type", "unknown")
        raise ConfigError(
            f"method is mtp, but {draft.folder}, of the model family {family}, has no MTP block "
            f"in a layout that is known ({', '.join((*_MTP_TENSORS, 'glm-4.5'))})"
            + (f"; set method to {kinds[0].method}" if kinds else "")
        )
    if not kinds:
        names = ", ".join(map(str, draft.config.get("architectures") or ())) or "none"
        raise ModelError(
            f"method is {method}, but nothing in {draft.folder} (architectures: {names}) shows a "
            "draft of that kind: name the folder of one"
        )
    raise ConfigError(
        f"method is {method}, but {draft.folder} is a draft for {kinds[0]}; set method to "
        f"{' or '.join(kind.method for kind in kinds)}"
    )


def draft_config(draft: Checkpoint) -> dict[str, Any]:
    """The draft's config with the sizes of its layers on top, wherever the layout has them."""
    inner = draft.config.get("transformer_layer_config")
    if isinstance(inner, Mapping):
        return {**draft.config, **inner}
    return text_config(draft.config)


def mtp_layout(draft: Checkpoint) -> str:
    """Returns the layout of the checkpoint's MTP block; "" where it has none that is known."""
    for layout, pattern in _MTP_TENSORS.items():
        first = next(filter(pattern.fullmatch, draft.headers), None)
        if first is None:
            continue
        if layout == "deepseek-v3":
            prefix = first.removesuffix("eh_proj.weight")
            if f"{prefix}self_attn.q_proj.weight" in draft.headers:
                return "glm-4.5"
        return layout
    return ""


def _by_tensors(draft: Checkpoint) -> DraftKind | None:
    """For a config whose architecture says nothing, as some of EAGLE-3's."""
    names = draft.headers
    if "fc.weight" not in names:
        return None
    if any(name.startswith("midlayer.") for name in names):
        return DraftKind("eagle3", "safeailab")
    if any(name.startswith("markov_head.") for name in names):
        return DraftKind("dspark", "deepspec")
    if "hidden_norm.weight" in names:
        return DraftKind("dflash", "z-lab")
    return None
