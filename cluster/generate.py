"""``paceline generate``: prompts in, texts out, optionally beside plain decoding."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray

from paceline.cluster import resume
from paceline.cluster.config import load_config
from paceline.cluster.inputs import BrokenLine, Prompt, open_prompts
from paceline.cluster.output import OutputFile
from paceline.cluster.report import HEADER, Comparison, Totals, row, summary, with_rates
from paceline.cluster.runtime import (
    Runtime,
    drafted_side,
    plain_side,
    unwrapped,
)
from paceline.cluster.tracing import check_trace, traced
from paceline.errors import (
    ConfigError,
    InputError,
    PacelineError,
    RequestFailedError,
    UserError,
)
from paceline.verifier.engine import GenerationRequest

TIE = 1e-4
"""Two logits (here: log probabilities) closer than this are a tie; float32 does not decide it."""


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit code: 1 if some lines failed, else 0."""
    config = load_config(arguments.config)
    defaults = _defaults(arguments)
    _check_output(arguments)
    trace = Path(arguments.trace) if arguments.trace is not None else None
    check_trace(trace, arguments.output)
    _check_record(config.speculation.record, arguments)

    def fingerprint_of(prompt: Prompt) -> str:
        return resume.fingerprint(config.target, prompt, {**defaults, **prompt.sampling})

    if arguments.prompt is not None and (
        not arguments.prompt.strip() or not _is_utf8(arguments.prompt)
    ):
        raise InputError("the prompt is empty or no valid UTF-8; write what to complete")
    with ExitStack() as stack:
        output = _open_output(arguments, stack)
        if arguments.prompt is not None:
            total = 1
            prompts: Iterable[Prompt | BrokenLine] = [
                Prompt(
                    line=0, id="prompt", messages=[{"role": "user", "content": arguments.prompt}]
                )
            ]
        else:
            source = Path(arguments.input)
            total, prompts = open_prompts(source)
            if arguments.resume:
                assert output is not None, "checked above"
                done = resume.take_up(source, output, fingerprint_of)
                _say(f"{len(done)} of {total} lines are done already")
                total -= len(done)
                if total == 0:
                    return 0
                prompts = (prompt for prompt in prompts if prompt.id not in done)
        lines = _writer(arguments, output)
        sides = [drafted_side(config), *([plain_side(config)] if arguments.compare else [])]
        parts = stack.enter_context(traced(trace, _say))
        runtime = stack.enter_context(Runtime(config, sides=sides, progress=_say, trace=parts))
        job = _Job(runtime, config.target.max_num_seqs, defaults, total, lines, fingerprint_of)
        job.run(prompts)
    print(summary(job.drafted, job.comparison), file=sys.stderr)
    if job.num_broken:
        _say(f"{job.num_broken} of {total} lines failed")
    return 1 if job.num_broken else 0


def _defaults(arguments: argparse.Namespace) -> dict[str, Any]:
    if not 1 <= arguments.max_tokens < 1 << 31:
        raise ConfigError(f"--max-tokens is {arguments.max_tokens}, it must be at least 1")
    if arguments.seed is not None and not -(1 << 31) <= arguments.seed < 1 << 31:
        raise ConfigError(f"--seed is {arguments.seed}, it must fit 32 bits")
    if not 0 <= arguments.temperature <= 2:
        raise ConfigError(f"--temperature is {arguments.temperature}, it lies between 0 and 2")
    defaults = {"max_tokens": arguments.max_tokens, "temperature": arguments.temperature}
    if arguments.seed is not None:
        defaults["seed"] = arguments.seed
    return defaults


def _check_output(arguments: argparse.Namespace) -> None:
    """Refuses an output that is the input, and what ``--resume`` cannot go on with."""
    if arguments.resume and (arguments.output is None or arguments.input is None):
        raise ConfigError("--resume goes on with a file; name it with --output, and --input")
    if arguments.output is None or arguments.input is None:
        return
    path, source = Path(arguments.output), Path(arguments.input)
    if source.exists():
        if path.exists() and path.samefile(source):
            raise ConfigError(f"the output {path} is the input, which would be lost; name another")
        if arguments.resume and not source.is_file():
            raise ConfigError(f"--resume reads the input twice, and {source} is no file")


def _check_record(record: str | None, arguments: argparse.Namespace) -> None:
    """Refuses a recording, which replaces its file, where that would cost another one."""
    for name in ("config", "input", "output", "trace"):
        path = getattr(arguments, name)
        if record is not None and path is not None:
            if Path(record).resolve() == Path(path).resolve():
                raise ConfigError(
                    f"speculation.record is {record}, which is --{name}; name another"
                )


def _open_output(arguments: argparse.Namespace, stack: ExitStack) -> OutputFile | None:
    """Returns the output, which is this run's alone; None: results go to the screen."""
    if arguments.output is None:
        return None
    output = OutputFile(Path(arguments.output), replace=arguments.overwrite)
    stack.enter_context(output)
    if output.holds_something() and not (arguments.resume or arguments.overwrite):
        raise ConfigError(
            f"the output {output.path} holds something already; add --resume to go on with it, "
            "--overwrite to replace it, or name another file"
        )
    return output


def _writer(
    arguments: argparse.Namespace, output: OutputFile | None
) -> Callable[[dict[str, Any]], None]:
    """Returns what takes each finished line."""
    if output is not None:
        print(HEADER, file=sys.stderr)
    escape = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"

    def write(line: dict[str, Any]) -> None:
        if output is not None:
            output.write(json.dumps(line, ensure_ascii=False))
            if "text" in line:
                print(row(line), file=sys.stderr)
            return
        try:
            if arguments.prompt is not None:
                print(line.get("text", ""), flush=True)
            else:
                print(json.dumps(line, ensure_ascii=escape), flush=True)
        except BrokenPipeError:
            raise
        except OSError as error:
            reason = (error.strerror or "").lower()
            raise ConfigError(f"the output (stdout) cannot be written: {reason}") from error

    return write


class _Job:
    """Feeds the prompts to the target, a window at a time, and hands on what comes back."""

    def __init__(
        self,
        runtime: Runtime,
        window: int,
        defaults: dict[str, Any],
        total: int,
        write: Callable[[dict[str, Any]], None],
        fingerprint_of: Callable[[Prompt], str],
    ) -> None:
        self._runtime = runtime
        self._drafted = runtime.targets["target"]
        self._plain = runtime.targets.get("plain")
        self._window = window
        self._defaults = defaults
        self._total = total
        self._write = write
        self._fingerprint_of = fingerprint_of
        self._num_sent = 0
        self._last_progress = time.monotonic()
        self.num_broken = 0
        self.drafted = Totals()
        self.comparison = Comparison() if self._plain is not None else None

    def run(self, prompts: Iterable[Prompt | BrokenLine]) -> None:
        """Runs all prompts."""
        good = self._without_broken(prompts)
        if self.comparison is None:
            self._runtime.begin_trace()
            for prompt, result in self._stream(self._drafted, good, self.drafted, "done"):
                self._finish(prompt, result, None)
            return
        for actor in (self._drafted, self._plain):
            self._warm_up(actor)
        self._runtime.begin_trace()
        # Block by block on both sides, so that a machine whose speed drifts treats them alike.
        while block := list(itertools.islice(good, self._window)):
            drafted = dict(self._stream(self._drafted, block, self.drafted, "done with drafts"))
            plain = dict(self._stream(self._plain, block, self.comparison.plain, "done plainly"))
            for prompt in block:
                self._finish(prompt, drafted[prompt], plain[prompt])

    def _without_broken(self, prompts: Iterable[Prompt | BrokenLine]) -> Iterator[Prompt]:
        for prompt in prompts:
            if isinstance(prompt, Prompt):
                yield prompt
            else:
                self._fail(prompt.line, prompt.id, prompt.reason)

    def _stream(
        self, actor: Any, prompts: Iterable[Prompt], totals: Totals, what: str
    ) -> Iterator[tuple[Prompt, dict[str, Any] | PacelineError]]:
        """Keeps up to two windows in flight: one runs, one is ready to be admitted.

        ``what`` has become of a finished request, for the progress.
        """
        waiting = iter(prompts)
        pending: dict[Any, Prompt] = {}
        started = time.monotonic()
        while True:
            for prompt in itertools.islice(waiting, 2 * self._window - len(pending)):
                pending[self._send(actor, prompt)] = prompt
            if not pending:
                break
            done, _ = ray.wait(list(pending), timeout=1.0)
            for ref in done:
                prompt = pending.pop(ref)
                try:
                    with unwrapped():
                        result: dict[str, Any] = ray.get(ref)
                except (InputError, RequestFailedError) as error:
                    yield prompt, error
                    continue
                totals.add(result)
                yield prompt, result
            totals.seconds += time.monotonic() - started
            started = time.monotonic()
            self._report_drafters()
            self._show_progress(totals, what)
        totals.seconds += time.monotonic() - started

    def _send(self, actor: Any, prompt: Prompt, **sampling: Any) -> Any:
        self._num_sent += 1
        request = GenerationRequest(
            request_id=f"generate-{self._num_sent}",
            prompt=prompt.prompt,
            messages=prompt.messages,
            sampling={**self._defaults, **prompt.sampling, **sampling},
        )
        return actor.generate.remote(request)

    def _warm_up(self, actor: Any) -> None:
        prompt = Prompt(line=0, id="warm-up", prompt="Hello")
        with unwrapped():
            ray.get(self._send(actor, prompt, max_tokens=4))

    def _finish(
        self,
        prompt: Prompt,
        result: dict[str, Any] | PacelineError,
        plain: dict[str, Any] | PacelineError | None,
    ) -> None:
        if isinstance(result, PacelineError):
            self._fail(prompt.line, prompt.id, str(result))
            return
        # The first three in this order: `resume` knows by them a line that was cut off.
        line = {
            "id": prompt.id,
            "fingerprint": self._fingerprint_of(prompt),
            "text": result["text"],
            "token_ids": result["token_ids"],
            "finish_reason": result["finish_reason"],
            "usage": result["usage"],
            "speculation": with_rates(result["speculation"]),
        }
        if isinstance(plain, dict):
            line["equal_to_plain"] = self._compare(prompt, result, plain)
        self._write(line)
        self._last_progress = time.monotonic()

    def _compare(self, prompt: Prompt, result: dict[str, Any], plain: dict[str, Any]) -> bool:
        assert self.comparison is not None
        self.comparison.compared += 1
        if result["token_ids"] == plain["token_ids"]:
            self.comparison.equal += 1
            return True
        pairs = itertools.zip_longest(result["token_ids"], plain["token_ids"])
        position = next(i for i, (ours, theirs) in enumerate(pairs) if ours != theirs)
        sampling = {**self._defaults, **prompt.sampling}
        if sampling["temperature"] > 0:
            self.comparison.differences.append(
                f"{prompt.id} differs from token {position + 1} on, as two samples do"
            )
            return False
        with unwrapped():
            again = ray.get(self._send(self._plain, prompt, logprobs=2))
        gaps = again["top_two_gaps"]
        if position < len(gaps) and gaps[position] < TIE:
            self.comparison.ties += 1
        gap = f"{gaps[position]:.2g}" if position < len(gaps) else "an unknown distance"
        self.comparison.differences.append(
            f"{prompt.id} differs from token {position + 1} on, where plain decoding's two best "
            f"tokens are {gap} apart in log probability"
        )
        return False

    def _fail(self, line: int, line_id: str, reason: str) -> None:
        self.num_broken += 1
        where = f"line {line}: " if line else ""
        _say(f"{where}{reason}")
        if line:
            self._write({"id": line_id, "error": reason})

    def _report_drafters(self) -> None:
        try:
            self._runtime.check_drafters()
        except UserError as error:
            _say(f"{error}; its requests go on undrafted")

    def _show_progress(self, totals: Totals, what: str) -> None:
        if time.monotonic() - self._last_progress >= 5:
            self._last_progress = time.monotonic()
            _say(
                f"{totals.requests} of {self._total} {what} after {totals.seconds:.0f} s, "
                f"{totals.tokens} tokens"
            )


def _is_utf8(text: str) -> bool:
    """Whether ``text`` has no byte of the command line that was no UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _say(text: str) -> None:
    print(f"paceline: {text}", file=sys.stderr, flush=True)
