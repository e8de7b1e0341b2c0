"""``paceline replay``: a recorded run's decisions are made again, and compared."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from paceline.errors import DifferenceError, InputError
from paceline.scheduler.recording import replay

MAX_LINE_BYTES = 64 << 20
"""The longest is a request's prompt: eight bytes for each of up to two million tokens."""


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit code.

    Raises:
        InputError: the file cannot be read, or is no whole recording.
    """
    if Path(arguments.file).is_fifo():
        raise InputError(f"the recording {arguments.file} is a pipe; name a file")
    try:
        with open(arguments.file, "rb") as lines:
            done = replay(_whole_lines(lines))
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise InputError(f"the recording {arguments.file} cannot be read: {reason}") from error
    except InputError as error:
        raise InputError(f"{arguments.file}: {error}") from error
    except DifferenceError as error:
        print(f"different: {error}")
        return 1
    print(f"events  {done.num_events}")
    print(f"passes  {done.num_passes}")
    print(f"hits    {done.hits}")
    causes = [f"{cause} {number}" for cause, number in sorted(done.misses.items())]
    print(f"misses  {done.misses.total()}{' (' + ', '.join(causes) + ')' if causes else ''}")
    if done.is_torn:
        print("the last line is not whole, and was left out")
    print("identical")
    return 0


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(MAX_LINE_BYTES):
        if len(line) == MAX_LINE_BYTES:
            raise InputError(f"a line is longer than {MAX_LINE_BYTES >> 20} MiB: no recording")
        yield line
