"""vLLM's scheduler, with drafts from elsewhere: they go in here, and the outcomes come out.

What is hooked, all of it in ``vllm/v1/core/sched/scheduler.py`` of vLLM 0.32:

| here                   | why                           |
|------------------------|-------------------------------|
| ``schedule``           | drafts in, requests held back |
| ``update_from_output`` | the outcome of a pass         |
| ``_preempt_request``   | blocks are free again         |
| ``_free_request``      | the end of a request          |
| ``reset_prefix_cache`` | drafters forget, too          |
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler

from paceline.messages import Sampling
from paceline.verifier.assembly import SETTINGS_KEY, EngineSettings, build_pipeline
from paceline.verifier.pipeline import Admission, Step
from paceline.verifier.rows_plan import PLAN_ATTRIBUTE
from paceline.verifier.stop_strings import BEFORE, before_pass

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request


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
        self._sends_rows = settings.rows is not None
        self._allow_seeded = settings.speculation.allow_nondeterministic_seed
        self._outcomes: dict[str, _Outcome] = {}
        self._closed_reports: dict[str, dict[str, Any] | None] = {}
        self._admission_blocked = False
        self._pass_started = 0.0
        self._tracer = settings.tracer()
        self._pipeline = build_pipeline(
            settings,
            vocab_size=vllm_config.model_config.get_vocab_size(),
            max_model_len=self.max_model_len,
            num_speculative_tokens=self.num_spec_tokens,
            hidden_size=vllm_config.model_config.get_hidden_size(),
            num_layers=vllm_config.model_config.get_total_num_hidden_layers(),
            num_kv_heads=vllm_config.model_config.get_total_num_kv_heads(),
            block_size=self.hash_block_size,
            tracer=self._tracer,
        )
        self._pipeline.start()

    def shutdown(self) -> None:
        self._pipeline.stop()
        self._tracer.close()
        super().shutdown()

    # The step: decide, then act.

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        started = time.monotonic()
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
        if self._sends_rows:
            plan = self._pipeline.rows_plan(output.num_scheduled_tokens)
            setattr(output, PLAN_ATTRIBUTE, plan)
        if output.total_num_scheduled_tokens:
            self._pipeline.pass_started()
            self._pass_started = time.monotonic()
            self._tracer.span("scheduler", "schedule", started, self._pass_started)
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
            return False  # see vllm_sampling.py
        seeded = sampling.seed is not None and sampling.temperature > 0
        return not seeded or self._allow_seeded

    # The outcome, and the end.

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        started = time.monotonic()
        if scheduler_output.total_num_scheduled_tokens:
            self._pipeline.pass_ended()
        self._outcomes = _read_outcomes(scheduler_output, model_runner_output)
        before = self._reports_before()
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(
            scheduler_output, model_runner_output
        )
        for request_id, outcome in self._outcomes.items():
            request = self.requests.get(request_id)
            length = self._pipeline.length(request_id)
            if request is not None and length is not None:
                tokens = request.all_token_ids[length:]
                hashes = request.block_hashes if self._sends_rows else ()
                self._pipeline.commit(
                    request_id, outcome.num_drafted, outcome.num_accepted, tokens, hashes
                )
        self._outcomes = {}
        self._pipeline.flush()
        self._attach_reports(outputs, before)
        if self._tracer.enabled and scheduler_output.total_num_scheduled_tokens:
            self._trace_pass(scheduler_output, started)
        return outputs

    def _trace_pass(self, scheduler_output: SchedulerOutput, ended: float) -> None:
        drafts = scheduler_output.scheduled_spec_decode_tokens.values()
        self._tracer.span(
            "target",
            "verify",
            self._pass_started,
            ended,
            num_requests=len(scheduler_output.num_scheduled_tokens),
            num_tokens=scheduler_output.total_num_scheduled_tokens,
            num_drafted=sum(len(tokens) for tokens in drafts),
        )
        self._tracer.span("scheduler", "update", ended, time.monotonic())

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

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        # Also on sleep and on an update of the weights.
        done: bool = super().reset_prefix_cache(*args, **kwargs)
        if self._sends_rows:
            self._pipeline.forget_rows()
        return done

    def _reports_before(self) -> dict[str, dict[str, Any]]:
        """Returns the counts before this pass of the requests that a stop string may end."""
        reports = {}
        for request_id in self._outcomes:
            request = self.requests.get(request_id)
            report = self._pipeline.report(request_id)
            if request is not None and request.sampling_params.stop and report is not None:
                reports[request_id] = before_pass(report, request.num_output_tokens)
        return reports

    def _attach_reports(
        self, outputs: dict[int, EngineCoreOutputs], before: dict[str, dict[str, Any]]
    ) -> None:
        """Sends each request's counts with its tokens; ``before``: see ``_reports_before``.

        They travel in ``kv_transfer_params``, the one free-form field that vLLM hands through from
        the engine's process to the request's output.
        """
        for engine_outputs in outputs.values():
            for output in engine_outputs.outputs:
                report = self._closed_reports.get(output.request_id) or self._pipeline.report(
                    output.request_id
                )
                if report is not None:
                    if output.request_id in before:
                        report[BEFORE] = before[output.request_id]
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
