"""What an unfinished output file is worth: finished lines are kept, the rest is tried again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.cluster.inputs import Prompt
from paceline.cluster.output import OutputFile
from paceline.cluster.resume import FREE_ENGINE_ARGS, fingerprint, take_up
from paceline.errors import ConfigError, InputError
from paceline.verifier.config import TargetConfig

TARGET = TargetConfig(model="m")
SAMPLING = {"max_tokens": 8, "temperature": 0.0}


def mark(prompt: Prompt) -> str:
    return f"mark of {prompt.prompt}"


def line(name: str, prompt: str | None = None, **more: Any) -> str:
    made = f"mark of {name if prompt is None else prompt}"
    whole = {"id": name, "fingerprint": made, "text": f"{name}…", **more}
    return json.dumps(whole, ensure_ascii=False) + "\n"


def error(name: str) -> str:
    return json.dumps({"id": name, "error": 'it "failed" \\'}) + "\n"


class Files:
    """An input with the prompts a, b and c, each its own id, and an output."""

    def __init__(self, folder: Path) -> None:
        self.source, self.output = folder / "in.jsonl", folder / "out.jsonl"
        self.source.write_text(
            "".join(f'{{"id": "{name}", "prompt": "{name}"}}\n' for name in "abc")
        )

    def take_up(self) -> set[str]:
        with OutputFile(self.output) as output:
            return take_up(self.source, output, mark)

    def refused(self) -> str:
        """Returns the reason; the output is as it was."""
        before = self.output.read_bytes()
        with pytest.raises(InputError) as refusal:
            self.take_up()
        assert self.output.read_bytes() == before
        return str(refusal.value)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_without_an_output_nothing_is_done(files: Files) -> None:
    assert files.take_up() == set()
    assert files.output.read_bytes() == b""
    assert files.take_up() == set()


def test_finished_lines_are_kept_as_they_stand(files: Files) -> None:
    text = line("c", usage={"x": [1, 2]}) + line("a").replace(": ", ":")
    files.output.write_text(text)
    before = files.output.stat()
    assert files.take_up() == {"a", "c"}
    assert files.output.read_text() == text
    assert files.output.stat().st_ino == before.st_ino, "nothing to change, nothing is changed"


def test_lines_with_an_error_are_taken_out(files: Files) -> None:
    files.output.write_text(error("a") + line("b") + error("b") + error("c"))
    files.output.chmod(0o640)
    assert files.take_up() == {"b"}
    assert files.output.read_text() == line("b")
    assert files.output.stat().st_mode & 0o777 == 0o640
    assert {path.name for path in files.output.parent.iterdir()} == {"in.jsonl", "out.jsonl"}


@given(st.data())
def test_a_last_line_that_was_cut_off_anywhere_is_taken_out(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    files = Files(tmp_path_factory.mktemp("files"))
    whole = line("a").encode()
    failed = data.draw(st.booleans())
    last = (error("b") if failed else line("b", text="größer")).encode()
    cut = data.draw(st.integers(0, len(last) - 1))
    files.output.write_bytes(whole + last[:cut])
    if cut == len(last) - 1 and not failed:
        # Only the end of the line is missing.
        assert files.take_up() == {"a", "b"}
        assert files.output.read_bytes() == whole + last
    else:
        assert files.take_up() == {"a"}
        assert files.output.read_bytes() == whole


def test_an_output_behind_a_link_stays_behind_it(files: Files, tmp_path: Path) -> None:
    real = tmp_path / "elsewhere.jsonl"
    real.write_text(line("a") + error("b"))
    files.output.symlink_to(real)
    assert files.take_up() == {"a"}
    assert files.output.is_symlink() and real.read_text() == line("a")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (line("a") + "{torn\n" + line("b"), "line 2 of .*out.jsonl is no result of paceline"),
        (line("a") + "\n" + line("b"), "line 2 of .*out.jsonl is no result"),
        ('{"id": "a", "text": "x"}\n', "line 1 of .*out.jsonl is no result"),
        ('{"id": 1, "text": "x", "fingerprint": "y"}\n', "line 1 of .*out.jsonl is no result"),
        ("[1, 2]", "line 1 of .*out.jsonl is no result"),
        ('{"id": "a", "error": "x", "data": 1}', "line 1 of .*out.jsonl is no result"),
        (error("d"), "holds a result for 'd', which .*in.jsonl does not have"),
        (line("d"), "holds a result for 'd', which .*in.jsonl does not have"),
        (line("a", "z"), "holds a result for 'a' with another prompt, target or sampling"),
        (line("a") + line("b") + line("a"), "holds two results for 'a'; delete one"),
    ],
)
def test_another_s_output_is_refused_and_left_alone(files: Files, text: str, reason: str) -> None:
    files.output.write_text(text)
    assert re.search(reason, files.refused())


@pytest.mark.parametrize(
    "last",
    [
        "a note of somebody's, without an end",
        '{"a": 1',
        '{"prompt": "half a',
        '{"id": "d", "finger',
        '{"id": "ab", "fingerprint": "mark of a", "text": "',
        '{"id": "a", "fingerprint": "mark of b", "text": "x',
        '{"id": "a", "text": "x',
        '{"id": "a", "fingerprint": 1',
        '{"id": "a", "error": "x", "data": [',
        '{"id": "a", "error": "x"} x',
        '{"id":"a","fingerprint":"mark of a","te',
        "null",
        "[" * 100_000,
        " ",
    ],
)
@pytest.mark.parametrize("before", ["", line("b")])
def test_an_end_that_is_no_beginning_of_ours_is_left_alone(
    files: Files, before: str, last: str
) -> None:
    files.output.write_text(before + last)
    assert re.search(
        "the last line of .*out.jsonl has no end and is no beginning of a result", files.refused()
    )


def test_an_id_that_json_has_to_escape_is_known_when_it_is_cut_off(files: Files) -> None:
    files.source.write_text(json.dumps({"id": 'g"rö\n', "prompt": "x"}))
    files.output.write_text(line('g"rö\n', "x")[:12])
    assert files.take_up() == set()
    assert files.output.read_bytes() == b""


def test_a_prompt_that_is_broken_now_does_not_fit_its_result(files: Files) -> None:
    files.source.write_text('{"id": "a", "prompt": ""}\n')
    files.output.write_text(line("a"))
    assert "holds a result for 'a' with another prompt" in files.refused()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ('{"id": "a", "prompt": "x"}\n\n{"id": "a", "prompt": "y"}', "lines 1 and 3 of"),
        ('{"id": "2", "prompt": "x"}\n{"prompt": "y"}', "lines 1 and 2 of"),
        ('{"id": 2, "prompt": "x"}\n{oops', "lines 1 and 2 of"),
    ],
)
def test_ids_that_are_not_unique_are_refused(files: Files, source: str, reason: str) -> None:
    files.source.write_text(source)
    files.output.write_text("")
    assert reason in files.refused()


def test_an_output_that_cannot_be_written_says_why(files: Files) -> None:
    files.output.mkdir()
    with pytest.raises(ConfigError, match=r"out\.jsonl cannot be written: is a directory"):
        files.take_up()


def prompt(**changes: Any) -> Prompt:
    return Prompt(**{"line": 1, "id": "a", "prompt": "x", **changes})


def test_a_fingerprint_is_of_what_the_text_depends_on() -> None:
    base = fingerprint(TARGET, prompt(), SAMPLING)
    assert len(base) == 16
    free = dict.fromkeys(FREE_ENGINE_ARGS, 1)
    same = [
        fingerprint(TargetConfig(model="m", max_num_seqs=1, kv_cache_gib=2), prompt(), SAMPLING),
        fingerprint(TargetConfig(model="m", engine_args=free), prompt(), SAMPLING),
        fingerprint(TARGET, prompt(line=9, id="b"), dict(reversed(SAMPLING.items()))),
    ]
    assert set(same) == {base}
    others = [
        fingerprint(TargetConfig(model="n"), prompt(), SAMPLING),
        fingerprint(TargetConfig(model="m", dtype="float32"), prompt(), SAMPLING),
        fingerprint(TargetConfig(model="m", max_model_len=64), prompt(), SAMPLING),
        *(
            fingerprint(TargetConfig(model="m", engine_args=changed), prompt(), SAMPLING)
            for changed in (
                {"quantization": "fp8"},
                {"quantization": "awq"},
                {"hf_overrides": {"rope_theta": 1e6, 1: None}},
                {"not_known_here": True},
            )
        ),
        fingerprint(TARGET, prompt(prompt="y"), SAMPLING),
        fingerprint(TARGET, prompt(prompt=None, messages=[{"role": "user", "content": "x"}]), {}),
        fingerprint(TARGET, prompt(), {**SAMPLING, "max_tokens": 9}),
        fingerprint(TARGET, prompt(), {**SAMPLING, "seed": 0}),
    ]
    assert len({base, *others}) == 1 + len(others)
