"""What a draft with rows costs: memory on its device, and bytes on the wire."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.drafter.draft_pair import Pair
from paceline.drafter.draft_tensors import draft_tensors
from paceline.drafter.row_needs import WITH_AUX, row_bytes, row_needs
from paceline.drafter.target_parts import target_names
from paceline.messages import ITEM_SIZES

DECODE_RATE = 1_000
"""Tokens per second of all requests, for the sake of an example."""

PREFILL_RATE = 20_000

_GIB = 1 << 30


def costs(pair: Pair) -> Iterator[tuple[str, str]]:
    """Yields the subject and the sentence of each cost."""
    yield "memory", _memory(pair)
    yield "rows", _rows(pair)


def row_size(pair: Pair) -> int:
    """Bytes of one token's rows."""
    needs = row_needs(pair.kind, pair.draft, pair.target.config)
    return row_bytes(needs, pair.target.config, pair.target_dtype)


def projected_size(pair: Pair) -> int:
    """Bytes of one token's rows where ``fc`` runs on the target's side; 0: there is none."""
    if pair.kind.method not in WITH_AUX:
        return 0
    return pair.draft.headers["fc.weight"].shape[0] * ITEM_SIZES[pair.target_dtype]


def weight_bytes(pair: Pair) -> tuple[int, int]:
    """Bytes of the draft's own tensors and of those that it borrows, in the draft's dtype."""
    item = ITEM_SIZES[pair.dtype]
    headers = pair.draft.headers
    own = draft_tensors(pair.kind, pair.draft).names(headers)
    num_own = sum(headers[name].num_values for name in own if name not in ("d2t", "t2d"))
    names = target_names(pair.target)
    borrowed = set()
    if pair.kind.method == "mtp" or "embed_tokens.weight" not in headers:
        borrowed.add(names.embedding)
    if pair.kind.method == "mtp" or (
        pair.kind.method in ("dflash", "dspark") and "lm_head.weight" not in headers
    ):
        borrowed.add(names.lm_head)
    num_borrowed = sum(pair.target.headers[name].num_values for name in borrowed)
    return num_own * item, num_borrowed * item


def state_bytes(pair: Pair) -> int:
    """Bytes of one token's keys and values in the draft's own layers."""
    if pair.kind.method == "gemma4_mtp":
        return 0  # it reads the target's, which are the rows
    config = pair.config
    heads = config.get("num_attention_heads") or 1
    size = config.get("head_dim") or config.get("hidden_size", 0) // heads
    kv_heads = config.get("num_key_value_heads") or heads
    layers = 1 if pair.kind.method == "mtp" else config["num_hidden_layers"]
    return int(2 * layers * kv_heads * size * ITEM_SIZES[pair.dtype])


def _memory(pair: Pair) -> str:
    own, borrowed = weight_bytes(pair)
    per_token = row_size(pair) + state_bytes(pair)
    length = pair.max_model_len or pair.target_config.get("max_position_embeddings") or 0
    text = (
        f"{(own + borrowed) / _GIB:.2f} GiB of weights for each replica on {pair.device}, "
        f"{borrowed / _GIB:.2f} of them the target's embedding and head, and {per_token:,} bytes "
        "for each token that it holds"
    )
    if length:
        most = per_token * length * pair.max_requests / _GIB
        text += f": {most:.1f} GiB for {pair.max_requests} requests of {length} tokens"
    return text


def _rows(pair: Pair) -> str:
    size = row_size(pair)
    text = f"{size:,} bytes for each token"
    if projected := projected_size(pair):
        text += f" ({projected:,} where fc runs at the target)"
    return (
        f"{text}: {size * DECODE_RATE / 1e6:,.1f} MB/s at {DECODE_RATE:,} decoded tokens a second "
        f"and {size * PREFILL_RATE / 1e6:,.0f} MB/s at {PREFILL_RATE:,} prefilled ones"
    )
