"""Who may draft for a target."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from paceline.codec import decode, encode
from paceline.messages import (
    MAX_SEQUENCE_TOKENS,
    MAX_SPECULATIVE_TOKENS,
    PROTOCOL_VERSION,
    Hello,
    Refuse,
    RowNeeds,
    RowsEndpoint,
    Welcome,
)
from paceline.verifier.handshake import TargetIdentity, check_hello
from paceline.verifier.rows_offer import RowsOffer
from tests.unit.wire import hello


def target(
    *,
    tokenizer_fingerprint: str = "t",
    num_speculative_tokens: int = 8,
    max_model_len: int = 4096,
) -> TargetIdentity:
    return TargetIdentity(
        model="big",
        vocab_size=1000,
        tokenizer_fingerprint=tokenizer_fingerprint,
        num_speculative_tokens=num_speculative_tokens,
        max_model_len=max_model_len,
        incarnation=9,
        data_parallel_rank=3,
    )


def with_model(vocab_size: int, fingerprint: str) -> Hello:
    return hello(vocab_size=vocab_size, tokenizer_fingerprint=fingerprint)


@pytest.mark.parametrize(
    ("of_drafter", "of_target", "agreed"), [(4, 8, 4), (8, 4, 4), (5, 5, 5), (32, 1, 1)]
)
def test_k_is_the_smaller_of_both(of_drafter: int, of_target: int, agreed: int) -> None:
    answer = check_hello(
        hello(num_speculative_tokens=of_drafter), target(num_speculative_tokens=of_target)
    )
    assert answer == Welcome(
        protocol_version=PROTOCOL_VERSION,
        incarnation=9,
        vocab_size=1000,
        num_speculative_tokens=agreed,
        max_model_len=4096,
        data_parallel_rank=3,
    )


@pytest.mark.parametrize(
    ("drafter", "of_target"),
    [
        (with_model(0, ""), "t"),
        (with_model(0, "other"), "t"),
        (with_model(1000, "t"), "t"),
        (with_model(1024, "t"), "t"),
        (with_model(900, "t"), "t"),
        (with_model(1000, ""), "t"),
        (with_model(1000, "x"), ""),
        (with_model(1000, ""), ""),
    ],
    ids=[
        "copies from the text",
        "copies, whatever else it says",
        "equal",
        "padding rows in the draft",
        "padding rows in the target",
        "equal sizes, no tokenizer in the draft",
        "equal sizes, no tokenizer in the target",
        "equal sizes, no tokenizers",
    ],
)
def test_a_draft_whose_ids_mean_the_target_s_tokens_is_taken(
    drafter: Hello, of_target: str
) -> None:
    assert isinstance(check_hello(drafter, target(tokenizer_fingerprint=of_target)), Welcome)


@pytest.mark.parametrize(
    ("drafter", "of_target", "reason"),
    [
        (with_model(1000, "x"), "t", "drafter d's model has another tokenizer than the target big"),
        (with_model(1024, ""), "t", "vocabulary of 1024 tokens and the target big one of 1000"),
        (with_model(1024, "x"), "", "vocabulary of 1024 tokens and the target big one of 1000"),
    ],
)
def test_any_other_is_refused_in_one_sentence(drafter: Hello, of_target: str, reason: str) -> None:
    answer = check_hello(drafter, target(tokenizer_fingerprint=of_target))
    assert isinstance(answer, Refuse)
    assert reason in answer.reason and "; use a draft" in answer.reason


@pytest.mark.parametrize("versions", [(PROTOCOL_VERSION + 1,), (0, 900, 5)])
def test_no_common_version_is_refused_with_both_named(versions: tuple[int, ...]) -> None:
    answer = check_hello(hello(protocol_versions=versions), target())
    assert isinstance(answer, Refuse)
    spoken = ", ".join(str(version) for version in sorted(versions))
    assert f"version {spoken} and the verifier {PROTOCOL_VERSION}" in answer.reason
    assert "install the same Paceline version" in answer.reason


def test_one_common_version_among_others_is_enough() -> None:
    versions = (PROTOCOL_VERSION + 5, PROTOCOL_VERSION, 0)
    assert isinstance(check_hello(hello(protocol_versions=versions), target()), Welcome)


@pytest.mark.parametrize("k", [1, MAX_SPECULATIVE_TOKENS])
def test_every_answer_can_be_read_by_the_drafter(k: int) -> None:
    answer = check_hello(hello(num_speculative_tokens=k), target(max_model_len=MAX_SEQUENCE_TOKENS))
    assert decode(encode(answer)) == answer


def test_a_target_of_ten_million_positions_can_welcome() -> None:
    answer = check_hello(hello(), target(max_model_len=10_485_760))
    assert isinstance(decode(encode(answer)), Welcome)


def test_a_refusal_with_long_names_can_be_read() -> None:
    long = msgspec.structs.replace(with_model(1000, "x"), drafter="d" * 1024)
    identity = TargetIdentity(
        model="/m" * 2000,
        vocab_size=1000,
        tokenizer_fingerprint="t",
        num_speculative_tokens=4,
        max_model_len=4096,
        incarnation=9,
    )
    assert isinstance(decode(encode(check_hello(long, identity))), Refuse)


OFFER = RowsOffer(
    needs=RowNeeds(aux_layers=[2, 15, 30], final=True, kv_layers=[29]),
    addresses=["ipc:///r/c.rows0", "ipc:///r/c.rows1"],
)


def with_states(offer: RowsOffer | None = OFFER) -> TargetIdentity:
    return dataclasses.replace(
        target(), hidden_size=576, num_layers=30, num_kv_heads=3, rows=offer, block_size=16
    )


def needing(needs: RowNeeds, hidden_size: int = 576) -> Hello:
    return msgspec.structs.replace(hello(), needs=needs, hidden_size=hidden_size)


@pytest.mark.parametrize(
    ("needs", "num_ranks"),
    [
        (None, 0),
        (RowNeeds(), 0),
        (RowNeeds(final=True), 1),
        (RowNeeds(aux_layers=[15, 2]), 1),
        (RowNeeds(aux_layers=[30]), 1),
        (RowNeeds(kv_layers=[29], final=True), 2),
    ],
)
def test_a_drafter_is_told_where_its_states_come_from(
    needs: RowNeeds | None, num_ranks: int
) -> None:
    drafter = hello() if needs is None else needing(needs)
    answer = check_hello(drafter, with_states())
    assert isinstance(answer, Welcome)
    assert answer.rows == [
        RowsEndpoint(address=f"ipc:///r/c.rows{rank}", rank=rank) for rank in range(num_ranks)
    ]
    assert answer.block_size == 16


@pytest.mark.parametrize(
    ("drafter", "offer", "reason"),
    [
        (needing(RowNeeds(aux_layers=[2, 3])), OFFER, "needs the input of layer 3 of the target"),
        (needing(RowNeeds(aux_layers=[31])), OFFER, "needs layer 31 and the target big has 30"),
        (needing(RowNeeds(kv_layers=[30])), OFFER, "needs layer 30 and the target big has 30"),
        (needing(RowNeeds(kv_layers=[28])), OFFER, "needs keys and values of layer 28 of"),
        (needing(RowNeeds(final=True)), None, "needs the last norm's output of the target big"),
        (needing(RowNeeds(final=True), 64), OFFER, "hidden size 64 and big has 576"),
    ],
)
def test_a_drafter_is_refused_what_there_is_not(
    drafter: Hello, offer: RowsOffer | None, reason: str
) -> None:
    answer = check_hello(drafter, with_states(offer))
    assert isinstance(answer, Refuse)
    assert reason in answer.reason
