"""What a draft needs of the target's states, read from its config, and how many bytes that is.

The numbers of layers mean two things. EAGLE's and speculators' name the layer whose *input* is
taken, as ``RowNeeds.aux_layers`` does; z-lab's and DeepSpec's ``target_layer_ids`` name the layer
whose *output* is taken, which is the next one's input. The output of the last layer, before the
norm, is number L.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.drafter.checkpoint import Checkpoint, text_config
from paceline.drafter.draft_kind import DraftKind, draft_config
from paceline.errors import ModelError
from paceline.messages import ITEM_SIZES, RowNeeds

WITH_AUX = ("eagle3", "dflash", "dspark")


def default_eagle_layers(num_layers: int) -> list[int]:
    """What EAGLE-3 drafts are trained on where they do not say."""
    return [2, num_layers // 2, num_layers - 3]


def stated_layers(kind: DraftKind, config: Mapping[str, Any]) -> list[int]:
    """Returns the layers whose inputs the draft takes; empty where its config names none.

    Args:
        config: As ``draft_config`` has it.
    """
    eagle, dflash = _mapping(config, "eagle_config"), _mapping(config, "dflash_config")
    before = config.get("eagle_aux_hidden_state_layer_ids")
    if not before and kind.layout == "speculators":
        before = config.get("aux_hidden_state_layer_ids")
    if not before:
        before = eagle.get("eagle_aux_hidden_state_layer_ids") or eagle.get("layer_ids")
    if before:
        return _ids(before)
    after = (
        dflash.get("target_layer_ids")
        or config.get("dspark_target_layer_ids")
        or config.get("target_layer_ids")
    )
    if after:
        return [layer + 1 for layer in _ids(after)]
    return _ids(dflash.get("layer_ids") or [])


def aux_layers(kind: DraftKind, draft: Checkpoint, num_layers: int) -> list[int]:
    """Returns the layers whose inputs the draft takes, in the order in which they lie in a row.

    That is the order of the layers, whatever the config's.

    Args:
        num_layers: L, of the target.

    Raises:
        ModelError: one does not exist, or the config of a draft other than EAGLE-3 names none.
    """
    layers = stated_layers(kind, draft_config(draft))
    if not layers:
        if kind.method != "eagle3":
            raise ModelError(
                f"{draft.folder / 'config.json'} does not say which of the target's layers the "
                "draft takes: use a draft whose config does"
            )
        layers = default_eagle_layers(num_layers)
    wrong = [layer for layer in layers if not 0 <= layer <= num_layers]
    if wrong:
        raise ModelError(
            f"the draft in {draft.folder} takes what enters the layers {_listed(layers)}, but "
            f"the target has {num_layers} layers, so that {_listed(wrong)} cannot be had: use "
            "a draft for this target"
        )
    if len(set(layers)) < len(layers):
        raise ModelError(
            f"the draft in {draft.folder} takes a layer twice ({_listed(layers)}): mend its config"
        )
    return sorted(layers)


def row_needs(kind: DraftKind, draft: Checkpoint, target: Mapping[str, Any]) -> RowNeeds:
    """Returns what the draft needs of the target's states.

    Args:
        target: The target's config.

    Raises:
        ModelError: the target has no such states.
    """
    config = text_config(target)
    if kind.method in WITH_AUX:
        return RowNeeds(aux_layers=aux_layers(kind, draft, config["num_hidden_layers"]))
    if kind.method == "mtp":
        return RowNeeds(final=True)
    if kind.method == "gemma4_mtp":
        return RowNeeds(final=True, kv_layers=_mirrored_layers(draft, config))
    return RowNeeds()


def row_bytes(needs: RowNeeds, target: Mapping[str, Any], dtype: str) -> int:
    """Returns the bytes of one token's rows, as the target has them."""
    config = text_config(target)
    num_values = (len(needs.aux_layers) + needs.final) * config["hidden_size"]
    num_values += sum(2 * _kv_size(config, layer) for layer in needs.kv_layers)
    return int(num_values * ITEM_SIZES[dtype])


def _mirrored_layers(draft: Checkpoint, target: Mapping[str, Any]) -> list[int]:
    """The target's last layer of each kind that the draft has, of those with keys of their own."""
    kinds = target.get("layer_types") or ["full_attention"] * target["num_hidden_layers"]
    own = kinds[: target["num_hidden_layers"] - (target.get("num_kv_shared_layers") or 0)]
    wanted = set(draft_config(draft).get("layer_types") or ["full_attention"])
    missing = sorted(wanted - set(own))
    if missing:
        raise ModelError(
            f"the draft in {draft.folder} reads keys of {', '.join(missing)} layers, of which the "
            "target has none: use the assistant of this target"
        )
    return sorted(max(i for i, kind in enumerate(own) if kind == name) for name in wanted)


def _kv_size(config: Mapping[str, Any], layer: int) -> int:
    """Values of a layer's key of one token; Gemma 4's full layers differ from its sliding ones."""
    kinds = config.get("layer_types")
    heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if kinds and kinds[layer] == "full_attention":
        size = config.get("global_head_dim") or size
        if config.get("attention_k_eq_v"):
            heads = config.get("num_global_key_value_heads") or heads
    return int(heads * size)


def _mapping(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = config.get(name)
    return value if isinstance(value, Mapping) else {}


def _ids(values: Any) -> list[int]:
    if not isinstance(values, Sequence) or not all(type(value) is int for value in values):
        raise ModelError(f"the draft's layers are {values}, not a list of numbers: mend its config")
    return list(values)


def _listed(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers))
