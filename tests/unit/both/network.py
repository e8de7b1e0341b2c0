"""A verifier's state and its drafters, joined by a network that a test disturbs.

The verifier's end does what verifier/pipeline.py and verifier/control.py do with commands and
messages; the drafter's end is the real Session and Pipelining with the target as its own draft.
Every message goes through the codec.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from paceline import codec
from paceline.drafter.pipelining import Pipelining
from paceline.drafter.session import Session
from paceline.messages import (
    PROTOCOL_VERSION,
    Branches,
    Close,
    Commit,
    Committed,
    Message,
    Open,
    Proposal,
    Reopen,
    Sampling,
    Welcome,
)
from paceline.scheduler.branching import Ranking
from paceline.scheduler.config import SpeculationConfig
from paceline.scheduler.events import (
    BranchArrived,
    Command,
    DrafterJoined,
    DrafterLost,
    Event,
    PassEnded,
    PassStarted,
    ProposalArrived,
    ReopenAsked,
    RequestAdmitted,
    RequestClosed,
    SendClose,
    SendCommit,
    SendOpen,
    StepAsked,
    StepPlan,
    TokensCommitted,
)
from paceline.scheduler.state import PipelineState
from paceline.trace import DISABLED
from tests.unit.drafter.playing import Played
from tests.unit.wire import hello

VOCABULARY = 5
FANOUT = 3


def truth(handle: int, position: int) -> int:
    """The token that the target chooses for ``position``, whatever was drafted."""
    return (handle * 7 + position * position + position // 3) % VOCABULARY


def prompt_of(handle: int, size: int) -> tuple[int, ...]:
    """The handle stands first, so that a text tells whose it is."""
    return (handle, *(truth(handle, position) for position in range(1, size)))


def target_ranking(text: list[int]) -> Ranking:
    """The target as its own draft: its choice first, then the others."""
    right = truth(text[0], len(text))
    chances = (0.8, 0.1, 0.05, 0.03, 0.02)
    tokens = [(right + offset) % VOCABULARY for offset in range(VOCABULARY)]
    return list(zip(tokens, chances, strict=True))


def careless_ranking(text: list[int]) -> Ranking:
    """Wrong at every third position, and then the target's choice comes second."""
    ranking = target_ranking(text)
    if len(text) % 3 == 0:
        (right, most), (other, less) = ranking[:2]
        ranking[:2] = [(other, most), (right, less)]
    return ranking


@dataclass
class Drafter:
    """One incarnation of a drafter, and what is under way from and to it."""

    name: str
    session: Session
    pipelining: Pipelining
    model: Played
    to_it: deque[bytes] = field(default_factory=deque)
    from_it: deque[bytes] = field(default_factory=deque)
    told: set[tuple[int, int, tuple[int, ...]]] = field(default_factory=set)
    """Handle, length and tokens of all that it has ever proposed."""

    def send(self, message: Message) -> bool:
        """The link that ``Pipelining`` sends over."""
        match message:
            case Proposal():
                self.told |= {(p.handle, p.base_length, tuple(p.tokens)) for p in message.proposals}
            case Branches():
                self.told |= {(b.handle, b.base_length, tuple(b.tokens)) for b in message.branches}
        self.from_it.append(packed(message))
        return True

    def step(self) -> bool:
        """One turn of the drafter's loop; returns whether there was work."""
        worked = self.pipelining.step([(self, self.session)])
        for branching in self.session.branchings.values():
            branching.validate()
        return worked


def packed(message: Message) -> bytes:
    """One string of the message's frames."""
    head, body = codec.encode(message)
    return bytes(head) + bytes(body)


def unpacked(data: bytes) -> Message:
    return codec.decode([data[:4], data[4:]])


class Network:
    """One verifier, and drafters by name."""

    def __init__(self) -> None:
        self.config = SpeculationConfig(mode="pipelined", fanout=FANOUT)
        self.state = PipelineState(self.config)
        self.now = 100.0
        self.drafters: dict[str, Drafter] = {}
        self.num_incarnations = 0
        self.told: set[tuple[int, int, tuple[int, ...]]] = set()
        """What all drafters have ever proposed."""
        self.num_went_on: Counter[int] = Counter()
        """Decode passes by handle that went on with a drafter."""
        self.num_proposed: Counter[int] = Counter()
        self.num_accepted: Counter[int] = Counter()

    def feed(self, event: Event) -> StepPlan | None:
        """Tells the state of an event, and carries out what it answers."""
        plan: StepPlan | None = None
        commits: dict[str, list[Committed]] = {}
        for command in self.state.handle(event):
            if isinstance(command, StepPlan):
                plan = command
            else:
                self._send(command, commits)
        for name, group in commits.items():
            self._post(name, Commit(commits=group, verify_s=self.state.verify_s or 0.0))
        self.state.validate()
        return plan

    def _send(self, command: Command, commits: dict[str, list[Committed]]) -> None:
        match command:
            case SendOpen():
                message = Open(
                    handle=command.handle,
                    prompt_ids=list(command.prompt_ids),
                    output_ids=list(command.output_ids),
                    block_hashes=[],
                    num_computed_tokens=0,
                    sampling=Sampling(temperature=0.0, top_k=0, top_p=1.0),
                )
                self._post(command.drafter, message)
            case SendCommit():
                commits.setdefault(command.drafter, []).append(
                    Committed(
                        handle=command.handle,
                        base_length=command.base_length,
                        num_drafted=command.num_drafted,
                        num_accepted=command.num_accepted,
                        num_ready=command.num_ready,
                        tokens=list(command.tokens),
                    )
                )
            case SendClose():
                self._post(command.drafter, Close(handles=[command.handle]))

    def _post(self, name: str, message: Message) -> None:
        if name in self.drafters:
            self.drafters[name].to_it.append(packed(message))

    def join(self, name: str, k: int, max_requests: int, model: Played) -> None:
        """A new incarnation: what was under way to and from the old one is gone."""
        self.num_incarnations += 1
        session = Session(hello=hello(name), model=model, clock=lambda: self.now, silence_limit=1e9)
        pipelining = Pipelining(model, DISABLED, clock=lambda: self.now)
        drafter = Drafter(name, session, pipelining, model, told=self.told)
        self.drafters[name] = drafter
        session.take(
            Welcome(
                protocol_version=PROTOCOL_VERSION,
                incarnation=9,
                vocab_size=1000,
                num_speculative_tokens=k,
                max_model_len=1 << 20,
                data_parallel_rank=0,
                max_branches=FANOUT,
            )
        )
        self.feed(
            DrafterJoined(
                drafter=name, method="m", max_requests=max_requests, num_speculative_tokens=k
            )
        )

    def lose(self, name: str) -> None:
        if self.drafters.pop(name, None) is not None:
            self.feed(DrafterLost(drafter=name))

    def deliver_to(self, drafter: Drafter, index: int = 0) -> None:
        """The drafter takes in one of the messages under way to it."""
        data = drafter.to_it[index]
        del drafter.to_it[index]
        answer = drafter.session.take(unpacked(data))
        if answer is not None:
            drafter.send(answer)

    def deliver_from(self, drafter: Drafter, index: int = 0) -> None:
        """The verifier takes in one of the messages under way from it."""
        data = drafter.from_it[index]
        del drafter.from_it[index]
        match unpacked(data):
            case Proposal() as message:
                for proposed in message.proposals:
                    self.feed(
                        ProposalArrived(
                            drafter=drafter.name,
                            handle=proposed.handle,
                            base_length=proposed.base_length,
                            tokens=tuple(proposed.tokens),
                            now=self.now,
                            spent=message.spent_s,
                        )
                    )
            case Branches() as message:
                for branch in message.branches:
                    self.feed(
                        BranchArrived(
                            drafter=drafter.name,
                            handle=branch.handle,
                            base_length=branch.base_length,
                            num_outcome=branch.num_outcome,
                            tokens=tuple(branch.tokens),
                        )
                    )
            case Reopen() as message:
                for handle in message.handles:
                    self.feed(ReopenAsked(drafter=drafter.name, handle=handle))
            case other:
                raise AssertionError(other)

    def settle(self, limit: int = 10_000) -> None:
        """Enough time: all that is under way arrives, and drafters draft all that they want."""
        for _ in range(limit):
            busy = False
            for drafter in self.drafters.values():
                while drafter.to_it:
                    self.deliver_to(drafter)
                for request in list(drafter.model.unready):
                    drafter.model.prepare(request)
                busy |= drafter.step()
                while drafter.from_it:
                    busy = True
                    self.deliver_from(drafter)
                busy |= bool(drafter.to_it)
            if not busy:
                return
        raise AssertionError("it never settles")

    def admit(self, handle: int, size: int, draftable: bool = True) -> None:
        self.feed(
            RequestAdmitted(handle=handle, prompt_ids=prompt_of(handle, size), draftable=draftable)
        )

    def abort(self, handle: int) -> None:
        self.feed(RequestClosed(handle=handle))

    def ask(self, decodes: list[int], prefill_ready: bool) -> StepPlan:
        plan = self.feed(
            StepAsked(now=self.now, decodes=tuple(decodes), prefill_ready=prefill_ready)
        )
        assert plan is not None
        return plan

    def start(self, handles: list[int], cut: int | None = None) -> dict[int, tuple[int, ...]]:
        """A pass begins; returns its drafts, no more than ``cut`` of each request. Those that are
        prefilled have none."""
        self.feed(PassStarted(now=self.now))
        requests = {handle: self.state.requests[handle] for handle in handles}
        return {h: r.proposal[:cut] if r.output_ids else () for h, r in requests.items()}

    def end(self, drafts: dict[int, tuple[int, ...]], seconds: float) -> None:
        """The pass has its outcome; requests that were aborted meanwhile have none."""
        self.now += seconds
        self.feed(PassEnded(now=self.now))
        for handle, proposal in drafts.items():
            request = self.state.requests.get(handle)
            if request is None:
                continue
            num_accepted = 0
            while num_accepted < len(proposal) and proposal[num_accepted] == truth(
                handle, request.length + num_accepted
            ):
                num_accepted += 1
            tokens = [truth(handle, request.length + n) for n in range(num_accepted + 1)]
            self.num_went_on[handle] += request.drafter is not None and bool(request.output_ids)
            self.num_proposed[handle] += len(proposal)
            self.num_accepted[handle] += num_accepted
            self.feed(
                TokensCommitted(
                    handle=handle,
                    num_drafted=len(proposal),
                    num_accepted=num_accepted,
                    tokens=tuple(tokens),
                    now=self.now,
                )
            )
