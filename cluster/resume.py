"""Going on with an output file that an earlier run did not finish.

Each finished line carries a fingerprint of what it was made of. So the file itself says whether it
belongs to this input and these options, and nothing has to lie beside it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paceline.cluster.inputs import BrokenLine, Prompt, read_prompts
from paceline.cluster.output import OutputFile
from paceline.errors import InputError
from paceline.verifier.config import TargetConfig

FREE_ENGINE_ARGS = {
    *("block_size", "cpu_offload_gb", "cudagraph_capture_sizes", "disable_cascade_attn"),
    *("disable_custom_all_reduce", "disable_log_stats", "download_dir", "enable_chunked_prefill"),
    *("enable_log_requests", "enable_prefix_caching", "enforce_eager", "gpu_memory_utilization"),
    *("kv_offloading_backend", "kv_offloading_size", "long_prefill_token_threshold"),
    *("max_cudagraph_capture_size", "max_num_batched_tokens", "max_parallel_loading_workers"),
    *("num_gpu_blocks_override", "safetensors_load_strategy", "stream_interval"),
    *("use_tqdm_on_load", "watermark"),
}
"""vLLM's arguments that say where and how fast something is computed, and not what. All others, and
those that are not known here, count as changing the output."""

_REST_OF_ERROR = re.compile(rb'(?:[^"\\]|\\.)*(?:\\|"\}?)?', re.DOTALL)
"""What may stand behind ``"error": "`` in a line that was cut off."""


def fingerprint(target: TargetConfig, prompt: Prompt, sampling: dict[str, Any]) -> str:
    """Returns 16 hexadecimal digits over what decides the output: the target's ``model``,
    ``dtype``, ``max_model_len`` and ``engine_args``, the prompt and the sampling.

    What must be free to change between two runs is left out: drafters, memory, threads,
    ``max_num_seqs``, ``tensor_parallel_size``, and of ``engine_args`` the ``FREE_ENGINE_ARGS``.
    They can change the rounding at most, as the load does.
    """
    engine_args = sorted(
        (name, repr(value))
        for name, value in target.engine_args.items()
        if name not in FREE_ENGINE_ARGS
    )
    made_of = [
        *(target.model, target.dtype, target.max_model_len, engine_args),
        *(prompt.prompt, prompt.messages, sampling),
    ]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode("ascii")).hexdigest()[:16]


def take_up(source: Path, output: OutputFile, fingerprint_of: Callable[[Prompt], str]) -> set[str]:
    """Keeps the finished lines of ``output``; returns their ids.

    Lines with an error, and a last line that was cut off, are taken out, to be tried again.

    Raises:
        InputError: ids of ``source`` are not unique, or ``output`` holds anything but results of
            its prompts as they are now, whole or cut off. Nothing is changed then.
    """
    finished: dict[str, str] = {}
    failed: set[str] = set()
    torn: bytes | None = None
    has_end = True
    for line in _read_lines(output.path):
        has_end = line.raw.endswith(b"\n")
        if line.kind == "torn":
            torn = line.raw
        elif line.kind == "failed":
            failed.add(line.id)
        elif line.id in finished:
            raise InputError(
                f"{output.path} holds two results for '{line.id}'; delete one of the two lines"
            )
        else:
            finished[line.id] = line.fingerprint
    is_torn_ours = _check(source, output.path, finished, failed, torn, fingerprint_of)
    if torn is not None and not is_torn_ours:
        raise InputError(
            f"the last line of {output.path} has no end and is no beginning of a result for "
            f"{source} with these options; delete it, or name another --output"
        )
    if failed or torn is not None or not has_end:
        kept = (line for line in _read_lines(output.path) if line.kind == "finished")
        output.put(line.raw.rstrip(b"\n") + b"\n" for line in kept)
    return set(finished)


def _check(
    source: Path,
    output: Path,
    finished: dict[str, str],
    failed: set[str],
    torn: bytes | None,
    fingerprint_of: Callable[[Prompt], str],
) -> bool:
    """Raises ``InputError`` unless all lines are of ``source``; returns whether ``torn`` is."""
    first_with: dict[str, int] = {}
    is_torn_ours = False
    for prompt in read_prompts(source):
        if prompt.id in first_with:
            raise InputError(
                f"lines {first_with[prompt.id]} and {prompt.line} of {source} have the same id "
                f"'{prompt.id}'; --resume needs one of its own in each line"
            )
        first_with[prompt.id] = prompt.line
        before = finished.get(prompt.id)
        now = fingerprint_of(prompt) if isinstance(prompt, Prompt) else ""
        if before is not None and before != now:
            raise InputError(
                f"{output} holds a result for '{prompt.id}' with another prompt, target or "
                "sampling; resume with what it was begun with, or name another --output"
            )
        is_torn_ours |= torn is not None and _begins(torn, prompt, now)
    for name in (finished.keys() | failed) - first_with.keys():
        raise InputError(
            f"{output} holds a result for '{name}', which {source} does not have; resume with the "
            "input that it was begun with, or name another --output"
        )
    return is_torn_ours


def _begins(torn: bytes, prompt: Prompt | BrokenLine, fingerprint: str) -> bool:
    """Whether ``torn`` can be the beginning of an output line for ``prompt``."""
    result = _opening({"id": prompt.id, "fingerprint": fingerprint, "text": ""})
    if isinstance(prompt, Prompt) and (torn.startswith(result) or result.startswith(torn)):
        return True
    error = _opening({"id": prompt.id, "error": ""})
    if torn.startswith(error):
        return _REST_OF_ERROR.fullmatch(torn, len(error)) is not None
    return error.startswith(torn)


def _opening(line: dict[str, str]) -> bytes:
    """Returns the bytes of ``line`` up to where its last value begins."""
    return json.dumps(line, ensure_ascii=False).encode().removesuffix(b'"}')


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """One line of an output."""

    raw: bytes
    kind: Literal["finished", "failed", "torn"]
    id: str = ""
    fingerprint: str = ""


def _read_lines(output: Path) -> Iterator[_Line]:
    """Yields each line; ``torn`` is the last one, if it has no end and is not whole."""
    try:
        with output.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                try:
                    value = json.loads(raw)
                except (ValueError, RecursionError):
                    value = None
                match value:
                    case {"id": str(name), "text": str(), "fingerprint": str(made)}:
                        yield _Line(raw=raw, kind="finished", id=name, fingerprint=made)
                    case {"id": str(name), "error": str(), **rest} if not rest:
                        yield _Line(raw=raw, kind="failed", id=name)
                    case None if not raw.endswith(b"\n"):
                        yield _Line(raw=raw, kind="torn")
                    case _:
                        raise InputError(
                            f"line {number} of {output} is no result of paceline generate; delete "
                            "it, or name another --output"
                        )
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise InputError(f"the output {output} cannot be read: {reason}") from error
