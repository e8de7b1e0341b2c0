"""vLLM's log to a file, and the cause of a failed start out of it.

vLLM's engine runs in a process of its own; when it fails, the parent learns only that it did. The
cause is in the log. ``VLLM_LOGGING_CONFIG_PATH`` (vllm/logger.py) sends all of it to one file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

_ERROR_LINE = re.compile(r"(?:^|\s)(?:[\w.]*\.)?(\w*(?:Error|Exception)): (.+)$")
_WRAPPERS = ("Engine core initialization failed", "WorkerProc initialization failed")


def write_logging_config(folder: Path, name: str) -> tuple[Path, Path]:
    """Writes a logging configuration to ``folder``; returns its path and the log's."""
    log = folder / f"{name}.log"
    config = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {"format": "%(asctime)s %(levelname)s %(process)d %(name)s %(message)s"}
        },
        "handlers": {
            "file": {"class": "logging.FileHandler", "filename": str(log), "formatter": "line"}
        },
        "loggers": {
            name: {"handlers": ["file"], "level": "INFO", "propagate": False}
            for name in ("vllm", "paceline")
        },
    }
    path = folder / f"{name}.logging.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path, log


def root_cause(log: Path) -> tuple[str, str] | None:
    """Returns the name and text of the first error in ``log`` that is not only a wrapper."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        found = _ERROR_LINE.search(line)
        if found and not found.group(2).startswith(_WRAPPERS):
            return found.group(1), found.group(2).strip()
    return None
