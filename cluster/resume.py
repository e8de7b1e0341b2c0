"""Going on with an output file that an earlier run did not finish.

Each finished line carries a fingerprint of what it was made of. So the file itself says whether it
belongs to this input and these options, and nothing has to lie beside it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paceline.cluster.inputs import Prompt, read_prompts
from paceline.errors import InputError
from paceline.verifier.config import TargetConfig


def fingerprint(target: TargetConfig, prompt: Prompt, sampling: dict[str, Any]) -> str:
    """Returns 16 hexadecimal digits over model, dtype, prompt and sampling.

    What must be free to change between two runs, such as memory and drafters, is left out.
    """
    made_of = [target.model, target.dtype, prompt.prompt, prompt.messages, sampling]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode("ascii")).hexdigest()[:16]


def take_up(source: Path, output: Path, fingerprint_of: Callable[[Prompt], str]) -> set[str]:
    """Keeps the finished lines of ``output``, which need not exist; returns their ids.

    Lines with an error, and a last line that was cut off, are taken out, to be tried again.

    Raises:
        InputError: ids of ``source`` are not unique, or ``output`` holds anything but results of
            its prompts as they are now. Nothing is changed then.
    """
    finished: dict[str, str] = {}
    must_rewrite = False
    for raw, line in _read_lines(output):
        must_rewrite |= line is None or not raw.endswith(b"\n")
        if line is None:
            continue
        if line["id"] in finished:
            raise InputError(
                f"{output} holds two results for '{line['id']}'; delete one of the two lines"
            )
        finished[line["id"]] = line["fingerprint"]
    _check(source, output, finished, fingerprint_of)
    if must_rewrite:
        _rewrite(output)
    return set(finished)


def _check(
    source: Path, output: Path, finished: dict[str, str], fingerprint_of: Callable[[Prompt], str]
) -> None:
    first_with: dict[str, int] = {}
    for prompt in read_prompts(source):
        if prompt.id in first_with:
            raise InputError(
                f"lines {first_with[prompt.id]} and {prompt.line} of {source} have the same id "
                f"'{prompt.id}'; --resume needs one of its own in each line"
            )
        first_with[prompt.id] = prompt.line
        before = finished.get(prompt.id)
        now = fingerprint_of(prompt) if isinstance(prompt, Prompt) else ""
        if before is not None and before != now:
            raise InputError(
                f"{output} holds a result for '{prompt.id}' with another prompt, model, dtype or "
                "sampling; resume with what it was begun with, or name another --output"
            )
    for name in finished.keys() - first_with.keys():
        raise InputError(
            f"{output} holds a result for '{name}', which {source} does not have; resume with the "
            "input that it was begun with, or name another --output"
        )


def _read_lines(output: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Yields each line as it stands, and what it says; None: it is to be tried again."""
    try:
        with output.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                try:
                    value = json.loads(raw)
                except ValueError:
                    value = None
                match value:
                    case {"id": str(), "text": str(), "fingerprint": str()}:
                        yield raw, value
                    case {"id": str(), "error": str()}:
                        yield raw, None
                    case None if not raw.endswith(b"\n"):
                        yield raw, None
                    case _:
                        raise InputError(
                            f"line {number} of {output} is no result of paceline generate; delete "
                            "it, or name another --output"
                        )
    except FileNotFoundError:
        return
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise InputError(f"the output {output} cannot be read: {reason}") from error


def _rewrite(output: Path) -> None:
    """Replaces the file at once: a run that ends here loses nothing."""
    output = output.resolve()
    temporary: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=output.parent, prefix=f"{output.name}.", delete=False
        ) as file:
            temporary = Path(file.name)
            for raw, line in _read_lines(output):
                if line is not None:
                    file.write(raw.rstrip(b"\n") + b"\n")
        shutil.copymode(output, temporary)
        temporary.replace(output)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        reason = (error.strerror or "").lower()
        raise InputError(f"the output {output} cannot be written: {reason}") from error
