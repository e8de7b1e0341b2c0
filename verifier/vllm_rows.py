"""Rows out of vLLM's model runners: which states a model gives away, and what a pass computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.parallel_state import get_tp_group
from vllm.model_executor.models.interfaces import supports_eagle3

from paceline.errors import ModelError
from paceline.verifier.assembly import SETTINGS_KEY, EngineSettings
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
