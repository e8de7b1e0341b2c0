"""The keys of a run on disk: readable by their user only, and never printed."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.transport import CurveKeys


def test_saved_keys_are_read_back(tmp_path: Path) -> None:
    keys = CurveKeys.generate()
    keys.save(tmp_path / "keys")
    assert CurveKeys.read(tmp_path / "keys") == keys


def test_the_file_is_the_user_s_alone(tmp_path: Path) -> None:
    CurveKeys.generate().save(tmp_path / "keys")
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601, 0o777])
def test_a_file_that_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys"
    CurveKeys.generate().save(path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match="chmod it to 600"):
        CurveKeys.read(path)


def test_an_existing_file_is_never_written_to(tmp_path: Path) -> None:
    """Somebody else's file of that name could be readable, or a link."""
    path = tmp_path / "keys"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        CurveKeys.generate().save(path)
    assert path.read_text() == "mine"


def test_keys_do_not_show_in_a_log() -> None:
    keys = CurveKeys.generate()
    for text in (repr(keys), str(keys), f"{[keys]}"):
        assert not any(
            secret in text
            for secret in (keys.server_secret, keys.client_secret, keys.server_public)
        )


def test_two_runs_have_different_keys() -> None:
    one, other = CurveKeys.generate(), CurveKeys.generate()
    assert one.server_secret != other.server_secret
    assert one.client_secret != other.client_secret
