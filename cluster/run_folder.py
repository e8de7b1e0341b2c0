"""A run's folder for temporary files: sockets, keys, the engines' logs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from io import FileIO
from pathlib import Path
from types import TracebackType

from paceline.errors import EngineDeadError

PREFIX = "paceline-"
OWNER = "owner"
"""File in the folder that its owner keeps locked. The kernel takes the lock back when the process
ends, however that ends; a process number could be somebody else's by then."""


class RunFolder:
    """Exists within ``with``; only its owner may enter it.

    It stays behind if the engine died, whose log is wanted then.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._owner: FileIO | None = None

    def __enter__(self) -> Path:
        self._path = Path(tempfile.mkdtemp(prefix=PREFIX))
        # Under its name only when it is locked: else a sweep could come in between.
        unnamed = self._path / f"{OWNER}.new"
        self._owner = FileIO(unnamed, "w")
        # On a file system without locks the folder has no owner, and is never swept.
        with contextlib.suppress(OSError):
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unnamed.rename(self._path / OWNER)
        return self._path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._path is not None and self._owner is not None
        if isinstance(error, EngineDeadError):
            (self._path / OWNER).unlink(missing_ok=True)
        else:
            shutil.rmtree(self._path, ignore_errors=True)
        self._owner.close()


def sweep() -> list[Path]:
    """Removes this user's run folders whose owner has ended without doing so; returns them."""
    removed = []
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # Folders that went meanwhile, of other users, without an owner, or with one that lives.
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            descriptor = os.open(folder / OWNER, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
            removed.append(folder)
    return removed
