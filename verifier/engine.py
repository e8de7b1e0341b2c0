"""The target: vLLM's ``AsyncLLM`` with Paceline's scheduler and worker, or plain for comparison."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from paceline.errors import ConfigError, EngineDeadError, InputError, UserError
from paceline.messages import RowNeeds
from paceline.scheduler.config import SpeculationConfig
from paceline.transport import TransportConfig, probe_bind
from paceline.verifier import preflight
from paceline.verifier.assembly import SETTINGS_KEY, EngineSettings
from paceline.verifier.colocated import ColocatedSpeculation, read_counts
from paceline.verifier.config import TargetConfig
from paceline.verifier.environment import MODEL_RUNNER
from paceline.verifier.logs import root_cause, write_logging_config
from paceline.verifier.record_file import check_record
from paceline.verifier.rows_offer import RowsOffer, rows_addresses, union
from paceline.verifier.stop_strings import final_counts

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.outputs import RequestOutput


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine needs to take drafts; without it the engine decodes plainly."""

    num_speculative_tokens: int
    """The most draft tokens per request and pass, over all drafters."""
    control: str
    key_file: str | None
    config: SpeculationConfig
    transport: TransportConfig
    trace_folder: str | None = None
    """Where the engine's process writes its part of a trace; None: there is no trace."""
    rows: RowNeeds | None = None
    """The states of the target that drafters may ask for, the union over all; None: none."""

    def rows_offer(self, num_ranks: int) -> RowsOffer | None:
        """Returns what the engine can send, and from where.

        Raises:
            ConfigError: beside ``control`` there is no room for further addresses.
        """
        needs = union([self.rows])
        if needs is None:
            return None
        try:
            addresses = rows_addresses(self.control, num_ranks)
        except ValueError as error:
            raise ConfigError(
                f"transport.control is {self.control}, and no address for the target's states fits "
                f"beside it; choose a shorter path or a lower port ({error})"
            ) from error
        return RowsOffer(needs=needs, addresses=addresses)


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt to complete: exactly one of the three forms is given."""

    request_id: str
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    """OpenAI chat messages; the target's own chat template is applied."""
    prompt_token_ids: list[int] | None = None
    sampling: dict[str, Any] = {}
    """Arguments of vLLM's ``SamplingParams``."""
    detailed: bool = False
    """Whether the result has ``events`` and ``prompt_token_ids``, too."""


class VerifierEngine:
    """One vLLM engine. ``start`` loads it; all methods belong to one asyncio loop."""

    def __init__(
        self,
        target: TargetConfig,
        speculation: Speculation | ColocatedSpeculation | None,
        run_folder: Path,
        name: str,
    ) -> None:
        self._target = target
        self._speculation = speculation
        self._run_folder = run_folder
        self._name = name
        self._engine: Any = None
        self._log = run_folder / f"{name}.log"

    async def start(self) -> None:
        """Loads the target; returns when it can serve.

        Raises:
            UserError: the configuration, the model or the machine does not allow it.
            EngineDeadError: vLLM failed for a reason that is not the user's.
        """
        resolved = preflight.check_target(self._target)
        if isinstance(self._speculation, Speculation):
            probe_bind(self._speculation.control)
            offer = self._speculation.rows_offer(self._target.tensor_parallel_size)
            for address in offer.addresses if offer else ():
                probe_bind(address)
            if self._speculation.config.record is not None:
                check_record(self._speculation.config.record)
        logging_config, self._log = write_logging_config(self._run_folder, self._name)
        os.environ["VLLM_LOGGING_CONFIG_PATH"] = str(logging_config)
        # Only now: vLLM reads the environment when it is imported.
        from vllm.v1.engine.async_llm import AsyncLLM

        try:
            self._engine = AsyncLLM.from_engine_args(self._engine_args(resolved))
        except UserError:
            raise
        except Exception as error:  # vLLM raises whatever its parts do; the log has the cause
            raise self._explain(error) from error

    def _has_tokenizer(self) -> bool:
        return not self._target.engine_args.get("skip_tokenizer_init", False)

    def _engine_args(self, resolved: str) -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform

        target = self._target
        preflight.check_engine_args(target, preflight.known_engine_args())
        arguments: dict[str, Any] = {
            "model": resolved,
            "dtype": target.dtype,
            "tensor_parallel_size": target.tensor_parallel_size,
            "max_model_len": target.max_model_len,
            "max_num_seqs": target.max_num_seqs,
            "async_scheduling": False,
            "disable_log_stats": True,
        }
        kv_cache_gib = target.kv_cache_gib
        if current_platform.is_cpu():
            # V2 needs Triton there, which is rare; a GPU gets what vLLM itself chooses.
            os.environ.setdefault(MODEL_RUNNER, "0")
            kv_cache_gib = kv_cache_gib or preflight.CPU_KV_CACHE_GIB
            arguments["distributed_executor_backend"] = (
                "uni" if target.tensor_parallel_size == 1 else "mp"
            )
            # Compilation takes minutes on a CPU and gains little there.
            arguments["enforce_eager"] = True
            self._check_memory(kv_cache_gib)
        if kv_cache_gib is not None:
            arguments["kv_cache_memory_bytes"] = int(kv_cache_gib * (1 << 30))
        arguments.update(target.engine_args)
        match self._speculation:
            case Speculation() as speculation:
                arguments.update(self._speculative_args(resolved, speculation))
            case ColocatedSpeculation() as colocated:
                arguments["speculative_config"] = colocated.resolved(target.dtype)
                arguments["per_request_spec_decode_metrics"] = "detailed"
        return AsyncEngineArgs(**arguments)

    def _check_memory(self, kv_cache_gib: float) -> None:
        import psutil

        available = psutil.virtual_memory().available / (1 << 30)
        needed = kv_cache_gib * self._target.tensor_parallel_size
        if needed > available:
            raise ConfigError(
                f"target.kv_cache_gib asks for {needed:g} GiB of KV cache, but this machine has "
                f"{available:.1f} GiB of memory free; lower it"
            )

    def _speculative_args(self, resolved: str, speculation: Speculation) -> dict[str, Any]:
        from paceline.verifier.vllm_check import check_vllm
        from paceline.verifier.vllm_sampling import accept_undrafted_parameters

        check_vllm()
        accept_undrafted_parameters()
        fingerprint = preflight.tokenizer_fingerprint(resolved) if self._has_tokenizer() else ""
        settings = EngineSettings(
            model=self._target.model,
            tokenizer_fingerprint=fingerprint,
            control=speculation.control,
            key_file=speculation.key_file,
            speculation=speculation.config,
            transport=speculation.transport,
            process=f"verifier {self._name}",
            trace_folder=speculation.trace_folder,
            rows=speculation.rows_offer(self._target.tensor_parallel_size),
        )
        num_tokens = speculation.num_speculative_tokens
        return {
            "scheduler_cls": "paceline.verifier.vllm_hooks.PipelineScheduler",
            "worker_cls": "paceline.verifier.vllm_worker.PipelineWorker",
            "additional_config": {SETTINGS_KEY: settings.to_dict()},
            # The carrier: switches vLLM's rejection sampler on, brings no model and no look-ahead
            # slots. Its own drafts are never asked for.
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": num_tokens,
                "prompt_lookup_min": 1,
                "prompt_lookup_max": 1,
                # One row: without it vLLM pads requests that re-enter with placeholder drafts.
                "num_speculative_tokens_per_batch_size": [
                    (1, self._target.max_num_seqs, num_tokens)
                ],
            },
        }

    def _explain(self, error: Exception) -> Exception:
        name, text = root_cause(self._log) or (type(error).__name__, " ".join(str(error).split()))
        # vLLM's own advice names arguments that are not the user's here.
        text = text.partition(" Try ")[0].rstrip(".")
        if "KV cache" in text or "max_model_len" in text or "max seq len" in text:
            return ConfigError(
                f"the target {self._target.model} does not fit: {text} (set target.kv_cache_gib, "
                "target.max_model_len or target.max_num_seqs)"
            )
        if name in ("ConfigError", "ModelError", "EnvironmentError_"):
            return ConfigError(text)
        return EngineDeadError(
            f"vLLM could not start the target {self._target.model}: {name}: {text} "
            f"(log: {self._log})"
        )

    async def generate(self, request: GenerationRequest) -> dict[str, Any]:
        """Completes one prompt; returns ``text, token_ids, finish_reason, usage, speculation``,
        and ``top_two_gaps`` (per token, of the log probabilities) if two or more were asked for.
        A detailed request also gets ``prompt_token_ids``, and ``events``: for each output of the
        engine the seconds since this call and the number of new tokens in it.

        Cancelling the task aborts the request in the engine.

        Raises:
            InputError: this prompt or its sampling parameters cannot be served.
            EngineDeadError: the engine has died.
        """
        started = time.monotonic()
        events: list[tuple[float, int]] = []
        num_tokens = 0
        output: RequestOutput | None = None
        async for output in self.stream(request):
            num_new = len(output.outputs[0].token_ids) - num_tokens
            if num_new:
                events.append((time.monotonic() - started, num_new))
                num_tokens += num_new
        assert output is not None and output.finished
        result = _result(output, self._counts(output))
        result["seconds"] = time.monotonic() - started
        result["seconds_to_first_token"] = events[0][0] if events else None
        if request.detailed:
            result["events"] = events
            result["prompt_token_ids"] = list(output.prompt_token_ids or ())
        return result

    async def stream(self, request: GenerationRequest) -> AsyncIterator[RequestOutput]:
        """Completes one prompt; yields vLLM's outputs, each with all tokens so far.

        Closing the iterator aborts the request in the engine. Raises as ``generate`` does.
        """
        from vllm.exceptions import VLLMValidationError
        from vllm.v1.engine.exceptions import EngineDeadError as VllmEngineDeadError
        from vllm.v1.engine.exceptions import EngineGenerateError

        prompt, sampling = self._prompt(request), self._sampling(request)
        try:
            async for output in self._engine.generate(prompt, sampling, request.request_id):
                yield output
        except (VLLMValidationError, ValueError, OverflowError, EngineGenerateError) as error:
            # vLLM's input processor checks the prompt and raises the first two; numbers that its
            # wire does not take come as the others.
            raise InputError(_first_argument(error)) from error
        except VllmEngineDeadError as error:
            name, text = root_cause(self._log) or ("cause", "unknown, it may have been killed")
            raise EngineDeadError(
                f"the target's engine has died ({name}: {text}); its log is {self._log}"
            ) from error

    def _counts(self, output: RequestOutput) -> dict[str, Any] | None:
        completion = output.outputs[0]
        if not isinstance(self._speculation, ColocatedSpeculation):
            report = (output.kv_transfer_params or {}).get(SETTINGS_KEY)
            if report is None:
                return None
            # A stop token's reason is a number.
            ended_by_string = isinstance(completion.stop_reason, str)
            return final_counts(report, len(completion.token_ids), ended_by_string)
        metrics = completion.spec_decode_metrics
        if metrics is None:  # vLLM sends none behind a stop string
            return None
        return read_counts(metrics, self._speculation.speculative_config["method"])

    def _prompt(self, request: GenerationRequest) -> Any:
        if request.prompt_token_ids is not None:
            return {"prompt_token_ids": request.prompt_token_ids}
        if request.prompt is not None:
            return request.prompt
        tokenizer = self._engine.get_tokenizer()
        try:
            text = tokenizer.apply_chat_template(
                request.messages, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template is a program: it may raise anything
            raise InputError(
                f"the target's chat template does not take these messages: {error}"
            ) from error
        # The template writes the special tokens itself.
        return {"prompt_token_ids": tokenizer(text, add_special_tokens=False)["input_ids"]}

    def _sampling(self, request: GenerationRequest) -> SamplingParams:
        from vllm import SamplingParams
        from vllm.exceptions import VLLMValidationError
        from vllm.sampling_params import RequestOutputKind

        try:
            return SamplingParams(
                **{"output_kind": RequestOutputKind.CUMULATIVE, **request.sampling}
            )
        except (VLLMValidationError, ValueError, TypeError, OverflowError) as error:
            raise InputError(_first_argument(error)) from error

    async def close(self) -> None:
        """Ends the engine and its processes; may be called twice."""
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None


def _first_argument(error: Exception) -> str:
    """An error's sentence; vLLM's ``str`` adds the parameter and value that it names already."""
    if type(error).__name__ == "EngineGenerateError" and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return " ".join(str(error.args[0] if error.args else error).split()) or type(error).__name__


def _result(output: RequestOutput, counts: dict[str, Any] | None) -> dict[str, Any]:
    completion = output.outputs[0]
    num_prompt = len(output.prompt_token_ids or ())
    num_output = len(completion.token_ids)
    return {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
        },
        "speculation": counts,
        "top_two_gaps": [_top_two_gap(step) for step in completion.logprobs or ()],
    }


def _top_two_gap(step: dict[int, Any]) -> float:
    best = sorted((entry.logprob for entry in step.values()), reverse=True)
    return best[0] - best[1] if len(best) > 1 else float("inf")
