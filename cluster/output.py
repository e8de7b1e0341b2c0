"""The file that results go to: one run at a time writes to it, and what it holds is not lost."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

from paceline.errors import ConfigError


class OutputFile:
    """Open for appending and locked, from ``with`` on.

    The lock is the kernel's, on the file itself: it ends with the process, however that ends, and
    nothing is left beside the file. Pipes, devices and file systems without locks have none.

    Attributes:
        path: As the user wrote it.
    """

    def __init__(self, path: Path, *, replace: bool = False) -> None:
        self.path = path
        self._is_old = replace
        """Whether it holds what is to be replaced. That stands until there is something to put in
        its place."""
        self._file: FileIO | None = None

    def __enter__(self) -> Self:
        with self._explained():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def holds_something(self) -> bool:
        """Returns whether it is a file with anything in it."""
        status = os.fstat(self._opened.fileno())
        return stat.S_ISREG(status.st_mode) and status.st_size > 0

    def write(self, line: str) -> None:
        """Appends a line, at once.

        Raises:
            ConfigError: it cannot be written.
        """
        with self._explained():
            if self._is_old and self.holds_something():
                self._opened.truncate(0)
            self._is_old = False
            _write(self._opened, line.encode() + b"\n")

    def put(self, lines: Iterable[bytes]) -> None:
        """Puts a file with ``lines`` in its place: whoever ends here loses nothing.

        Raises:
            ConfigError: it cannot be written.
        """
        real = self.path.resolve()
        with self._explained():
            descriptor, name = tempfile.mkstemp(dir=real.parent, prefix=f"{real.name}.")
            file, temporary = FileIO(descriptor, "a"), Path(name)
            try:
                # Locked before it has the name: nobody gets in between.
                self._lock(file)
                for line in lines:
                    _write(file, line)
                shutil.copymode(real, temporary)
                temporary.replace(real)
            except BaseException:
                file.close()
                temporary.unlink(missing_ok=True)
                raise
        self._opened.close()
        self._file = file

    @property
    def _opened(self) -> FileIO:
        assert self._file is not None, "used outside with"
        return self._file

    def _open(self) -> FileIO:
        while True:
            # Unbuffered: what could not be written is not tried again when it is closed.
            file = FileIO(self.path, "a")
            try:
                self._lock(file)
                if os.path.samestat(os.fstat(file.fileno()), os.stat(self.path)):
                    return file
            except BaseException:
                file.close()
                raise
            file.close()  # a run that has ended since had put another one in its place

    def _lock(self, file: FileIO) -> None:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another run is writing to the output {self.path}; wait until it has ended, or "
                "name another file"
            ) from None
        except OSError:
            pass  # a file system without locks

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            reason = (error.strerror or "").lower()
            raise ConfigError(f"the output {self.path} cannot be written: {reason}") from error


def _write(file: FileIO, data: bytes) -> None:
    while data:
        data = data[file.write(data) :]
