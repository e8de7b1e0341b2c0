"""The cause of a failed start, out of vLLM's log."""

from __future__ import annotations

import json
import logging
import logging.config
from pathlib import Path

import pytest

from paceline.verifier.logs import root_cause, write_logging_config

PREFIX = "2026-01-01 00:00:00,000 ERROR 12 vllm.v1.engine.core "
TRACEBACK = """\
2026-01-01 00:00:00,000 INFO 12 vllm.v1.engine.core Initializing a V1 LLM engine
2026-01-01 00:00:01,000 WARNING 12 vllm.config Errors: none so far; no ValueError yet
2026-01-01 00:00:02,000 ERROR 12 vllm.v1.engine.core EngineCore failed to start.
Traceback (most recent call last):
  File "/x/core.py", line 700, in run_engine_core
    raise ValueError(f"To serve at least one request: {needed}")
ValueError: To serve at least one request: 9 GiB is needed
"""
WRAPPER = "RuntimeError: Engine core initialization failed. See root cause above."
WORKER = "Exception: WorkerProc initialization failed due to an exception in a background process."


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "target.log"


def test_the_first_error_is_the_cause(log: Path) -> None:
    log.write_text(TRACEBACK + "KeyError: 'later'\n")
    assert root_cause(log) == ("ValueError", "To serve at least one request: 9 GiB is needed")


@pytest.mark.parametrize("wrapper", [WRAPPER, WORKER])
def test_what_only_says_that_a_process_failed_is_passed_over(log: Path, wrapper: str) -> None:
    log.write_text(f"{wrapper}\n{TRACEBACK}")
    cause = root_cause(log)
    assert cause is not None and cause[0] == "ValueError"


def test_only_wrappers_are_no_cause(log: Path) -> None:
    log.write_text(f"{WORKER}\n{WRAPPER}\n")
    assert root_cause(log) is None


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("torch.OutOfMemoryError: no memory", ("OutOfMemoryError", "no memory")),
        (PREFIX + "ValueError: wrong", ("ValueError", "wrong")),
        (PREFIX + "(Worker_TP0) a.b.SomeException: x: y", ("SomeException", "x: y")),
        ("AssertionError: ", None),
        ("  raise ValueError(text)", None),
        ("Error", None),
        ("there was an error: sadly", None),
        ("", None),
    ],
)
def test_what_counts_as_an_error(log: Path, line: str, cause: tuple[str, str] | None) -> None:
    log.write_text(f"INFO all is well\n{line}\n")
    assert root_cause(log) == cause


def test_a_log_with_broken_characters_is_read(log: Path) -> None:
    log.write_bytes(b"\xff\xfe\nOSError: no \xff disk\n")
    assert root_cause(log) == ("OSError", "no � disk")


def test_a_log_that_is_not_there_has_no_cause(log: Path) -> None:
    assert root_cause(log) is None


def test_the_written_configuration_sends_an_error_to_where_it_is_looked_for(
    tmp_path: Path,
) -> None:
    config, log = write_logging_config(tmp_path, "target")
    logger = logging.getLogger("vllm")
    before = (logger.handlers[:], logger.level, logger.propagate)
    ours = logging.getLogger("paceline")
    ours_before = (ours.handlers[:], ours.level, ours.propagate)
    try:
        logging.config.dictConfig(json.loads(config.read_text()))
        try:
            raise ValueError("too large")
        except ValueError:
            logging.getLogger("vllm.engine").exception("it failed")
        assert root_cause(log) == ("ValueError", "too large")
    finally:
        for handler in {*logger.handlers, *ours.handlers}:
            handler.close()
        logger.handlers[:], logger.level, logger.propagate = before
        ours.handlers[:], ours.level, ours.propagate = ours_before
