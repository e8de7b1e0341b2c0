"""Everything that crosses a process boundary between a verifier and a drafter, in one file.

Each message is a MessagePack map (see ``codec.py``); unknown keys are ignored, so that a newer peer
may add some, missing or mistyped ones make the message a ``ProtocolError``.

| message         | from → to          | when                                                      |
|-----------------|--------------------|-----------------------------------------------------------|
| Hello           | drafter → verifier | first, and again whenever either side was restarted       |
| Welcome, Refuse | verifier → drafter | the answer to Hello                                       |
| Ping, Pong      | drafter → verifier | every ``heartbeat_ms``; Pong answers                      |
| Open            | verifier → drafter | a request is admitted, or handed over to this drafter     |
| Commit          | verifier → drafter | after each verification pass, all requests in one message |
| Proposal        | drafter → verifier | drafts, all requests of one draft batch in one message    |
| Branches        | drafter → verifier | drafts behind outcomes of the running pass, as made       |
| Reopen          | drafter → verifier | the drafter has lost track of a request                   |
| Close           | verifier → drafter | finished or aborted                                       |
| Flush           | verifier → drafter | weights updated, sleep, the prefix cache was reset        |

On the rows link, between a drafter and each rank of the target that sends rows:

| message         | from → to          | when                                                      |
|-----------------|--------------------|-----------------------------------------------------------|
| RowsHello       | drafter → rank     | first, and every ``heartbeat_ms``                         |
| RowsWelcome     | rank → drafter     | the answer; Refuse where it does not belong to this engine|
| Rows            | rank → drafter     | after each pass, one per request that the drafter has     |

Commit and Proposal carry a list because a pass and a draft batch serve many requests at once: one
message keeps them together, so that the drafter's next batch is the verifier's last pass.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec

PROTOCOL_VERSION = 1
"""Raised by every change that an older peer would misread."""

MAX_SPECULATIVE_TOKENS = 32
"""Upper limit of K. At an acceptance rate of 0.9 per token the 33rd draft is right in 3% of rounds,
and every draft costs a row of verification."""

MAX_SEQUENCE_TOKENS = 1 << 21
"""More tokens than any request may hold (2M); a longer list is a hostile message."""

MAX_BATCH_REQUESTS = 1 << 14
"""More requests than any pass may hold."""

MAX_BRANCHES = 256
"""Upper limit of the outcomes of one pass that are drafted behind, per request."""

MAX_SECONDS = 3600.0
"""The longest time that a message tells."""

MAX_REASON = 4096
"""Characters of a Refuse's reason."""

MAX_LAYERS = 64
"""More of the target's layers than any draft reads."""

MAX_ROWS = 1 << 16
"""More tokens than one pass computes of one request."""

ITEM_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a value of each dtype that rows may have."""

LayerId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 12)]
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Handle = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
Length = Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQUENCE_TOKENS)]
Tokens = Annotated[list[TokenId], msgspec.Meta(max_length=MAX_SEQUENCE_TOKENS)]
BlockHashes = Annotated[
    list[Annotated[bytes, msgspec.Meta(max_length=64)]],
    msgspec.Meta(max_length=MAX_SEQUENCE_TOKENS),
]
ShortText = Annotated[str, msgspec.Meta(max_length=1024)]
PathTokens = Annotated[
    list[TokenId], msgspec.Meta(min_length=2, max_length=2 * MAX_SPECULATIVE_TOKENS + 1)
]
Drafts = Annotated[list[TokenId], msgspec.Meta(max_length=MAX_SPECULATIVE_TOKENS)]


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all messages: immutable, keyword-only, slotted."""


class RowNeeds(_Message, frozen=True, kw_only=True):
    """Which of the target's states a draft method works from, for each position of the text."""

    aux_layers: Annotated[list[LayerId], msgspec.Meta(max_length=MAX_LAYERS)] = []
    """The residual stream that enters these layers, counted from 0 (so index i of Hugging Face's
    ``output_hidden_states``); they travel side by side, in this order, as tensor ``aux``."""
    final: bool = False
    """The output of the target's last norm, tensor ``final``."""
    kv_layers: Annotated[list[LayerId], msgspec.Meta(max_length=MAX_LAYERS)] = []
    """Layers whose keys and values, as they lie in the target's cache, travel as tensors
    ``key.<layer>`` and ``value.<layer>``."""


class RowsEndpoint(_Message, frozen=True, kw_only=True):
    """Where a rank of the target sends rows from."""

    address: ShortText
    rank: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]


class Hello(_Message, frozen=True, kw_only=True):
    """A drafter introduces itself."""

    protocol_versions: Annotated[list[int], msgspec.Meta(min_length=1, max_length=16)]
    """Versions that it speaks, any order; the verifier picks the highest common one."""
    drafter: ShortText
    """Name from the configuration, with the replica's number."""
    incarnation: Handle
    """Random, new at each start of the drafter's process."""
    method: ShortText
    """``ngram``, ``draft_model``, …"""
    vocab_size: Annotated[int, msgspec.Meta(ge=0)]
    """Rows of the draft's head, padding included; 0: drafts are copied from the text itself."""
    tokenizer_fingerprint: ShortText
    """SHA-256 of ``models.tokenizer_fingerprint``; "" where the draft brings no tokenizer."""
    num_speculative_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_SPECULATIVE_TOKENS)]
    """K: the most tokens that one of its proposals has."""
    max_requests: Annotated[int, msgspec.Meta(ge=1)]
    """How many requests it can hold at a time."""
    needs: RowNeeds | None = None
    """What it wants of the target's states; None: nothing but tokens."""
    hidden_size: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Of the target that the draft was made for; 0: any."""


class Welcome(_Message, frozen=True, kw_only=True):
    """The verifier takes the drafter in."""

    protocol_version: int
    incarnation: Handle
    """Random, new at each start of the verifier's engine."""
    vocab_size: Annotated[int, msgspec.Meta(ge=1)]
    """Rows of the target's head: a draft token must be below this."""
    num_speculative_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_SPECULATIVE_TOKENS)]
    """K to draft: the smaller of both sides' limits."""
    max_model_len: Length
    """Tokens that one of the target's requests may hold."""
    data_parallel_rank: int
    """Which of the target's data-parallel engines this is."""
    max_branches: Annotated[int, msgspec.Meta(ge=0, le=MAX_BRANCHES)] = 0
    """The most outcomes of one pass to draft behind at a time, per request; 0: none."""
    rows: Annotated[list[RowsEndpoint], msgspec.Meta(max_length=1024)] = []
    """Where the states come from that the drafter needs, one endpoint a rank; all are dialled."""
    block_size: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Tokens of one of ``Open.block_hashes``' blocks; 0: not told."""


class Refuse(_Message, frozen=True, kw_only=True):
    """The verifier will not work with this drafter."""

    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON)]
    """One sentence for the user."""


class Ping(_Message, frozen=True, kw_only=True):
    """The drafter is alive."""

    incarnation: Handle
    num_requests: Annotated[int, msgspec.Meta(ge=0)]
    """Requests that it holds."""


class Pong(_Message, frozen=True, kw_only=True):
    """So is the verifier; another incarnation than in Welcome means: say Hello again."""

    incarnation: Handle
    welcomed: bool
    """False: the verifier does not know this drafter (any more); say Hello again."""


class Sampling(_Message, frozen=True, kw_only=True):
    """What a drafter may want to know of a request's sampling."""

    temperature: float
    top_k: int
    """0: off"""
    top_p: float


class Open(_Message, frozen=True, kw_only=True):
    """Draft for this request from now on."""

    handle: Handle
    """Never used twice by one incarnation of the verifier."""
    prompt_ids: Tokens
    output_ids: Tokens
    """What is committed already; empty for a new request. Not empty: a proposal is welcome."""
    block_hashes: BlockHashes
    """The target's prefix-cache keys of the text's full blocks, first block first."""
    num_computed_tokens: Length
    """Prompt tokens that the target found in its prefix cache."""
    sampling: Sampling


class Committed(_Message, frozen=True, kw_only=True):
    """What one pass added to one request."""

    handle: Handle
    base_length: Length
    """Tokens (prompt and output) before this pass."""
    num_accepted: Annotated[int, msgspec.Meta(ge=0, le=MAX_SPECULATIVE_TOKENS)]
    """j: draft tokens accepted; 0 for an undrafted pass."""
    num_drafted: Annotated[int, msgspec.Meta(ge=0, le=MAX_SPECULATIVE_TOKENS)] = 0
    """Draft tokens that the pass verified."""
    num_ready: Annotated[int, msgspec.Meta(ge=0, le=MAX_SPECULATIVE_TOKENS)] = 0
    """Draft tokens for the new length that the verifier has already, from a branch: the next pass
    holds them. 0: a proposal is due."""
    tokens: Annotated[list[TokenId], msgspec.Meta(min_length=1, max_length=MAX_SEQUENCE_TOKENS)]
    """The accepted drafts and the bonus token, in order."""
    block_hashes: BlockHashes = []
    """Of the blocks that have become full since the last message on this request."""


class Commit(_Message, frozen=True, kw_only=True):
    """The outcome of a pass, for all requests of one drafter."""

    commits: Annotated[list[Committed], msgspec.Meta(max_length=MAX_BATCH_REQUESTS)]
    verify_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)] = 0.0
    """Seconds that a pass takes on average, the time that there is for branches; 0: not known."""
    sent_at: float = 0.0
    """When it was sent, in seconds of the verifier's monotonic clock; only differences mean
    something to the drafter."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.sent_at):
            raise ValueError("sent_at is not finite")


class Proposed(_Message, frozen=True, kw_only=True):
    """Drafts for one request."""

    handle: Handle
    base_length: Length
    """Tokens (prompt and output) that the drafts continue."""
    tokens: Drafts
    """At most K; empty: the drafter has nothing to propose at this length."""
    confidence: Annotated[list[float], msgspec.Meta(max_length=MAX_SPECULATIVE_TOKENS)]
    """The draft's own probability of each token; empty where the method has none."""

    def __post_init__(self) -> None:
        if self.confidence and len(self.confidence) != len(self.tokens):
            raise ValueError(f"{len(self.confidence)} confidences for {len(self.tokens)} tokens")
        if not all(math.isfinite(value) and 0.0 <= value <= 1.0 for value in self.confidence):
            raise ValueError("a confidence is not within 0 and 1")


class Proposal(_Message, frozen=True, kw_only=True):
    """One draft batch."""

    proposals: Annotated[list[Proposed], msgspec.Meta(max_length=MAX_BATCH_REQUESTS)]
    spent_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)] = 0.0
    """Seconds from the commit's arrival to this answer; 0: not told."""


class Branch(_Message, frozen=True, kw_only=True):
    """Drafts behind one outcome that the running pass may have."""

    handle: Handle
    base_length: Length
    """Tokens (prompt and output) before the pass."""
    num_outcome: Annotated[int, msgspec.Meta(ge=1, le=MAX_SPECULATIVE_TOKENS + 1)]
    """How many of ``tokens`` are the outcome: j accepted drafts and the bonus token, j + 1."""
    tokens: PathTokens
    """The outcome, and at least one draft behind it. Whole, so that it means the same whatever the
    verifier holds: messages may be lost, and drafts be cut."""

    def __post_init__(self) -> None:
        if not self.num_outcome < len(self.tokens) <= self.num_outcome + MAX_SPECULATIVE_TOKENS:
            raise ValueError(
                f"{len(self.tokens)} tokens behind an outcome of {self.num_outcome} tokens"
            )


class Branches(_Message, frozen=True, kw_only=True):
    """What was drafted behind possible outcomes since the last such message."""

    branches: Annotated[list[Branch], msgspec.Meta(max_length=MAX_BATCH_REQUESTS)]


class Reopen(_Message, frozen=True, kw_only=True):
    """A commit did not follow what the drafter has, or it knows no such handle: send Open again."""

    handles: Annotated[list[Handle], msgspec.Meta(max_length=MAX_BATCH_REQUESTS)]


class Close(_Message, frozen=True, kw_only=True):
    """Forget these requests."""

    handles: Annotated[list[Handle], msgspec.Meta(max_length=MAX_BATCH_REQUESTS)]


class Flush(_Message, frozen=True, kw_only=True):
    """The target computes something else from now on, or has dropped its prefix cache: forget the
    rows of ended requests."""

    incarnation: Handle
    """The verifier's."""


class RowsHello(_Message, frozen=True, kw_only=True):
    """A drafter asks a rank for rows; said again at each heartbeat."""

    drafter: ShortText
    incarnation: Handle
    """The drafter's, as in Hello."""
    verifier: Handle
    """The engine's incarnation, from Welcome."""


class RowsWelcome(_Message, frozen=True, kw_only=True):
    """Rows will come."""

    verifier: Handle
    rank: int


class RowTensor(_Message, frozen=True, kw_only=True):
    """What one frame of Rows holds: a tensor, row-major, little-endian, without gaps."""

    name: Annotated[str, msgspec.Meta(max_length=64)]
    """``aux``, ``projected``, ``final``, ``key.<layer>`` or ``value.<layer>``."""
    dtype: Literal["float32", "bfloat16", "float16"]
    shape: Annotated[
        list[Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]],
        msgspec.Meta(min_length=2, max_length=3),
    ]
    """[rows, size]; of keys and values [rows, heads, size], this rank's heads."""

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_SIZES[self.dtype]


class Rows(_Message, frozen=True, kw_only=True):
    """What the target computed in one pass over consecutive tokens of one request.

    Self-sufficient: it says itself where it belongs. Rows of rejected drafts are not in it. The
    tensors follow as one frame each.
    """

    handle: Handle
    first_position: Length
    """Position of the first row: row i is the state at token ``first_position + i``."""
    input_ids: Annotated[list[TokenId], msgspec.Meta(min_length=1, max_length=MAX_ROWS)]
    """The token of each row."""
    sampled_ids: Drafts
    """The tokens that the pass committed, the bonus token last: those behind the rows' own first
    token. Empty in the middle of a prompt."""
    first_head: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)] = 0
    """Of keys and values: which of the target's heads this rank's first one is."""
    tensors: Annotated[list[RowTensor], msgspec.Meta(max_length=2 * MAX_LAYERS + 2)]

    def __post_init__(self) -> None:
        for tensor in self.tensors:
            if tensor.shape[0] != len(self.input_ids):
                raise ValueError(
                    f"{tensor.name} has {tensor.shape[0]} rows for {len(self.input_ids)} tokens"
                )


Message = (
    Hello
    | Welcome
    | Refuse
    | Ping
    | Pong
    | Open
    | Commit
    | Proposal
    | Reopen
    | Close
    | Branches
    | Flush
    | RowsHello
    | RowsWelcome
    | Rows
)

MESSAGE_TYPES: tuple[type[Message], ...] = (
    Hello,
    Welcome,
    Refuse,
    Ping,
    Pong,
    Open,
    Commit,
    Proposal,
    Reopen,
    Close,
    Branches,
    Flush,
    RowsHello,
    RowsWelcome,
    Rows,
)
"""The wire's type number of a message is its place here: append only, never reorder."""

ANY_VERSION: tuple[type[Message], ...] = (Hello, Refuse)
"""Read whatever the sender's version: how two versions tell each other apart. Never change them but
by adding fields that have a default."""
