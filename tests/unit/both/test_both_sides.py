"""Verifier's state and real drafters over a network that loses, delays, doubles and reorders.

Whatever happens, what is committed is the target's own text, and what is verified continues it.
Once nothing disturbs any more, a draft that is always right is always accepted, and every pass ends
with a hit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from paceline.drafter.session import Session
from paceline.messages import Close
from paceline.scheduler.continuations import MAX_CONTINUATIONS
from tests.unit.both.network import (
    FANOUT,
    Drafter,
    Network,
    careless_ranking,
    prompt_of,
    target_ranking,
    truth,
    unpacked,
)
from tests.unit.drafter.playing import Played, PlayedLookup

NAMES = st.sampled_from(["a", "b"])
PLACES = st.integers(0, 5)
TURNS = st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(0, 5))
"""Messages to a drafter, its forwards, messages from it."""
Turns = list[tuple[int, int, int]]
MODELS: dict[str, Callable[[], Played]] = {
    "stepwise": lambda: Played(target_ranking),
    "lookup": lambda: PlayedLookup(target_ranking),
    "careless": lambda: Played(careless_ranking),
}
PASSES_TO_RECOVER = 6
"""At the worst: one until the drafter has the text, one behind it, one with what is left of guesses
whose proposal was lost, one that misses for that, and one that does not wait."""


class Disturbed(RuleBasedStateMachine):
    """Messages of one direction of a link stay in their order."""

    handles: Bundle[int] = Bundle("handles")
    any_order = False

    def __init__(self) -> None:
        super().__init__()
        self.network = Network()
        self.num_handles = 0
        self.running: dict[int, tuple[int, ...]] | None = None
        """Drafts of the pass that runs; None: none runs."""

    @initialize(
        target=handles,
        sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
        k=st.integers(1, 4),
        model=st.sampled_from(sorted(MODELS)),
    )
    def begin(self, sizes: list[int], k: int, model: str) -> MultipleResults[int]:
        """A drafter, and requests whose prefill is done."""
        self.join("a", k, 3, model)
        for size in sizes:
            self.admit(size, draftable=True)
        self.start(out=set(), prefills={0, 1, 2}, cut=None)
        self.end(0.03)
        return multiple(*self.network.state.requests)

    # Drafters come and go.

    @rule(
        name=NAMES,
        k=st.integers(1, 4),
        max_requests=st.integers(1, 3),
        model=st.sampled_from(sorted(MODELS)),
    )
    def join(self, name: str, k: int, max_requests: int, model: str) -> None:
        self.network.join(name, k, max_requests, MODELS[model]())

    @rule(name=NAMES)
    def lose(self, name: str) -> None:
        self.network.lose(name)

    @rule(name=NAMES, place=PLACES)
    def is_not_ready(self, name: str, place: int) -> None:
        for drafter in self.drafter(name):
            requests = list(drafter.session.requests.values())
            drafter.model.unready |= set(requests[place : place + 1])

    @rule(name=NAMES)
    def prepare(self, name: str) -> None:
        for drafter in self.drafter(name):
            drafter.model.unready.clear()

    # Messages are under way.

    @rule(name=NAMES, number=st.integers(1, 4), num_steps=st.integers(0, 6))
    def drafter_turn(self, name: str, number: int, num_steps: int) -> None:
        for drafter in self.drafter(name):
            for _ in range(min(number, len(drafter.to_it))):
                self.network.deliver_to(drafter)
            for _ in range(num_steps):
                drafter.step()

    @rule(name=NAMES, number=st.integers(1, 4))
    def verifier_hears(self, name: str, number: int) -> None:
        for drafter in self.drafter(name):
            for _ in range(min(number, len(drafter.from_it))):
                self.network.deliver_from(drafter)

    @rule(turns=st.lists(TURNS, max_size=3))
    def turns(self, turns: Turns) -> None:
        """Messages to the drafters, forwards, and messages from them, a few times."""
        for num_to, num_steps, num_from in turns:
            for name in list(self.network.drafters):
                self.drafter_turn(name, num_to, num_steps)
                self.verifier_hears(name, num_from)

    @rule(name=NAMES, to_it=st.booleans(), place=PLACES)
    def lose_message(self, name: str, to_it: bool, place: int) -> None:
        for queue in self.queue(name, to_it):
            # A close that is not taken is sent again: it is late, and never lost.
            if not isinstance(unpacked(queue[place % len(queue)]), Close):
                del queue[place % len(queue)]

    @rule(name=NAMES, to_it=st.booleans())
    def lose_all_messages(self, name: str, to_it: bool) -> None:
        for queue in self.queue(name, to_it):
            kept = [data for data in queue if isinstance(unpacked(data), Close)]
            queue.clear()
            queue.extend(kept)

    @rule(name=NAMES, to_it=st.booleans(), place=PLACES)
    def double_message(self, name: str, to_it: bool, place: int) -> None:
        for queue in self.queue(name, to_it):
            queue.insert(place % len(queue), queue[place % len(queue)])

    @precondition(lambda self: self.any_order)
    @rule(name=NAMES, to_it=st.booleans(), place=PLACES, other=PLACES)
    def reorder(self, name: str, to_it: bool, place: int, other: int) -> None:
        for queue in self.queue(name, to_it):
            one, two = place % len(queue), other % len(queue)
            queue[one], queue[two] = queue[two], queue[one]

    # Requests, and the target's passes.

    @rule(target=handles, size=st.integers(1, 4), draftable=st.booleans())
    def admit(self, size: int, draftable: bool) -> int:
        self.num_handles += 1
        self.network.admit(self.num_handles, size, draftable)
        return self.num_handles

    @rule(handle=consumes(handles))
    def abort(self, handle: int) -> None:
        self.network.abort(handle)

    @rule(
        before=st.lists(TURNS, max_size=2),
        during=st.lists(TURNS, max_size=3),
        seconds=st.sampled_from([0.001, 0.03, 1.0]),
        out=st.sets(PLACES, max_size=1),
    )
    def whole_pass(self, before: Turns, during: Turns, seconds: float, out: set[int]) -> None:
        """What runs ends; then a pass of all that could run, with something going on meanwhile."""
        if self.running is not None:
            self.end(seconds)
        self.turns(before)
        while self.running is None:
            self.start(out, prefills={0, 1}, cut=None)
        self.turns(during)
        self.end(seconds)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.1, 0.25, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.network.now += seconds

    @precondition(lambda self: self.running is None)
    @rule(
        out=st.sets(PLACES, max_size=2),
        prefills=st.sets(PLACES),
        cut=st.sampled_from([None, None, None, 0, 1]),
    )
    def start(self, out: set[int], prefills: set[int], cut: int | None) -> None:
        """``out`` are preempted: nothing of theirs runs. ``cut``: no room for more drafts."""
        requests = self.network.state.requests.items()
        decodes = [h for h, r in requests if r.output_ids]
        decodes = [handle for n, handle in enumerate(decodes) if n not in out]
        waiting = [h for h, r in requests if not r.output_ids]
        started = [handle for n, handle in enumerate(waiting) if n in prefills]
        plan = self.network.ask(decodes, prefill_ready=bool(started))
        if plan.wait_until is not None:
            assert not started, "a prefill waits"
            assert plan.wait_until > self.network.now
            self.network.now = plan.wait_until
            return
        assert not plan.held, "pipelined, nobody sits out a pass"
        self.running = self.network.start([*decodes, *started], cut)
        for handle, drafts in self.running.items():
            self.check_drafts(handle, drafts)

    @precondition(lambda self: self.running is not None)
    @rule(seconds=st.sampled_from([0.001, 0.03, 1.0]))
    def end(self, seconds: float) -> None:
        assert self.running is not None
        self.network.end(self.running, seconds)
        self.running = None

    @rule()
    def calm(self) -> None:
        """With enough time nothing is left of any disturbance after a few passes."""
        network = self.network
        for drafter in network.drafters.values():
            drafter.model.script = target_ranking
        if self.running is not None:
            self.end(0.03)
        for number in range(PASSES_TO_RECOVER + 4):
            before = {handle: r.counters.hits for handle, r in network.state.requests.items()}
            faults = self.undisturbed_pass()
            if number < PASSES_TO_RECOVER:
                continue
            assert not faults, faults
            for handle, request in network.state.requests.items():
                if request.drafter is not None:
                    assert request.counters.hits == before[handle] + 1, "it missed"
        network.settle()
        for name, drafter in network.drafters.items():
            if not self.any_order:
                expected = network.state.drafters[name].handles
                assert drafter.session.requests.keys() == expected, "it keeps what has ended"

    def undisturbed_pass(self) -> list[str]:
        """A pass with enough time, to wait for proposals and to draft while it runs; returns what
        is wrong with it."""
        network = self.network
        handles = list(network.state.requests)
        decodes = [h for h in handles if network.state.requests[h].output_ids]
        is_mixed = len(decodes) < len(handles)
        while network.ask(decodes, prefill_ready=is_mixed).wait_until is not None:
            network.now += 0.001
            network.settle()
        drafts = network.start(handles)
        lengths = {handle: network.state.requests[handle].length for handle in handles}
        network.settle()
        faults = [
            f"{name} reckons with another number of drafts for {handle}"
            for name, drafter in network.drafters.items()
            for handle, branching in drafter.session.branchings.items()
            if handle in drafts and branching.num_in_flight != len(drafts[handle])
        ]
        faults += [
            f"{handle} has {len(tokens)} drafts"
            for handle, tokens in drafts.items()
            if (request := network.state.requests[handle]).drafter is not None
            and len(tokens) != request.num_speculative_tokens
        ]
        network.end(drafts, 0.03)
        return faults + [
            f"right drafts of {handle} were not accepted"
            for handle, length in lengths.items()
            if network.state.requests[handle].length != length + len(drafts[handle]) + 1
        ]

    # What must hold.

    def drafter(self, name: str) -> list[Drafter]:
        return [self.network.drafters[name]] if name in self.network.drafters else []

    def queue(self, name: str, to_it: bool) -> list[deque[bytes]]:
        """The messages under way to or from a drafter, if there are any."""
        queues = [d.to_it if to_it else d.from_it for d in self.drafter(name)]
        return [queue for queue in queues if queue]

    def check_drafts(self, handle: int, drafts: tuple[int, ...]) -> None:
        request = self.network.state.requests[handle]
        assert len(drafts) <= request.num_speculative_tokens
        text = (*request.prompt_ids, *request.output_ids)
        wanted = (*text, *drafts)
        assert not drafts or any(
            (*text[:base], *tokens)[: len(wanted)] == wanted
            for known, base, tokens in self.network.told
            if known == handle
        ), "nobody proposed this behind this text"

    @invariant()
    def texts_are_the_target_s(self) -> None:
        for handle, request in self.network.state.requests.items():
            text = [*request.prompt_ids, *request.output_ids]
            assert text == true_text(handle, len(text))
        for drafter in self.network.drafters.values():
            for handle, known in drafter.session.requests.items():
                assert known.tokens == true_text(handle, len(known.tokens))

    @invariant()
    def both_sides_are_whole(self) -> None:
        self.network.state.validate()
        for drafter in self.network.drafters.values():
            check_session(drafter.session)
            assert drafter.model.requests == set(drafter.session.requests.values())

    @invariant()
    def nothing_grows_without_bounds(self) -> None:
        for request in self.network.state.requests.values():
            assert len(request.continuations._held) <= MAX_CONTINUATIONS
            assert len(request.asked) <= 64
        for drafter in self.network.drafters.values():
            assert len(drafter.session.outlook._missed) <= self.num_handles

    @invariant()
    def counters_agree(self) -> None:
        network = self.network
        for handle, request in network.state.requests.items():
            counters = request.counters
            assert min(counters.misses.values(), default=1) > 0
            assert counters.hits + sum(counters.misses.values()) == network.num_went_on[handle]
            assert counters.proposed == network.num_proposed[handle]
            assert counters.accepted == network.num_accepted[handle]
            if request.output_ids:
                assert len(request.output_ids) == 1 + counters.rounds + counters.accepted


def true_text(handle: int, length: int) -> list[int]:
    """The first token of a prompt is the handle."""
    return [*prompt_of(handle, 1), *(truth(handle, position) for position in range(1, length))]


def check_session(session: Session) -> None:
    assert session.branchings.keys() == session.requests.keys()
    for handle, branching in session.branchings.items():
        branching.validate()
        assert branching.due == session.requests[handle].due
        k = branching.k
        assert len(branching._branches) <= (k + 1) ** 2 * (FANOUT + 1)
        assert len(branching.trunk.rankings) <= 3 * (k + 1)


class AnyOrder(Disturbed):
    """No order at all, which no transport of ours does."""

    any_order = True


TestDisturbed = Disturbed.TestCase
TestDisturbed.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
