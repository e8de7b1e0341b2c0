"""The file of a recording: written in time, and never the engine's end."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.scheduler.recording import replay
from paceline.verifier import record_file
from paceline.verifier.record_file import RecordFile, check_record
from tests.unit.verifier.scripted import Rig


def test_what_was_written_is_there_after_stop(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_bytes(b"old")
    file = RecordFile(path)
    file.start()
    file.write(b"one\n")
    file.write(b"two\n")
    file.stop()
    file.stop()
    assert path.read_bytes() == b"one\ntwo\n"
    file.write(b"three\n")
    assert path.read_bytes() == b"one\ntwo\n"


def test_stop_without_start_makes_no_file(tmp_path: Path) -> None:
    RecordFile(tmp_path / "r").stop()
    assert not (tmp_path / "r").exists()


def test_it_is_flushed_without_a_further_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "FLUSH_SECONDS", 0.001)
    path = tmp_path / "r"
    file = RecordFile(path)
    file.start()
    file.write(b"one\n")
    while not path.read_bytes():
        pass  # ends by the test's own time limit at the latest
    file.stop()


def test_where_nothing_can_be_written_it_is_refused(tmp_path: Path) -> None:
    for refuse in (RecordFile(tmp_path).start, lambda: check_record(str(tmp_path))):
        with pytest.raises(
            ConfigError,
            match=rf"^speculation.record is {tmp_path}, which cannot be written: is a directory$",
        ):
            refuse()


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match=r"which is no file; name another one$"):
        check_record(str(pipe))
    with pytest.raises(ConfigError, match=r"^speculation.record is /dev/null"):
        check_record("/dev/null")


def test_a_check_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_bytes(b"old")
    check_record(str(path))
    assert path.read_bytes() == b"old"


def test_a_full_disk_ends_the_recording_alone(caplog: pytest.LogCaptureFixture) -> None:
    file = RecordFile(Path("/dev/full"))
    file.start()
    with caplog.at_level(logging.WARNING, "paceline.verifier"):
        file.write(b"x" * (4 << 20))
        file.write(b"more")
    file.stop()
    assert caplog.messages == ["the recording /dev/full has ended: No space left on device"]


def test_all_that_a_pipeline_decides_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "r"
    rig = Rig(record=RecordFile(path))
    rig.pipeline.start()
    rig.join()
    rig.admit("a")
    rig.commit(50)
    rig.arrive(1, 4, 60)
    rig.pipeline.step(["a"], prefill_ready=False)
    rig.pipeline.pass_started()
    rig.pipeline.pass_ended()
    rig.commit(60, 61, num_drafted=1, num_accepted=1)
    rig.pipeline.close("a")
    rig.pipeline.stop()
    with path.open("rb") as lines:
        done = replay(lines)
    assert (done.num_passes, len(done.counters)) == (1, 1)
    assert done.counters[0].accepted == 1
