"""What the headers of a draft's and its target's checkpoints tell of the two together, before
either is loaded: one sentence for each thing. Nothing but headers is read, and ``d2t``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from paceline import model_folder
from paceline.drafter.checkpoint import FLOATS, Checkpoint, names_problem
from paceline.drafter.draft_costs import costs
from paceline.drafter.draft_kind import DraftKind, draft_config
from paceline.drafter.draft_pair import Pair
from paceline.drafter.draft_tensors import draft_tensors
from paceline.drafter.row_needs import WITH_AUX, row_needs, stated_layers
from paceline.drafter.target_parts import target_names
from paceline.errors import ModelError, UserError


@dataclass(frozen=True, slots=True)
class Remark:
    """One sentence about a draft."""

    level: Literal["ok", "warn", "fail"]
    subject: str
    text: str


def check_pair(pair: Pair) -> Iterator[Remark]:
    """Yields what there is to say, in the order of importance; a wrong pair has a ``fail``."""
    checks: list[tuple[str, Callable[[Pair], str | Remark]]] = [
        ("tensors", _tensors),
        ("dtype", _dtype),
        ("hidden size", _hidden_size),
        ("layers", _layers),
        ("vocabulary", _vocabulary),
        ("tokenizer", _tokenizer),
        ("d2t", _d2t),
        ("block size", _block_size),
        ("context length", _context_length),
    ]
    has_failed = False
    for subject, check in checks:
        try:
            text = check(pair)
        except UserError as error:
            has_failed = True
            yield Remark("fail", subject, str(error))
            continue
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            # A config is somebody's file: any of its values may be missing, or of any type.
            has_failed = True
            text = f"a config is not what it should be ({type(error).__name__}: {error}): copy the "
            yield Remark("fail", subject, text + "folders of draft and target again")
            continue
        if isinstance(text, Remark):
            yield text
        elif text:
            yield Remark("ok", subject, text)
    if not has_failed:  # else there is nothing to reckon with
        for subject, text in costs(pair):
            yield Remark("ok", subject, text)


def _tensors(pair: Pair) -> str:
    wanted = draft_tensors(pair.kind, pair.draft)
    found = wanted.names(pair.draft.headers)
    allowed = set(found) - set(wanted.extra(found))
    if problem := names_problem(found, wanted.required, allowed):
        raise ModelError(
            f"the draft in {pair.draft.folder}, read as {pair.kind}, {problem}: copy its folder "
            "again, or use a draft in a published layout"
        )
    target_names(pair.target)
    return f"{pair.kind}, {len(found)} tensors"


def _dtype(pair: Pair) -> str | Remark:
    wanted = draft_tensors(pair.kind, pair.draft)
    stored = set()
    for name in wanted.required - {"d2t", "masked_embedding.token_ordering"}:
        header = pair.draft.headers.get(name)
        if header is None:
            continue
        if header.dtype not in FLOATS:
            raise ModelError(
                f"the draft's tensor {name} is quantized ({header.dtype}), which is not served: "
                "use a draft in 16 or 32 bits"
            )
        stored.add(header.dtype)
    text = f"stored as {', '.join(sorted(stored))}, computes in {pair.dtype}"
    if pair.dtype == "float16" and "BF16" in stored:
        text += ", in which large values overflow: set dtype to bfloat16"
        return Remark("warn", "dtype", text)
    return f"{text}, rows come in {pair.target_dtype}"


def _hidden_size(pair: Pair) -> str:
    target = pair.target_config["hidden_size"]
    config, headers = pair.config, pair.draft.headers
    own = _int(config, "hidden_size")
    taken = own
    if pair.kind.method in WITH_AUX:
        taken = config.get("target_hidden_size") or own
        if "fc.weight" in headers:
            layers = row_needs(pair.kind, pair.draft, _large(pair)).aux_layers
            width = headers["fc.weight"].shape[-1]
            if width != len(layers) * target:
                raise ModelError(
                    f"the draft's fc.weight takes rows of {width} values, but {len(layers)} "
                    f"layers of a target of hidden size {target} give {len(layers) * target}: use "
                    "a draft for this target"
                )
            taken = target
    elif pair.kind.method == "gemma4_mtp":
        taken = _int(pair.draft.config, "backbone_hidden_size")
    if taken != target:
        raise ModelError(
            f"the draft takes states of hidden size {taken}, but the target's is {target}: use a "
            "draft for this target"
        )
    shares = pair.kind.method in WITH_AUX and (
        "embed_tokens.weight" not in headers
        or (pair.kind.method != "eagle3" and "lm_head.weight" not in headers)
    )
    if shares and own != target:
        raise ModelError(
            f"the draft computes with hidden size {own} and has no embedding or head of its own, "
            f"but the target's are of size {target}: use a draft for this target"
        )
    return f"{target}, as the target's"


def _layers(pair: Pair) -> str:
    needs = row_needs(pair.kind, pair.draft, pair.target.config)
    number = pair.target_config["num_hidden_layers"]
    trained = pair.config.get("num_target_layers")
    if pair.kind.method == "dflash" and trained not in (None, number):
        raise ModelError(
            f"the draft was made for a target of {trained} layers, and this one has {number}: use "
            "a draft for this target"
        )
    if needs.aux_layers:
        text = f"takes what enters layers {', '.join(map(str, needs.aux_layers))} of {number}"
        if not stated_layers(pair.kind, pair.config):
            text += ", EAGLE-3's default, since its config names none"
        return text
    if needs.kv_layers:
        return f"takes keys and values of layers {', '.join(map(str, needs.kv_layers))} of {number}"
    return "takes the target's last state"


def _vocabulary(pair: Pair) -> str:
    target = pair.target.headers[target_names(pair.target).embedding].shape[0]
    config = pair.config
    size = config.get("vocab_size") or target
    # Equal tokenizers: sizes may differ by padding rows.
    if size != target and _fingerprint(pair.draft) != (_fingerprint(pair.target) or None):
        raise ModelError(
            f"the draft has a vocabulary of {size} tokens and the target one of {target}: use a "
            "draft with the target's vocabulary"
        )
    if pair.kind.method == "mtp":
        return f"{target} tokens"
    drafted = config.get("draft_vocab_size") or size
    head = pair.draft.headers.get("lm_head.weight")
    if head is not None and head.shape[0] != drafted:
        raise ModelError(
            f"the draft's head has {head.shape[0]} rows, but its config says a draft vocabulary "
            f"of {drafted}: copy the draft's folder again"
        )
    if head is None and drafted != target and pair.kind.method in ("dflash", "dspark"):
        raise ModelError(
            f"the draft has {drafted} tokens of {target} and no head of its own: use a draft "
            "that has one"
        )
    if pair.kind.method in ("dflash", "dspark"):
        _mask_token(pair, target)
    return f"drafts {drafted} of {target} tokens"


def _mask_token(pair: Pair, num_rows: int) -> None:
    block = pair.config.get("dflash_config")
    found = block.get("mask_token_id") if isinstance(block, Mapping) else None
    token = found if found is not None else pair.config.get("mask_token_id")
    own = pair.draft.headers.get("embed_tokens.weight")
    num_rows = num_rows if own is None else own.shape[0]
    if type(token) is not int or not 0 <= token < num_rows:
        raise ModelError(
            f"the draft's mask_token_id is {token}, which is no row of the embedding's "
            f"{num_rows}: use a draft for this target"
        )


def _tokenizer(pair: Pair) -> str:
    if pair.is_one_folder:
        return ""
    draft, target = _fingerprint(pair.draft), _fingerprint(pair.target)
    if not draft:
        return "the draft brings none, the target's is meant"
    if target and draft != target:
        raise ModelError(
            f"the draft in {pair.draft.folder} has another tokenizer than the target: use a draft "
            "trained with the target's tokenizer"
        )
    return "the target's" if target else "the target brings none to compare with"


def _d2t(pair: Pair) -> str:
    header = pair.draft.headers.get("d2t")
    if header is None:
        return ""
    target = pair.target.headers[target_names(pair.target).embedding].shape[0]
    head = pair.draft.headers.get("lm_head.weight")
    if len(header.shape) != 1 or (head is not None and header.shape[0] != head.shape[0]):
        raise ModelError(
            f"the draft's d2t has the shape {list(header.shape)}, which is not one entry for each "
            "row of its head: copy the draft's folder again"
        )
    if header.dtype not in ("I64", "I32"):
        raise ModelError(f"the draft's d2t holds {header.dtype}, not integers: copy it again")
    offsets = _read_integers(header.file, "d2t")
    for row, offset in enumerate(offsets):
        if not 0 <= row + offset < target:
            raise ModelError(
                f"the draft's d2t maps its token {row} to {row + offset}, but the target has "
                f"{target} tokens: use a draft for this target"
            )
    return f"{len(offsets)} tokens, each one of the target's"


def _block_size(pair: Pair) -> str:
    if pair.kind.method not in ("dflash", "dspark"):
        return ""
    block, most = max_block_tokens(pair.kind, pair.draft)
    if pair.num_tokens > most:
        raise ModelError(
            f"num_speculative_tokens is {pair.num_tokens}, but a block of {block} gives at most "
            f"{most} drafts: set it to at most {most}"
        )
    return f"a block of {block} gives up to {most} drafts, {pair.num_tokens} are asked for"


def max_block_tokens(kind: DraftKind, draft: Checkpoint) -> tuple[int, int]:
    """Returns a block's size and the most drafts that it gives.

    The first place of a block is that of the newest token; only a draft that samples from it, too,
    gives a draft there. DeepSpec's do.

    Raises:
        ModelError: the config names no block size.
    """
    config = draft_config(draft)
    block = _int(config, "block_size")
    inner = config.get("dflash_config")
    flags: Mapping[str, Any] = {**config, **(inner if isinstance(inner, Mapping) else {})}
    default = kind.layout == "deepspec"
    return block, block if flags.get("sample_from_anchor", default) else block - 1


def _context_length(pair: Pair) -> str | Remark:
    if pair.is_one_folder:
        return ""
    longest = pair.config.get("max_position_embeddings")
    needed = pair.max_model_len or pair.target_config.get("max_position_embeddings")
    if not longest or not needed:
        return ""
    if longest < needed:
        return Remark(
            "warn",
            "context length",
            f"the draft was made for {longest} positions and requests may have {needed}: fewer "
            "drafts are accepted behind that, or set target.max_model_len lower",
        )
    return f"{longest} positions, requests have up to {needed}"


def _large(pair: Pair) -> dict[str, Any]:
    """The target's config with so many layers that a layer that is missing is told elsewhere."""
    return {**pair.target_config, "num_hidden_layers": _most_layers(pair)}


def _most_layers(pair: Pair) -> int:
    number = int(pair.target_config["num_hidden_layers"])
    return max([number, *stated_layers(pair.kind, pair.config)])


def _fingerprint(checkpoint: Checkpoint) -> str:
    return model_folder.tokenizer_fingerprint(checkpoint.folder)


def _int(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if type(value) is not int or value < 1:
        raise ModelError(f"the draft's config says {name} {value}: copy the draft's folder again")
    return value


def _read_integers(file: Any, name: str) -> tuple[int, ...]:
    entry = model_folder.read_header(file)[name]
    with open(file, "rb") as stream:
        begin, end = entry["data_offsets"]
        stream.seek(8 + int.from_bytes(stream.read(8), "little") + begin)
        data = stream.read(end - begin)
    code = "q" if entry["dtype"] == "I64" else "i"
    return struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)
