"""Who may draft for this target: the check of a drafter's Hello."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.messages import (
    MAX_REASON,
    MAX_SEQUENCE_TOKENS,
    PROTOCOL_VERSION,
    Hello,
    Refuse,
    Welcome,
)


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


def check_hello(hello: Hello, target: TargetIdentity) -> Welcome | Refuse:
    """Answers a drafter's Hello: takes it in, or says in one sentence why not."""
    if PROTOCOL_VERSION not in hello.protocol_versions:
        spoken = ", ".join(map(str, sorted(hello.protocol_versions)))
        return Refuse(
            reason=f"drafter {hello.drafter} speaks protocol version {spoken} and the verifier "
            f"{PROTOCOL_VERSION}; install the same Paceline version on both"
        )
    if reason := vocabulary_mismatch(hello, target):
        return Refuse(reason=reason[:MAX_REASON])
    return Welcome(
        protocol_version=PROTOCOL_VERSION,
        incarnation=target.incarnation,
        vocab_size=target.vocab_size,
        num_speculative_tokens=min(hello.num_speculative_tokens, target.num_speculative_tokens),
        max_model_len=min(target.max_model_len, MAX_SEQUENCE_TOKENS),
        data_parallel_rank=target.data_parallel_rank,
        max_branches=target.max_branches,
    )


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
