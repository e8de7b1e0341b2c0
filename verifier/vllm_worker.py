"""vLLM's worker and both of its model runners: drafts are verified there and never made there.

vLLM 0.32 has two model runners, and its worker builds one of them: V1
(``vllm/v1/worker/gpu_model_runner.py``) on a CPU, V2 (``vllm/v1/worker/gpu/model_runner.py``) on
ROCm and CUDA. ``VLLM_USE_V2_MODEL_RUNNER`` overrides the choice. What is hooked:

| here                        | runner | why                                             |
|-----------------------------|--------|-------------------------------------------------|
| ``_input_fits_in_drafter``  | V1     | see ``_V1Hooks``                                |
| ``_sample``                 | V1     | undrafted passes with top-k                     |
| ``propose_draft_token_ids`` | V1     | vLLM itself drafts nothing; rows out            |
| ``speculator``              | V2     | the same: ``_NoSpeculator`` stands in its place |
| ``update_requests``         | V2     | drafts in, see ``_V2Hooks``                     |
| ``load_model``              | both   | the model is told which states to give away     |
| ``take_draft_token_ids``    | both   | nothing goes back to the scheduler              |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.platforms import current_platform
from vllm.utils import torch_utils

from paceline.errors import EnvironmentError_
from paceline.verifier.row_exporter import RowExporter
from paceline.verifier.rows_export import Computed
from paceline.verifier.rows_plan import PLAN_ATTRIBUTE
from paceline.verifier.vllm_sampling import repair_v1_sampling

# On a CPU this import comes before every other one from vllm.v1.worker: it replaces functions that
# the others take over by name.
if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as BaseWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as BaseWorker

from vllm.v1.worker.gpu.model_runner import GPUModelRunner as V2Runner
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator
from vllm.v1.worker.gpu_model_runner import GPUModelRunner as V1Runner

from paceline.verifier.vllm_rows import (
    computed_by,
    give_states_away,
    late_norm,
    layer_names,
    learn_caches,
    make_exporter,
)

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.worker.gpu.input_batch import InputBatch


class PipelineWorker(BaseWorker):
    """vLLM's worker with the hooks in its model runner. Set as ``worker_cls``."""

    def init_device(self) -> None:
        if not self.use_v2_model_runner:
            repair_v1_sampling()
        super().init_device()
        runner = self.model_runner
        hooks = _V2Hooks if self.use_v2_model_runner else _V1Hooks
        # The CPU worker names its runner's class in this very method, so the class can only be
        # extended afterwards.
        runner.__class__ = type("PipelineRunner", (hooks, type(runner)), {})
        runner.check_and_prepare()
        runner.exporter = make_exporter(self.vllm_config, runner.device)
        if runner.exporter is not None:
            runner.exporter.start()

    def shutdown(self) -> None:
        exporter = getattr(getattr(self, "model_runner", None), "exporter", None)
        if exporter is not None:
            exporter.stop()
        super().shutdown()


class _V1Hooks(V1Runner):
    """V1 reads the drafts in the scheduler's output: nothing has to be brought in."""

    exporter: RowExporter | None = None
    _layer_names: Mapping[int, str] = {}
    _states_before: dict[int, torch.Tensor] = {}

    def check_and_prepare(self) -> None:
        pass

    def load_model(self, *arguments: Any, **named: Any) -> None:
        super().load_model(*arguments, **named)
        if self.exporter is not None:
            self.exporter.last_norm = late_norm(self.get_model())
        if self.exporter is not None and self.exporter.needs.aux_layers:
            give_states_away(self.get_model(), self.exporter.needs.aux_layers)
            self.use_aux_hidden_state_outputs = True

    def initialize_kv_cache(
        self, *arguments: Any, is_profiling: bool = False, **named: Any
    ) -> None:
        super().initialize_kv_cache(*arguments, is_profiling=is_profiling, **named)
        if self.exporter is not None and not is_profiling:
            layers = self.compilation_config.static_forward_context
            learn_caches(self.exporter, layers, self.vllm_config)
            self._layer_names = layer_names(layers, self.exporter.needs.kv_layers)

    def _input_fits_in_drafter(self, common_attn_metadata: Any) -> bool:
        # vLLM would ask its own drafter's context length. If one request is too long for it, the
        # whole batch gets placeholder drafts instead (gpu_model_runner.py, sample_tokens).
        return True

    def _sample(self, logits: Any, spec_decode_metadata: Any) -> Any:
        if spec_decode_metadata is not None and not any(spec_decode_metadata.num_draft_tokens):
            # V1 sends every pass through the rejection sampler. Without a single draft its top-k
            # has no rows to take a maximum of, and raises (topk_topp_sampler.py,
            # apply_top_k_only), which ends the engine. The ordinary sampler gives the same tokens.
            spec_decode_metadata = None
        self._states_before = self._states_of_unfinished_prompts()
        return super()._sample(logits, spec_decode_metadata)

    def _states_of_unfinished_prompts(self) -> dict[int, torch.Tensor]:
        """By row, the state of a seeded request's generator before a sample that is thrown away."""
        if not self.input_batch.generators:
            return {}
        unfinished = self.discard_request_mask.np[: self.input_batch.num_reqs].nonzero()[0]
        generators = self.input_batch.generators
        rows = [int(row) for row in unfinished if int(row) in generators]
        return {row: generators[row].get_state() for row in rows if _is_on_cpu(generators[row])}

    def _bookkeeping_sync(self, *arguments: Any, **named: Any) -> Any:
        # vLLM takes that sample back by a step back in the generator's offset, which a generator
        # of a CPU does not have: it raises, and the engine ends.
        generators = self.input_batch.generators
        for row, state in self._states_before.items():
            generators[row].set_state(state)
        self.input_batch.generators = {
            row: generator
            for row, generator in generators.items()
            if row not in self._states_before
        }
        try:
            return super()._bookkeeping_sync(*arguments, **named)
        finally:
            self.input_batch.generators = generators

    def propose_draft_token_ids(
        self,
        scheduler_output: SchedulerOutput,
        sampled_token_ids: list[list[int]],
        sampling_metadata: Any,
        hidden_states: torch.Tensor,
        sample_hidden_states: torch.Tensor,
        aux_hidden_states: list[torch.Tensor] | None,
        spec_decode_metadata: Any,
        common_attn_metadata: Any,
        slot_mappings: Any,
        *_: Any,
        **__: Any,
    ) -> list[list[int]]:
        plan = getattr(scheduler_output, PLAN_ATTRIBUTE, None)
        if self.exporter is not None and plan is not None:
            computed = self._computed(scheduler_output)
            # The text as the host has it: accepted drafts are in it already, rejected ones may be
            # overwritten, and are not sent.
            texts = [
                self.input_batch.token_ids_cpu[
                    row, one.first_position : one.first_position + one.num_tokens
                ]
                for row, one in enumerate(computed)
            ]
            self.exporter.export(
                plan,
                computed,
                aux_hidden_states,
                hidden_states,
                input_ids=torch.from_numpy(np.concatenate(texts)),
                num_sampled=torch.tensor([len(tokens) for tokens in sampled_token_ids]),
                bonus=torch.tensor([tokens[-1] if tokens else 0 for tokens in sampled_token_ids]),
                slots=lambda layer: slot_mappings[self._layer_names[layer]],
            )
        return [[] for _ in sampled_token_ids]

    def _computed(self, scheduler_output: SchedulerOutput) -> list[Computed]:
        request_ids = self.input_batch.req_ids
        num_tokens = scheduler_output.num_scheduled_tokens
        return computed_by(scheduler_output, request_ids, [num_tokens[one] for one in request_ids])

    def take_draft_token_ids(self) -> None:
        return None


def _is_on_cpu(generator: torch.Generator) -> bool:
    return generator.device.type == "cpu"


class _V2Hooks(V2Runner):
    """V2 takes only the number of drafts from the scheduler's output.

    Their ids it reads from ``req_states.draft_tokens``, int64 [max_num_reqs, K], where its own
    speculator would have left them after the last pass. Without ``update_requests`` here it would
    verify zeros: the output would still be right, and next to no draft accepted.
    """

    exporter: RowExporter | None = None
    _layer_names: Mapping[int, str] = {}
    _scheduled: SchedulerOutput

    def check_and_prepare(self) -> None:
        """Puts the stub in the speculator's place.

        Raises:
            EnvironmentError_: this vLLM keeps drafts elsewhere or in another shape.
        """
        shape = (self.max_num_reqs, self.num_speculative_steps)
        table = getattr(self.req_states, "draft_tokens", None)
        if table is None or table.shape != shape or not hasattr(self, "speculator"):
            raise EnvironmentError_(
                f"vLLM's V2 model runner has no req_states.draft_tokens of shape {list(shape)} as "
                "Paceline needs it; install vLLM 0.32, or set VLLM_USE_V2_MODEL_RUNNER=0"
            )
        self.speculator = _NoSpeculator(torch.zeros_like(table), self._export)

    def load_model(self, *arguments: Any, **named: Any) -> None:
        super().load_model(*arguments, **named)
        if self.exporter is not None:
            self.exporter.last_norm = late_norm(self.get_model())
        if self.exporter is not None and self.exporter.needs.aux_layers:
            give_states_away(self.get_model(), self.exporter.needs.aux_layers)
            self.use_aux_hidden_state_outputs = True

    def initialize_kv_cache(
        self, *arguments: Any, is_profiling: bool = False, **named: Any
    ) -> None:
        super().initialize_kv_cache(*arguments, is_profiling=is_profiling, **named)
        if self.exporter is not None and not is_profiling:
            layers = self.compilation_config.static_forward_context
            learn_caches(self.exporter, layers, self.vllm_config)
            self._layer_names = layer_names(layers, self.exporter.needs.kv_layers)

    def update_requests(self, scheduler_output: SchedulerOutput) -> None:
        # Not earlier: a new request has its slot only now. Not later: the inputs come next.
        super().update_requests(scheduler_output)
        self._scheduled = scheduler_output
        drafts = scheduler_output.scheduled_spec_decode_tokens
        if drafts:
            put_drafts(self.req_states.draft_tokens, drafts, self.req_states.req_id_to_index)

    def _export(
        self,
        input_batch: InputBatch,
        final: torch.Tensor,
        aux: list[torch.Tensor] | None,
        num_sampled: torch.Tensor,
        slot_mappings: dict[str, torch.Tensor],
    ) -> None:
        """Sends the rows of the pass that has just been sampled; all tensors are the device's."""
        plan = getattr(self._scheduled, PLAN_ATTRIBUTE, None)
        if self.exporter is not None and plan is not None:
            num_tokens = input_batch.num_scheduled_tokens.tolist()
            self.exporter.export(
                plan,
                computed_by(self._scheduled, input_batch.req_ids, num_tokens),
                aux,
                final,
                input_ids=input_batch.input_ids,
                num_sampled=num_sampled,
                bonus=self.req_states.last_sampled_tokens[input_batch.idx_mapping].flatten(),
                slots=lambda layer: slot_mappings[self._layer_names[layer]],
            )

    def take_draft_token_ids(self) -> None:
        # vLLM's own answer would be K placeholders for each request, to be verified as drafts.
        return None


def put_drafts(
    table: torch.Tensor, drafts: Mapping[str, Sequence[int]], slots: Mapping[str, int]
) -> None:
    """Writes each request's drafts to its row of ``table``, int64 [max_num_reqs, K].

    A shorter proposal is filled up with zeros, which the runner never reads: it takes as many
    tokens of a row as the scheduler's output has drafts. vLLM's scheduler marks placeholders by
    −1; they are to be rejected, and get 0, because no embedding has a row −1.
    """
    width = table.shape[1]
    rows = [
        [slots[request_id], *(max(token, 0) for token in tokens), *[0] * (width - len(tokens))]
        for request_id, tokens in drafts.items()
    ]
    # One copy to the device, and nothing waits for it. The function is looked up in its module at
    # each call, since the CPU worker puts another one there.
    on_device = torch_utils.async_tensor_h2d(rows, device=table.device, dtype=table.dtype)
    table[on_device[:, 0]] = on_device[:, 1:]


class _NoSpeculator(BaseSpeculator):
    """Where V2 calls its drafter: it is asked after every pass, and nobody reads its answer."""

    supports_mm_inputs = False
    draft_logits = None
    """None: each draft is a point mass to the rejection sampler."""

    def __init__(self, unread: torch.Tensor, export: Callable[..., None]) -> None:
        self._unread = unread  # [max_num_reqs, K]
        self._export = export

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        pass

    def capture(self) -> None:
        pass

    def propose(
        self,
        input_batch: InputBatch,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: torch.Tensor,
        aux_hidden_states: list[torch.Tensor] | None,
        num_sampled: torch.Tensor,
        *_: Any,
        dummy_run: bool = False,
        **__: Any,
    ) -> torch.Tensor:
        """Returns what the runner keeps as drafts until the scheduler's come, [num_reqs, K]."""
        if not dummy_run:
            self._export(
                input_batch, last_hidden_states, aux_hidden_states, num_sampled, slot_mappings
            )
        return self._unread[: input_batch.num_reqs]
