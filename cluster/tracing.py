"""The trace file of a run: ``--trace``."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from paceline.errors import ConfigError
from paceline.trace import merge


def check_trace(file: Path | None, output: str | None = None) -> None:
    """Checks what can be checked before anything is made.

    Args:
        file: The trace to write; None: there is none.
        output: The file of the results.

    Raises:
        ConfigError: ``file`` exists, is the output, or lies where nothing can be written.
    """
    if file is None:
        return
    if file.exists():
        raise ConfigError(f"the trace {file} exists already; name another file, or remove it")
    if output is not None and file.resolve() == Path(output).resolve():
        raise ConfigError(f"the trace {file} is the output, too; name another file")
    place = next(parent for parent in file.absolute().parents if parent.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"the trace {file} cannot be written: {place} is no folder to write in")


@contextlib.contextmanager
def traced(file: Path | None, say: Callable[[str], None]) -> Iterator[Path | None]:
    """Gives a folder for the parts of a trace, and at the end, whatever it is, merges them.

    The folder is beside ``file``: where several nodes share a file system, all of them see it.

    Raises:
        ConfigError: ``file`` cannot be written.
    """
    if file is None:
        yield None
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{file.name}-", dir=file.absolute().parent))
    except OSError as error:
        raise _refusal(file, error) from error
    try:
        yield folder
    finally:
        try:
            merged = merge(folder, file)
        except OSError as error:
            raise _refusal(file, error) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        lost = f"; {merged.num_dropped} more were dropped" if merged.num_dropped else ""
        say(
            f"the trace {file} has {merged.num_records} records of {merged.num_processes} "
            f"processes{lost}"
        )


def _refusal(file: Path, error: OSError) -> ConfigError:
    return ConfigError(f"the trace {file} cannot be written: {(error.strerror or '').lower()}")
