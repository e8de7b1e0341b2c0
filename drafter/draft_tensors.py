"""Which tensors a draft's checkpoint has to have, may have, and shares with the target, by kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.drafter.checkpoint import MASK_EMBEDDING, Checkpoint
from paceline.drafter.draft_kind import DraftKind, draft_config
from paceline.errors import ModelError

_NORMS = ("input_layernorm", "post_attention_layernorm")
_PROJECTIONS = ("q", "k", "v", "o")
_MLP = ("gate_proj", "up_proj", "down_proj")

_IN_ATTENTION = r"self_attn\.([qkvo]_proj\.bias|[qk]_norm\.weight|sinks|rotary_emb\.inv_freq)"
"""What a decoder layer's attention may have besides its projections."""

_VOCABULARY = ("d2t", "t2d", "embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True, slots=True)
class DraftTensors:
    """Names of tensors as the checkpoint has them."""

    required: frozenset[str]
    optional: re.Pattern[str]
    """What else the draft may have."""
    own: re.Pattern[str]
    """What of the checkpoint is the draft's at all: an MTP block stands in its target's."""

    def names(self, found: Iterable[str]) -> list[str]:
        """The draft's tensors among ``found``."""
        return [name for name in found if self.own.match(name)]

    def extra(self, found: Iterable[str]) -> list[str]:
        """Those of them that nothing reads."""
        return [
            name
            for name in self.names(found)
            if name not in self.required and not self.optional.fullmatch(name)
        ]


def draft_tensors(kind: DraftKind, draft: Checkpoint) -> DraftTensors:
    """Returns what the checkpoint of a kind with rows has to have.

    Raises:
        ModelError: the config does not say how many layers the draft has.
    """
    config = draft_config(draft)
    return _TENSORS[kind.method](draft, config)


def mtp_prefix(draft: Checkpoint) -> str:
    """Returns what the names of the first MTP block begin with."""
    endings = ("token_layernorm.weight", "pre_fc_norm_hidden.weight", "eh_proj.weight")
    for name in draft.headers:
        for ending in endings:
            if name.endswith(f".{ending}"):
                return name.removesuffix(ending)
    raise ModelError(f"{draft.folder} has no MTP block: name a checkpoint that has one")


def _eagle3(draft: Checkpoint, config: Mapping[str, Any]) -> DraftTensors:
    names = draft.headers
    layers = [f"layers.{index}." for index in range(_num_layers(draft, config))]
    if any(name.startswith("midlayer.") for name in names):
        layers[0] = "midlayer."
    required = {"fc.weight", "norm.weight", "lm_head.weight", f"{layers[0]}hidden_norm.weight"}
    for layer in layers:
        required |= _layer(layer, qk_norm=config.get("model_type") == "qwen3")
    if config.get("norm_before_fc"):
        required.add("input_norm.weight")
    if config.get("fc_norm"):
        required |= {f"fc_norm.{index}.weight" for index in range(_num_aux(draft))}
    if _draft_vocab_size(config) < config.get("vocab_size", 0):
        required.add("d2t")
    return _all_own(
        required, layers, ("fc.bias", *(f"{layer}hidden_norm.weight" for layer in layers))
    )


def _block(draft: Checkpoint, config: Mapping[str, Any]) -> DraftTensors:
    layers = [f"layers.{index}." for index in range(_num_layers(draft, config))]
    required = {"fc.weight", "hidden_norm.weight", "norm.weight"}
    for layer in layers:
        required |= _layer(layer, qk_norm=config.get("model_type", "qwen3") == "qwen3")
    if _draft_vocab_size(config) < config.get("vocab_size", 0):
        required |= {"d2t", "lm_head.weight"}
    return _all_own(required, layers, (MASK_EMBEDDING,))


def _dspark(draft: Checkpoint, config: Mapping[str, Any]) -> DraftTensors:
    block = _block(draft, config)
    required = set(block.required)
    if config.get("markov_rank", 256):
        required |= {"markov_head.markov_w1.weight", "markov_head.markov_w2.weight"}
    optional = rf"{block.optional.pattern}|confidence_head\.proj\.(weight|bias)"
    return DraftTensors(frozenset(required), re.compile(optional), block.own)


def _mtp(draft: Checkpoint, config: Mapping[str, Any]) -> DraftTensors:
    prefix = mtp_prefix(draft)
    layer = prefix
    if prefix.endswith("mtp_layers.0."):
        parts = ["token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"]
    elif prefix.endswith("mtp."):
        parts = ["fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"]
        layer = f"{prefix}layers.0."
    else:
        parts = ["enorm", "hnorm", "eh_proj", "shared_head.norm"]
    required = {f"{prefix}{part}.weight" for part in parts}
    required |= {f"{layer}{norm}.weight" for norm in _NORMS}
    required.add(f"{layer}self_attn.o_proj.weight")
    if not any(name.startswith(f"{layer}self_attn.kv_a_proj") for name in draft.headers):
        required |= {f"{layer}self_attn.{part}_proj.weight" for part in "qkv"}
    if not any(
        name.startswith((f"{layer}mlp.experts", f"{layer}mlp.gate.")) for name in draft.headers
    ):
        required |= {f"{layer}mlp.{part}.weight" for part in _MLP}
    # What a mixture of experts, a second block or a quantization adds is the method's to judge.
    anything = re.compile(re.escape(prefix) + ".*")
    return DraftTensors(frozenset(required), anything, anything)


def _gemma4(draft: Checkpoint, config: Mapping[str, Any]) -> DraftTensors:
    layers = [f"model.layers.{index}." for index in range(_num_layers(draft, config))]
    required = {"pre_projection.weight", "post_projection.weight"}
    required |= {"model.embed_tokens.weight", "model.norm.weight"}
    norms = (*_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")
    for layer in layers:
        required |= {f"{layer}self_attn.{part}.weight" for part in ("q_proj", "o_proj", "q_norm")}
        required |= {f"{layer}{norm}.weight" for norm in norms}
        required |= {f"{layer}mlp.{part}.weight" for part in _MLP}
    if config.get("use_ordered_embeddings"):
        required |= {"masked_embedding.centroids.weight", "masked_embedding.token_ordering"}
    scalars = tuple(f"{layer}layer_scalar" for layer in layers)
    return _all_own(required, layers, scalars)


_TENSORS = {
    "eagle3": _eagle3,
    "dflash": _block,
    "dspark": _dspark,
    "mtp": _mtp,
    "gemma4_mtp": _gemma4,
}


def _layer(prefix: str, *, qk_norm: bool) -> set[str]:
    names = {f"{prefix}self_attn.{part}_proj.weight" for part in _PROJECTIONS}
    names |= {f"{prefix}mlp.{part}.weight" for part in _MLP}
    names |= {f"{prefix}{norm}.weight" for norm in _NORMS}
    if qk_norm:
        names |= {f"{prefix}self_attn.{part}_norm.weight" for part in "qk"}
    return names


def _all_own(required: set[str], layers: list[str], more: tuple[str, ...]) -> DraftTensors:
    in_layers = "|".join(map(re.escape, layers))
    single = "|".join(map(re.escape, (*_VOCABULARY, *more)))
    mlp_bias = r"mlp\.(gate|up|down)_proj\.bias"
    optional = rf"{single}|rotary_emb\.inv_freq|({in_layers})({_IN_ATTENTION}|{mlp_bias})"
    return DraftTensors(frozenset(required), re.compile(optional), re.compile(""))


def _num_layers(draft: Checkpoint, config: Mapping[str, Any]) -> int:
    number = config.get("num_hidden_layers")
    if type(number) is not int or not 1 <= number <= 1024:
        raise ModelError(
            f"{draft.folder / 'config.json'} says num_hidden_layers {number}, which is no number "
            "of layers: copy the draft's folder again"
        )
    return number


def _num_aux(draft: Checkpoint) -> int:
    return max(1, sum(name.startswith("fc_norm.") for name in draft.headers))


def _draft_vocab_size(config: Mapping[str, Any]) -> int:
    return int(config.get("draft_vocab_size") or config.get("vocab_size") or 0)
