"""The file that an engine's decisions are recorded in."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from paceline.errors import ConfigError

logger = logging.getLogger("paceline.verifier")

FLUSH_SECONDS = 1.0
_BUFFER_BYTES = 1 << 20


class RecordFile:
    """Replaces a file at ``start``. What is written is in it after a second at the most.

    A disk that is full ends the recording, with a warning, and not the engine.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._flush_regularly, name="paceline-record", daemon=True
        )

    def start(self) -> None:
        """Opens the file.

        Raises:
            ConfigError: it cannot be written.
        """
        try:
            self._file = self._path.open("wb", buffering=_BUFFER_BYTES)
        except OSError as error:
            raise _refusal(self._path, error) from error
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Adds ``data``; nothing where the recording has ended."""
        with self._writing() as file:
            if file is not None:
                file.write(data)

    def stop(self) -> None:
        """Writes what is left, and closes the file; may be called twice, and without ``start``."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._writing() as file:
            self._file = None
            if file is not None:
                file.close()

    def _flush_regularly(self) -> None:
        while not self._stopping.wait(FLUSH_SECONDS):
            with self._writing() as file:
                if file is not None:
                    file.flush()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[BinaryIO | None]:
        """Gives the file to one thread at a time; a failure ends the recording."""
        with self._lock:
            file = self._file
            try:
                yield file
            except OSError as error:
                logger.warning("the recording %s has ended: %s", self._path, error.strerror)
                self._file = None
                if file is not None:
                    with contextlib.suppress(OSError):  # what is left cannot be written either
                        file.close()


def check_record(path: str) -> None:
    """Checks that ``path`` can be written; changes nothing in a file that is there.

    Raises:
        ConfigError: it cannot.
    """
    if Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir():
        # A pipe would be waited for, a device swallows what is written.
        raise ConfigError(f"speculation.record is {path}, which is no file; name another one")
    try:
        Path(path).open("ab").close()
    except OSError as error:
        raise _refusal(Path(path), error) from error


def _refusal(path: Path, error: OSError) -> ConfigError:
    reason = (error.strerror or "").lower()
    return ConfigError(f"speculation.record is {path}, which cannot be written: {reason}")
