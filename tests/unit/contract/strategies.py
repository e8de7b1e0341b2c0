"""Hypothesis strategies for every message, with the extremes that the contract allows."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from paceline.messages import (
    ITEM_SIZES,
    MAX_BRANCHES,
    MAX_LAYERS,
    MAX_SECONDS,
    MAX_SEQUENCE_TOKENS,
    MAX_SPECULATIVE_TOKENS,
    Branch,
    Branches,
    Close,
    Commit,
    Committed,
    Flush,
    Hello,
    Message,
    Open,
    Ping,
    Pong,
    Proposal,
    Proposed,
    Refuse,
    Reopen,
    RowNeeds,
    Rows,
    RowsEndpoint,
    RowsHello,
    RowsWelcome,
    RowTensor,
    Sampling,
    Welcome,
)

handles = st.integers(1, (1 << 63) - 1)
token_ids = st.integers(0, (1 << 31) - 1)
lengths = st.integers(0, MAX_SEQUENCE_TOKENS)
tokens = st.lists(token_ids, max_size=20)
drafts = st.lists(token_ids, max_size=MAX_SPECULATIVE_TOKENS)
# Lone surrogates are no characters, and no text of ours holds any.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
k = st.integers(1, MAX_SPECULATIVE_TOKENS)
counts = st.integers(0, (1 << 63) - 1)
finite = st.floats(allow_nan=False)
probabilities = st.floats(0.0, 1.0)
seconds = st.floats(0.0, MAX_SECONDS)
moments = st.floats(allow_nan=False, allow_infinity=False)

committed = st.builds(
    Committed,
    handle=handles,
    base_length=lengths,
    num_accepted=st.integers(0, MAX_SPECULATIVE_TOKENS),
    num_drafted=st.integers(0, MAX_SPECULATIVE_TOKENS),
    num_ready=st.integers(0, MAX_SPECULATIVE_TOKENS),
    tokens=st.lists(token_ids, min_size=1, max_size=20),
    block_hashes=st.lists(st.binary(max_size=64), max_size=5),
)


@st.composite
def proposed(draw: st.DrawFn) -> Proposed:
    """One request's drafts, with a confidence for each of them or for none."""
    chosen = draw(drafts)
    with_confidence = draw(st.booleans())
    size = len(chosen) if with_confidence else 0
    return Proposed(
        handle=draw(handles),
        base_length=draw(lengths),
        tokens=chosen,
        confidence=draw(st.lists(probabilities, min_size=size, max_size=size)),
    )


@st.composite
def branch(draw: st.DrawFn) -> Branch:
    """An outcome and one to ``MAX_SPECULATIVE_TOKENS`` drafts behind it."""
    num_outcome = draw(st.integers(1, MAX_SPECULATIVE_TOKENS + 1))
    size = num_outcome + draw(st.integers(1, MAX_SPECULATIVE_TOKENS))
    size = min(size, 2 * MAX_SPECULATIVE_TOKENS + 1)
    return Branch(
        handle=draw(handles),
        base_length=draw(lengths),
        num_outcome=num_outcome,
        tokens=draw(st.lists(token_ids, min_size=size, max_size=size)),
    )


layers = st.lists(st.integers(0, (1 << 12) - 1), max_size=MAX_LAYERS)
needs = st.builds(RowNeeds, aux_layers=layers, final=st.booleans(), kv_layers=layers)
ranks = st.integers(0, (1 << 16) - 1)


@st.composite
def rows(draw: st.DrawFn) -> Rows:
    """Rows of up to four tensors; the frames behind them are not part of the message."""
    inputs = draw(st.lists(token_ids, min_size=1, max_size=9))
    sizes = st.lists(st.integers(0, 8), min_size=1, max_size=2)
    tensors = st.builds(
        lambda name, dtype, shape: RowTensor(name=name, dtype=dtype, shape=[len(inputs), *shape]),
        texts,
        st.sampled_from(sorted(ITEM_SIZES)),
        sizes,
    )
    return Rows(
        handle=draw(handles),
        first_position=draw(lengths),
        input_ids=inputs,
        sampled_ids=draw(drafts),
        first_head=draw(ranks),
        tensors=draw(st.lists(tensors, max_size=4)),
    )


def _hashes() -> SearchStrategy[list[bytes]]:
    return st.lists(st.binary(max_size=64), max_size=5)


by_type: dict[type[Message], SearchStrategy[Message]] = {
    Hello: st.builds(
        Hello,
        protocol_versions=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=16),
        drafter=texts,
        incarnation=handles,
        method=texts,
        vocab_size=counts,
        tokenizer_fingerprint=texts,
        num_speculative_tokens=k,
        max_requests=st.integers(1, (1 << 63) - 1),
        needs=st.none() | needs,
        hidden_size=counts,
    ),
    Welcome: st.builds(
        Welcome,
        protocol_version=st.integers(0, 255),
        incarnation=handles,
        vocab_size=st.integers(1, 1 << 31),
        num_speculative_tokens=k,
        max_model_len=lengths,
        data_parallel_rank=st.integers(0, 1 << 20),
        max_branches=st.integers(0, MAX_BRANCHES),
        rows=st.lists(st.builds(RowsEndpoint, address=texts, rank=ranks), max_size=4),
        block_size=counts,
    ),
    Refuse: st.builds(Refuse, reason=texts),
    Ping: st.builds(Ping, incarnation=handles, num_requests=counts),
    Pong: st.builds(Pong, incarnation=handles, welcomed=st.booleans()),
    Open: st.builds(
        Open,
        handle=handles,
        prompt_ids=tokens,
        output_ids=tokens,
        block_hashes=_hashes(),
        num_computed_tokens=lengths,
        sampling=st.builds(Sampling, temperature=finite, top_k=counts, top_p=finite),
    ),
    Commit: st.builds(
        Commit, commits=st.lists(committed, max_size=5), verify_s=seconds, sent_at=moments
    ),
    Proposal: st.builds(Proposal, proposals=st.lists(proposed(), max_size=5), spent_s=seconds),
    Branches: st.builds(Branches, branches=st.lists(branch(), max_size=5)),
    Reopen: st.builds(Reopen, handles=st.lists(handles, max_size=9)),
    Close: st.builds(Close, handles=st.lists(handles, max_size=9)),
    Flush: st.builds(Flush, incarnation=handles),
    RowsHello: st.builds(RowsHello, drafter=texts, incarnation=handles, verifier=handles),
    RowsWelcome: st.builds(RowsWelcome, verifier=handles, rank=ranks),
    Rows: rows(),
}
