"""Measures drafts in vLLM's own speculation, the draft in the target's process.

    python -m paceline.training.acceptance_vllm --target smollm2-135m-instruct --draft FOLDER \\
        --method eagle3 --num-speculative-tokens 4 --output acceptance.jsonl mt_bench.jsonl …

One line of the output is a set of prompts at a temperature; what is there already is not measured
again. On a CPU vLLM's V1 model runner is used, which does not have ``dspark``: V2 needs Triton.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from paceline import models
from paceline.errors import EnvironmentError_, InputError, UserError
from paceline.training.acceptance import (
    Counts,
    Measurement,
    append_result,
    count,
    digest,
    read_results,
    table,
)
from paceline.training.prompt_rows import Row, Source, read_rows

METHODS = ("draft_model", "eagle3", "mtp", "dflash", "dspark")
MAX_MODEL_LEN = 2048
"""Tokens of a request, for targets that have so many positions."""
BATCH = 16
KV_CACHE_BYTES = 2 << 30
"""Room for ``BATCH`` requests of full length; one that is preempted could not be counted."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the measurement; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        _measure(options)
    except UserError as error:
        print(f"paceline: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m paceline.training.acceptance_vllm")
    parser.add_argument("workloads", nargs="+", type=Path, help="JSON lines of prompts")
    parser.add_argument("--target", default="smollm2-135m-instruct")
    parser.add_argument("--draft", required=True, help="an alias or a folder")
    parser.add_argument("--method", required=True, choices=METHODS)
    parser.add_argument("--num-speculative-tokens", type=int, default=4, metavar="K")
    parser.add_argument("--temperatures", type=_numbers, default=[0.0, 1.0], metavar="T,T")
    parser.add_argument("--num-prompts", type=int, default=20, help="of each file, evenly spaced")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--output", type=Path, required=True, help="JSON lines, added to")
    return parser


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def _measure(options: argparse.Namespace) -> None:
    target = Path(models.resolve_target(options.target, options.dtype))
    draft = Path(models.resolve(options.draft, options.dtype))
    if not draft.is_dir():
        raise InputError(f"the draft {options.draft} is no folder here: fetch it first")
    wanted = [
        Measurement(
            draft=draft.name,
            weights=digest(draft),
            method=options.method,
            k=options.num_speculative_tokens,
            dtype=options.dtype,
            workload=path.stem,
            temperature=temperature,
            num_prompts=options.num_prompts,
            max_tokens=options.max_tokens,
        )
        for temperature in options.temperatures
        for path in options.workloads
    ]
    rows = {path.stem: chosen(path, options.num_prompts) for path in options.workloads}
    room = prompt_room(target, options.max_tokens, options.num_speculative_tokens)
    found = {one.key: one for one in read_results(options.output)}
    left = [key for key in wanted if key not in found]
    engine: Any = _engine(target, draft, options) if left else None
    for number, key in enumerate(left, start=1):
        print(
            f"paceline: {key.workload} at temperature {key.temperature:g} "
            f"({number} of {len(left)})",
            file=sys.stderr,
            flush=True,
        )
        started = time.process_time()
        tokenizer = engine.get_tokenizer()
        prompts = [prompt_ids(tokenizer, row, room) for row in rows[key.workload]]
        counts = run(engine, prompts, key.temperature, key.max_tokens, key.k)
        seconds = round(time.process_time() - started, 2)
        result = msgspec.structs.replace(key, counts=counts, cpu_s=seconds)
        append_result(options.output, result)
        found[key] = result
    print(table(found[key] for key in wanted))


def chosen(path: Path, num_prompts: int) -> list[Row]:
    """Returns ``num_prompts`` of the file's prompts, evenly spaced; all if it has no more.

    Raises:
        InputError: the file cannot be read, or a line is no prompt.
    """
    rows = read_rows(Source(file=str(path)), seed=0)
    step = max(1, len(rows) / num_prompts)
    return [rows[int(i * step)] for i in range(min(num_prompts, len(rows)))]


def max_model_len(target: str | Path) -> int:
    """Returns the most tokens of a request to a target, a folder or a hub id."""
    if not Path(target).is_dir():
        return MAX_MODEL_LEN
    positions: int = models.read_config(target).get("max_position_embeddings") or MAX_MODEL_LEN
    return min(MAX_MODEL_LEN, positions)


def prompt_room(target: str | Path, max_tokens: int, k: int) -> int:
    """Returns the most tokens of a prompt whose answer has ``max_tokens``.

    Raises:
        InputError: there is no room for one.
    """
    room = max_model_len(target) - max_tokens - k - 1
    if room < 1:
        raise InputError(
            f"answers of {max_tokens} tokens leave no room for prompts in the "
            f"{max_model_len(target)} tokens of a request: measure shorter ones"
        )
    return room


def prompt_ids(tokenizer: Any, row: Row, room: int) -> list[int]:
    """Returns a prompt's last ``room`` tokens, chat template included."""
    ids = tokenizer.apply_chat_template(row.messages, add_generation_prompt=True, return_dict=False)
    return list(ids)[-room:]


def run(
    engine: Any, prompts: list[list[int]], temperature: float, max_tokens: int, k: int
) -> Counts:
    """Completes all prompts, given as tokens, and adds up their passes."""
    from vllm import SamplingParams

    sampling = [SamplingParams(temperature=temperature, max_tokens=max_tokens) for _ in prompts]
    inputs = [{"prompt_token_ids": ids} for ids in prompts]
    total = Counts.none(k)
    for output in engine.generate(inputs, sampling, use_tqdm=sys.stderr.isatty()):
        completion = output.outputs[0]
        passes = completion.spec_decode_metrics
        length = len(completion.token_ids)
        total.add(count(length, passes.per_step_drafted, passes.per_step_accepted, k))
    return total


def cannot_run(method: str, *, on_cpu: bool) -> str:
    """Returns why vLLM does not draft by ``method`` here; "" if it does."""
    if method == "dspark" and on_cpu and os.environ.get("VLLM_USE_V2_MODEL_RUNNER") != "1":
        return "vLLM has dspark in its V2 model runner only, which needs Triton"
    return ""


def _engine(target: Path, draft: Path, options: argparse.Namespace) -> Any:
    speculation: dict[str, Any] = {
        "method": options.method,
        "num_speculative_tokens": options.num_speculative_tokens,
    }
    if options.method == "mtp":
        from paceline.training.assemble import assembled

        target = assembled(target, draft)
    else:
        speculation["model"] = str(draft)
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_NO_USAGE_STATS="1",
        TOKENIZERS_PARALLELISM="false",
    )
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Only now: vLLM reads the environment when it is imported.
    import torch
    from vllm import LLM

    on_cpu = not torch.cuda.is_available()
    if on_cpu:
        os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
        if reason := cannot_run(options.method, on_cpu=True):
            raise EnvironmentError_(f"{reason}: measure on a GPU")
    engine = LLM(
        model=str(target),
        dtype=options.dtype,
        max_model_len=max_model_len(target),
        max_num_seqs=BATCH,
        enforce_eager=on_cpu,
        async_scheduling=False,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=KV_CACHE_BYTES,
        distributed_executor_backend="uni",
        speculative_config=speculation,
        per_request_spec_decode_metrics="detailed",
    )
    if on_cpu:
        from paceline.verifier.vllm_sampling import repair_v1_sampling

        # Else vLLM divides the logits of drafted rows by a temperature that was never written.
        repair_v1_sampling()
    return engine


if __name__ == "__main__":
    sys.exit(main())
