"""Rows out of vLLM's model runners: which states a model gives away, and what a pass computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.parallel_state import get_tp_group
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models.interfaces import supports_eagle3
from vllm.model_executor.models.utils import extract_layer_index
from vllm.utils.torch_utils import is_quantized_kv_cache

from paceline.errors import ModelError
from paceline.verifier.assembly import SETTINGS_KEY, EngineSettings
from paceline.verifier.kv_rows import KvReader
from paceline.verifier.row_exporter import RowExporter
from paceline.verifier.rows_export import Computed

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput


def make_exporter(vllm_config: VllmConfig, device: torch.device) -> RowExporter | None:
    """Returns this rank's exporter, not started; None where no rows are offered."""
    settings = EngineSettings.from_dict(vllm_config.additional_config[SETTINGS_KEY])
    if settings.rows is None:
        return None
    if settings.rows.needs.kv_layers:
        check_caches(vllm_config)
    return RowExporter(settings, get_tp_group().rank_in_group, device)


def give_states_away(model: Any, layers: Sequence[int]) -> None:
    """Makes ``model`` return the residual stream that enters ``layers`` beside its output.

    vLLM counts as we do (``model_executor/models/interfaces.py``, ``EagleModelMixin``): one behind
    the last layer is what leaves it. The model returns them in ascending order.

    Raises:
        ModelError: the model's class cannot do it.
    """
    if not supports_eagle3(model):
        raise ModelError(
            f"the target's class {type(model).__name__} does not give its layers' states away in "
            "this vLLM; use a draft that works from tokens or from the last hidden state"
        )
    model.set_aux_hidden_state_layers(tuple(layers))


def late_norm(model: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Returns the last norm of a model that leaves it to its head; None for all others.

    That is MiMo in vLLM 0.32 (``model_executor/models/mimo.py``, ``compute_logits``).
    """
    if type(model).__name__ != "MiMoForCausalLM":
        return None
    norm: Callable[[torch.Tensor], torch.Tensor] = model.model.norm
    return norm


def check_caches(vllm_config: VllmConfig) -> None:
    """Raises ``ModelError`` where the target's cache does not hold keys and values as they are."""
    cache_dtype = vllm_config.cache_config.cache_dtype
    if is_quantized_kv_cache(cache_dtype):
        raise ModelError(
            f"a draft needs the target's keys and values, and its cache is kept in {cache_dtype}; "
            "start it with target.engine_args.kv_cache_dtype: auto"
        )
    if vllm_config.model_config.use_mla:
        raise ModelError(
            "a draft needs the target's keys and values, and this target's attention (MLA) keeps "
            "them compressed; use another draft"
        )


def learn_caches(exporter: RowExporter, layers: Mapping[str, Any], vllm_config: VllmConfig) -> None:
    """Learns how the attention backends keep keys and values of the offered layers.

    Args:
        layers: By name, vLLM's ``static_forward_context``; their caches are empty still.

    Raises:
        ModelError: a layer has none, or keeps them in a form that cannot be read.
    """
    config = vllm_config.model_config
    group = get_tp_group()
    # Where there are fewer heads than ranks, several ranks have the same ones.
    copies = max(1, group.world_size // config.get_total_num_kv_heads())
    rank, is_copy = divmod(group.rank_in_group, copies)
    readers: dict[int, KvReader] = {}
    num_heads = 0
    for number, name in layer_names(layers, exporter.needs.kv_layers).items():
        layer = layers[name]
        try:
            readers[number] = KvReader(
                layer.kv_cache,
                partial(_write, layer),
                layer.num_kv_heads,
                (layer.head_size, layer.head_size_v),
                config.dtype,
            )
        except ModelError as error:
            raise ModelError(
                f"a draft needs keys and values of the target's layer {number}, which vLLM's "
                f"backend {layer.attn_backend.get_name()} keeps in {error}; set another one in "
                "target.engine_args, or use another draft"
            ) from error
        num_heads = num_heads or layer.num_kv_heads
    exporter.read_caches({} if is_copy else readers, rank * num_heads)


def layer_names(layers: Mapping[str, Any], numbers: Sequence[int]) -> dict[int, str]:
    """Returns vLLM's names of the attention layers ``numbers``.

    Raises:
        ModelError: one of them keeps no keys and values of its own.
    """
    found = {
        extract_layer_index(name): name
        for name, layer in layers.items()
        if isinstance(layer, Attention)
        and layer.kv_sharing_target_layer_name is None
        and hasattr(layer.impl, "do_kv_cache_update")
    }
    for number in numbers:
        if number not in found:
            raise ModelError(
                f"a draft needs keys and values of the target's layer {number}, which keeps none "
                "that can be read; use a draft that was trained for this target"
            )
    return {number: found[number] for number in numbers}


def _write(layer: Any, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    layer.impl.do_kv_cache_update(layer, key, value, layer.kv_cache, slots)


def computed_by(
    scheduler_output: SchedulerOutput, request_ids: Sequence[str], num_tokens: Sequence[int]
) -> list[Computed]:
    """Returns what a pass computed of each request, in the order of ``request_ids``."""
    begin = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
    cached = scheduler_output.scheduled_cached_reqs
    begin.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    drafts: Mapping[str, Sequence[int]] = scheduler_output.scheduled_spec_decode_tokens
    return [
        Computed(request_id, begin[request_id], number, len(drafts.get(request_id, ())))
        for request_id, number in zip(request_ids, num_tokens, strict=True)
    ]
