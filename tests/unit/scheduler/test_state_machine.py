"""All events in any order, with a careless drafter: nothing that must hold breaks.

The target is played by the rule ``step``, which does what the engine does: it asks for a plan, and
if the plan says run, it verifies the proposals and commits. Its true text is ``truth``.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from paceline.scheduler.events import Command, SendClose, SendCommit, SendOpen, StepPlan
from paceline.scheduler.plan import MAX_HOLDS_IN_ROW
from paceline.scheduler.state import PipelineState
from tests.unit.scheduler.story import PATIENCE, Story

DRAFTERS = st.sampled_from(["a", "b", "c"])
FEW_TOKENS = st.lists(st.integers(0, 2), max_size=4).map(tuple)


def truth(handle: int, position: int) -> int:
    """The token that the target chooses for ``position``, whatever was drafted."""
    return (handle * 7 + position * position) % 3


class AnyOrder(RuleBasedStateMachine):
    """Tokens are few, so that garbage agrees with the truth now and then."""

    handles: Bundle[int] = Bundle("handles")

    def __init__(self) -> None:
        super().__init__()
        self.story = Story()
        self.num_handles = 0
        self.knows: dict[str, dict[int, list[int]]] = {}
        """What each drafter that is here has been told; the far end of the commands."""
        self.passes_missed: dict[int, int] = {}
        self.sent: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        """Base length and tokens of every proposal, by handle."""

    @property
    def state(self) -> PipelineState:
        return self.story.state

    def carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            assert not isinstance(command, StepPlan)
            held = self.knows[command.drafter]
            match command:
                case SendOpen():
                    held[command.handle] = [*command.prompt_ids, *command.output_ids]
                case SendCommit():
                    assert len(held[command.handle]) == command.base_length, "a gap"
                    held[command.handle].extend(command.tokens)
                case SendClose():
                    held.pop(command.handle, None)

    @rule(drafter=DRAFTERS, max_requests=st.integers(1, 3))
    def join(self, drafter: str, max_requests: int) -> None:
        self.knows[drafter] = {}
        self.carry_out(self.story.join(drafter, max_requests))

    @rule(drafter=DRAFTERS)
    def lose(self, drafter: str) -> None:
        self.knows.pop(drafter, None)
        self.carry_out(self.story.lose(drafter))

    @rule(target=handles, size=st.integers(1, 4), draftable=st.booleans())
    def admit(self, size: int, draftable: bool) -> int:
        self.num_handles += 1
        handle = self.num_handles
        prompt = [truth(handle, position) for position in range(size)]
        self.carry_out(self.story.admit(handle, prompt, draftable))
        self.passes_missed[handle] = 0
        return handle

    @rule(handle=consumes(handles))
    def abort(self, handle: int) -> None:
        self.carry_out(self.story.close(handle))
        del self.passes_missed[handle]

    @rule(drafter=DRAFTERS, handle=handles, back=st.integers(0, 3), size=st.integers(0, 4))
    def propose_truly(self, drafter: str, handle: int, back: int, size: int) -> None:
        """Right drafts, for the present length or for one that has passed: late or doubled."""
        base = max(0, self.state.requests[handle].length - back)
        tokens = [truth(handle, base + offset) for offset in range(size)]
        self.propose(drafter, handle, base, tuple(tokens))

    @rule(
        drafter=DRAFTERS,
        handle=st.integers(1, 9),
        base=st.integers(0, 30),
        tokens=FEW_TOKENS,
    )
    def propose_garbage(
        self, drafter: str, handle: int, base: int, tokens: tuple[int, ...]
    ) -> None:
        self.propose(drafter, handle, base, tokens)

    def propose(self, drafter: str, handle: int, base: int, tokens: tuple[int, ...]) -> None:
        self.sent.setdefault(handle, []).append((base, tokens))
        assert self.story.propose(base, *tokens, handle=handle, drafter=drafter) == []

    @rule(drafter=DRAFTERS, handle=st.integers(1, 9))
    def reopen(self, drafter: str, handle: int) -> None:
        if drafter in self.knows:
            self.carry_out(self.story.reopen(handle, drafter))

    @rule(seconds=st.sampled_from([0.0, 0.01, PATIENCE / 2, PATIENCE, 10 * PATIENCE]))
    def time_passes(self, seconds: float) -> None:
        self.story.now += seconds

    @rule(prefills=st.sets(st.integers(0, 5)), prefill_ready=st.booleans())
    def step(self, prefills: set[int], prefill_ready: bool) -> None:
        decodes = [handle for handle, request in self.state.requests.items() if request.output_ids]
        started = [h for h, r in self.state.requests.items() if not r.output_ids]
        prefilled = [started[index] for index in prefills if index < len(started)]
        plan = self.story.plan(*decodes, prefill_ready=bool(prefilled) or prefill_ready)
        if plan.wait_until is not None:
            assert not prefilled and not prefill_ready, "a prefill waits"
            assert not plan.held
            dues = [self.state.requests[handle].due_since for handle in decodes]
            oldest = min(due for due in dues if due is not None)
            assert self.story.now < plan.wait_until <= oldest + PATIENCE + 1e-9
            self.story.now = plan.wait_until
            again = self.story.plan(*decodes, prefill_ready=False)
            assert again.wait_until is None, "it waits beyond the patience"
            plan = again
        for handle in prefilled:
            self.commit(handle, ())
        for handle in decodes:
            if handle in plan.held:
                self.passes_missed[handle] += 1
                assert self.passes_missed[handle] <= MAX_HOLDS_IN_ROW, "it is held for ever"
            else:
                self.passes_missed[handle] = 0
                self.commit(handle, self.state.requests[handle].proposal)

    def commit(self, handle: int, proposal: tuple[int, ...]) -> None:
        """Verifies ``proposal`` at the committed length, as the target does."""
        length = self.state.requests[handle].length
        num_accepted = 0
        for offset, token in enumerate(proposal):
            if token != truth(handle, length + offset):
                break
            num_accepted += 1
        tokens = [truth(handle, length + offset) for offset in range(num_accepted + 1)]
        self.carry_out(
            self.story.commit(
                *tokens, handle=handle, num_drafted=len(proposal), num_accepted=num_accepted
            )
        )

    @precondition(lambda self: self.state.requests)
    @invariant()
    def text_is_the_target_s(self) -> None:
        for handle, request in self.state.requests.items():
            text = [*request.prompt_ids, *request.output_ids]
            assert text == [truth(handle, position) for position in range(len(text))]

    @invariant()
    def a_proposal_starts_exactly_at_the_committed_length(self) -> None:
        for handle, request in self.state.requests.items():
            if not request.proposal:
                continue
            text = (*request.prompt_ids, *request.output_ids)
            assert any(
                (*text[:base], *tokens) == (*text, *request.proposal)
                for base, tokens in self.sent[handle]
                if base >= len(request.prompt_ids)
            ), "it is no proposal's continuation of this text"

    @invariant()
    def each_drafter_knows_the_text_of_its_requests(self) -> None:
        for name, drafter in self.state.drafters.items():
            for handle in drafter.handles:
                request = self.state.requests[handle]
                assert self.knows[name][handle] == [*request.prompt_ids, *request.output_ids]

    @invariant()
    def no_drafter_keeps_what_is_not_its_own(self) -> None:
        for name, held in self.knows.items():
            assert held.keys() == self.state.drafters[name].handles

    @invariant()
    def nobody_waits_for_a_drafter_while_there_is_room(self) -> None:
        room = any(len(d.handles) < d.max_requests for d in self.state.drafters.values())
        waiting = [r for r in self.state.requests.values() if r.draftable and r.drafter is None]
        assert not (room and waiting)

    @invariant()
    def counters_agree_with_the_text(self) -> None:
        for request in self.state.requests.values():
            counters = request.counters
            if request.output_ids:
                assert len(request.output_ids) == 1 + counters.rounds + counters.accepted


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
