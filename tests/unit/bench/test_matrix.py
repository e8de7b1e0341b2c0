"""Who is measured, and who is in memory with whom."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.bench.matrix import contenders, groups
from paceline.bench.systems import PLAIN, System
from tests.unit.bench.made import NGRAM

VLLM = System(kind="vllm", drafter="ngram")


def test_plain_has_no_k_and_everybody_else_each() -> None:
    everybody = contenders([PLAIN, VLLM, NGRAM], [2, 4], ["bfloat16"])
    assert [str(contender) for contender in everybody] == [
        "plain bfloat16",
        "vllm:ngram K=2 bfloat16",
        "vllm:ngram K=4 bfloat16",
        "paceline:ngram@lockstep K=2 bfloat16",
        "paceline:ngram@lockstep K=4 bfloat16",
    ]


@given(
    st.lists(st.integers(1, 32), min_size=1, max_size=6, unique=True),
    st.lists(st.sampled_from(["float32", "bfloat16", "float16"]), min_size=1, unique=True),
    st.integers(2, 9),
)
def test_every_group_has_its_plain_and_everybody_is_in_one_group(
    ks: list[int], dtypes: list[str], most: int
) -> None:
    everybody = contenders([PLAIN, VLLM, NGRAM], ks, dtypes)
    made = groups(everybody, most)
    for group in made:
        assert group[0].system == PLAIN
        assert {contender.dtype for contender in group} == {group[0].dtype}
        assert 2 <= len(group) <= most
    compared = [contender for group in made for contender in group[1:]]
    assert compared == [contender for contender in everybody if contender.system != PLAIN]


def test_plain_alone_is_a_group() -> None:
    everybody = contenders([PLAIN], [4], ["float32"])
    assert groups(everybody, 2) == [everybody]


def test_an_engine_fewer_in_memory_is_a_group_more() -> None:
    everybody = contenders([PLAIN, VLLM, NGRAM], [2, 4], ["float32"])
    assert [len(group) for group in groups(everybody, 5)] == [5]
    assert [len(group) for group in groups(everybody, 4)] == [4, 2]
