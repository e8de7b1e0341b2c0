"""The measuring itself: the contenders of a group take turns, block by block."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from paceline.bench.matrix import Contender, Load
from paceline.bench.store import Difference, Measurement, RequestRecord, Store
from paceline.cluster.inputs import Prompt
from paceline.cluster.runtime import Runtime, unwrapped
from paceline.drafter.scripted_answers import Answer, write_answers
from paceline.errors import InputError, RequestFailedError
from paceline.verifier.engine import GenerationRequest

BLOCK_ROUNDS = 4
"""Prompts of a block for each request under way. Small, so that a change of the machine's speed
hits all contenders; not smaller, since at a block's end fewer requests than asked for run."""

WARM_UP_TOKENS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """What scripted drafters need: they know plain decoding's answers."""

    contenders: frozenset[str]
    """Who drafts by it."""
    path: Path
    """The file of answers."""


class Contest:
    """Measures one group, whose targets are running."""

    def __init__(
        self,
        *,
        group: int,
        contenders: Sequence[Contender],
        runtime: Runtime,
        prompts: Sequence[Prompt],
        max_tokens: int,
        store: Store,
        script: Script,
        finished: Callable[[int], None],
    ) -> None:
        """Takes the running targets.

        Args:
            contenders: The group, plain decoding first.
            finished: Called with the number of measurements that were finished.
        """
        self._group = group
        self._contenders = contenders
        self._plain = str(contenders[0])
        self._runtime = runtime
        self._prompts = prompts
        self._max_tokens = max_tokens
        self._store = store
        self._script = script
        self._finished = finished
        self._numbers = itertools.count()
        self._prompt_ids: dict[int, list[int]] = {}
        """Tokens of the prompts, by their place in the workload."""
        self._gaps: dict[tuple[int, ...], float | None] = {}
        """Top-two gaps of plain decoding, by the tokens before them."""
        self._answers: dict[Load, list[Answer]] = {}
        """Plain decoding's, for scripted drafters."""

    def warm_up(self, concurrency: int) -> None:
        """Lets every target run once, so that no measurement pays for what is done only once."""
        for contender in self._contenders:
            sampling = {"max_tokens": WARM_UP_TOKENS, "temperature": 0}
            actor = self._runtime.targets[str(contender)]
            with unwrapped():
                ray.get(
                    [
                        actor.generate.remote(self._request(sampling, prompt="Hello"))
                        for _ in range(concurrency)
                    ]
                )

    def run(self, load: Load, repeat: int) -> None:
        """Measures what is not in the store yet, of one load and repeat."""
        missing = [str(c) for c in self._contenders if self._find(str(c), load, repeat) is None]
        if self._script.contenders.intersection(missing):
            self._write_answers(load)
        seconds = dict.fromkeys(missing, 0.0)
        records: dict[str, list[RequestRecord]] = {name: [] for name in missing}
        for number, block in enumerate(self._blocks(load)):
            for name in _rotated(missing, repeat + number):
                taken, answers = self._run_block(name, block, load)
                seconds[name] += taken
                records[name].extend(answers)
        for name in missing:  # plain decoding is the first one, and the others look it up
            measurement = Measurement(
                group=self._group,
                contender=name,
                concurrency=load.concurrency,
                temperature=load.temperature,
                repeat=repeat,
                seconds=seconds[name],
                requests=records[name],
                differences=self._differences(name, load, repeat, records[name]),
            )
            self._store.add(measurement)
        if missing:
            self._finished(len(missing))

    def _write_answers(self, load: Load) -> None:
        """Writes what plain decoding answers under this load, which a tie may make another answer.

        It runs once more for this, unmeasured: whoever comes first in a block differs, and so the
        measured answers would come too late for some.
        """
        if load not in self._answers:
            everything = range(len(self._prompts))
            _, records = self._run_block(self._plain, everything, load)
            self._answers[load] = [
                Answer(prompt_ids=self._prompt_ids[place], token_ids=record.token_ids)
                for place, record in enumerate(records)
                if record.error is None
            ]
        write_answers(self._script.path, self._answers[load])

    def _find(self, name: str, load: Load, repeat: int) -> Measurement | None:
        return self._store.find(self._group, name, load.concurrency, load.temperature, repeat)

    def _blocks(self, load: Load) -> Iterator[range]:
        size = BLOCK_ROUNDS * load.concurrency
        for start in range(0, len(self._prompts), size):
            yield range(start, min(start + size, len(self._prompts)))

    def _run_block(self, name: str, block: range, load: Load) -> tuple[float, list[RequestRecord]]:
        """Runs the prompts of these places; returns the wall time and their records, in order."""
        actor = self._runtime.targets[name]
        records: dict[int, RequestRecord] = {}
        waiting = iter(block)
        pending: dict[Any, int] = {}
        started = time.monotonic()
        while True:
            for place in itertools.islice(waiting, load.concurrency - len(pending)):
                pending[actor.generate.remote(self._prompt_request(place, load))] = place
            if not pending:
                break
            done, _ = ray.wait(list(pending), timeout=1.0)
            for ref in done:
                place = pending.pop(ref)
                records[place] = self._record(place, ref)
            self._runtime.check_drafters()  # without its drafter a contender would be plain
        taken = time.monotonic() - started
        return taken, [records[place] for place in block]

    def _record(self, place: int, ref: Any) -> RequestRecord:
        prompt_id = self._prompts[place].id
        try:
            with unwrapped():
                result = ray.get(ref)
        except (InputError, RequestFailedError) as error:
            return RequestRecord(id=prompt_id, error=str(error))
        self._prompt_ids[place] = result["prompt_token_ids"]
        return RequestRecord(
            id=prompt_id,
            token_ids=result["token_ids"],
            seconds_to_first_token=result["seconds_to_first_token"],
            events=[(round(seconds, 6), num_new) for seconds, num_new in result["events"]],
            counts=result["speculation"],
        )

    def _prompt_request(self, place: int, load: Load) -> GenerationRequest:
        prompt = self._prompts[place]
        own = {"temperature": load.temperature, "max_tokens": self._max_tokens}
        return self._request(
            {**prompt.sampling, **own}, prompt=prompt.prompt, messages=prompt.messages
        )

    def _request(self, sampling: dict[str, Any], **prompt: Any) -> GenerationRequest:
        return GenerationRequest(
            request_id=f"bench-{next(self._numbers)}", sampling=sampling, detailed=True, **prompt
        )

    def _differences(
        self, name: str, load: Load, repeat: int, records: list[RequestRecord]
    ) -> list[Difference] | None:
        """Compares with plain decoding; two samples are not compared."""
        if name == self._plain or load.temperature > 0:
            return None
        plain = self._find(self._plain, load, repeat)
        assert plain is not None, "it was measured before"
        found = []
        for place, (ours, theirs) in enumerate(zip(records, plain.requests, strict=True)):
            if ours.error is not None or theirs.error is not None:
                continue
            position = first_difference(ours.token_ids, theirs.token_ids)
            if position is not None:
                gap = self._gap([*self._prompt_ids[place], *theirs.token_ids[:position]])
                found.append(Difference(id=ours.id, position=position, top_two_gap=gap))
        return found

    def _gap(self, tokens: list[int]) -> float | None:
        """Returns the gap between plain decoding's two best tokens behind ``tokens``."""
        key = tuple(tokens)
        if key not in self._gaps:
            sampling = {"max_tokens": 1, "temperature": 0, "logprobs": 2}
            request = self._request(sampling, prompt_token_ids=tokens)
            try:
                with unwrapped():
                    result = ray.get(self._runtime.targets[self._plain].generate.remote(request))
            except InputError:  # no room for one more token
                self._gaps[key] = None
            else:
                self._gaps[key] = result["top_two_gaps"][0]
        return self._gaps[key]


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Returns the first position at which two outputs differ, None if they are equal."""
    pairs = enumerate(itertools.zip_longest(ours, theirs))
    return next((position for position, (a, b) in pairs if a != b), None)


def _rotated(names: list[str], turn: int) -> list[str]:
    """Returns the names from another one on at each turn: nobody always runs behind the same."""
    start = turn % len(names) if names else 0
    return names[start:] + names[:start]
