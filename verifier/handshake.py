"""Who may draft for this target: the check of a drafter's Hello."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.messages import (
    MAX_REASON,
    MAX_SEQUENCE_TOKENS,
    PROTOCOL_VERSION,
    Hello,
    Refuse,
    RowNeeds,
    Welcome,
)
from paceline.verifier.rows_offer import RowsOffer, is_empty, missing


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetIdentity:
    """What a drafter has to agree with."""

    model: str
    vocab_size: int
    """Rows of the target's head, padding included."""
    tokenizer_fingerprint: str
    """"" where the target has no tokenizer; then sizes are all there is to compare."""
    num_speculative_tokens: int
    """The most draft tokens that a pass verifies for one request."""
    max_model_len: int
    incarnation: int
    data_parallel_rank: int = 0
    max_branches: int = 0
    """Outcomes to draft behind while a pass runs, per request; 0: none."""
    hidden_size: int = 0
    num_layers: int = 0
    num_kv_heads: int = 1
    """Over all ranks."""
    rows: RowsOffer | None = None
    """The states that it can send; None: none."""
    block_size: int = 0
    """Tokens of one block of the prefix cache's hashes; 0: not known."""


def check_hello(hello: Hello, target: TargetIdentity) -> Welcome | Refuse:
    """Answers a drafter's Hello: takes it in, or says in one sentence why not."""
    if PROTOCOL_VERSION not in hello.protocol_versions:
        spoken = ", ".join(map(str, sorted(hello.protocol_versions)))
        return Refuse(
            reason=f"drafter {hello.drafter} speaks protocol version {spoken} and the verifier "
            f"{PROTOCOL_VERSION}; install the same Paceline version on both"
        )
    if reason := vocabulary_mismatch(hello, target) or rows_mismatch(hello, target):
        return Refuse(reason=reason[:MAX_REASON])
    needs = row_needs(hello)
    return Welcome(
        protocol_version=PROTOCOL_VERSION,
        incarnation=target.incarnation,
        vocab_size=target.vocab_size,
        num_speculative_tokens=min(hello.num_speculative_tokens, target.num_speculative_tokens),
        max_model_len=min(target.max_model_len, MAX_SEQUENCE_TOKENS),
        data_parallel_rank=target.data_parallel_rank,
        max_branches=target.max_branches,
        rows=(
            target.rows.endpoints(needs, target.num_kv_heads)
            if target.rows is not None and needs is not None
            else []
        ),
        block_size=target.block_size,
    )


def row_needs(hello: Hello) -> RowNeeds | None:
    """Returns what the drafter needs of the target's states, None where that is nothing."""
    return None if hello.needs is None or is_empty(hello.needs) else hello.needs


def rows_mismatch(hello: Hello, target: TargetIdentity) -> str | None:
    """Returns why the target has not the states that the draft works from, or None if it has."""
    needs = row_needs(hello)
    if needs is None:
        return None
    if hello.hidden_size and hello.hidden_size != target.hidden_size:
        return (
            f"drafter {hello.drafter}'s model was made for a target of hidden size "
            f"{hello.hidden_size} and {target.model} has {target.hidden_size}; use a draft that "
            "was trained for this target"
        )
    # One behind the last layer is what leaves it, before the last norm.
    beyond = {layer for layer in needs.aux_layers if layer > target.num_layers}
    beyond |= {layer for layer in needs.kv_layers if layer >= target.num_layers}
    if beyond:
        return (
            f"drafter {hello.drafter}'s model needs layer {', '.join(map(str, sorted(beyond)))} "
            f"and the target {target.model} has {target.num_layers} layers; use a draft that was "
            "trained for this target"
        )
    lacking = missing(needs, None if target.rows is None else target.rows.needs)
    if lacking is not None:
        return (
            f"drafter {hello.drafter} needs {lacking} of the target {target.model}, which was "
            "started without; start it with a configuration that names this draft"
        )
    return None


def vocabulary_mismatch(hello: Hello, target: TargetIdentity) -> str | None:
    """Returns why the draft's token ids do not mean the target's tokens, or None if they do.

    Tokenizers are compared by content. Sizes may differ by padding rows then, since a draft token
    behind the target's vocabulary is never proposed.
    """
    if hello.vocab_size == 0:
        return None
    if hello.tokenizer_fingerprint and target.tokenizer_fingerprint:
        if hello.tokenizer_fingerprint != target.tokenizer_fingerprint:
            return (
                f"drafter {hello.drafter}'s model has another tokenizer than the target "
                f"{target.model}; use a draft trained with the target's tokenizer"
            )
        return None
    if hello.vocab_size != target.vocab_size:
        return (
            f"drafter {hello.drafter}'s model has a vocabulary of {hello.vocab_size} tokens and "
            f"the target {target.model} one of {target.vocab_size}; use a draft with the target's"
        )
    return None
