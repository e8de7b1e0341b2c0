"""What ``paceline doctor`` says of a machine: packages, devices, sockets, disk."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from paceline import models
from paceline.cluster.finding import Finding, tried
from paceline.cluster.run_folder import RunFolder
from paceline.cluster.visibility import visibility
from paceline.errors import ConfigError, EnvironmentError_
from paceline.transport import CurveKeys, Router, check_address
from paceline.verifier.config import TargetConfig
from paceline.verifier.environment import engine_environment
from paceline.verifier.probe import Probe

PACKAGES = ("ray", "transformers", "tokenizers", "safetensors", "msgspec")
MIN_FREE_GIB = 5.0
"""What the environment and the small models take together; see scripts/setup."""
_PROBE_TIMEOUT = 300.0
_GIB = 1 << 30


def check_machine() -> Iterator[Finding]:
    """Yields what can be said at once."""
    yield Finding("ok", "Python", f"{platform.python_version()} at {sys.executable}")
    for package in PACKAGES:
        yield tried(package, lambda package=package: _version(package))  # type: ignore[misc]
    yield tried("pyzmq", _curve)
    yield Finding("ok", "CPU", f"{num_cpus()} cores, {_memory()}")
    yield visibility(os.environ)
    yield tried("sockets", _ipc)
    yield _disk()


def check_engine(probe: Probe | EnvironmentError_) -> Iterator[Finding]:
    """Yields what ``run_probe`` found."""
    if isinstance(probe, EnvironmentError_):
        yield Finding("fail", "vLLM", str(probe))
        return
    yield Finding("ok", "torch", probe.torch)
    kind = "on CPU" if probe.is_cpu else "on GPU"
    if probe.problem:
        yield Finding("fail", "vLLM", probe.problem)
    else:
        yield Finding("ok", "vLLM", f"{probe.vllm} {kind}, with all that the hooks need")
    for number, device in enumerate(probe.devices):
        yield Finding("ok", f"GPU {number}", f"{device.name}, {device.memory_gib:.0f} GiB")
    if not probe.devices:
        if probe.is_cpu:
            yield Finding("ok", "GPU", "torch sees none")
        else:
            yield Finding("fail", "GPU", "torch sees none, and this vLLM needs one")


def run_probe() -> Probe | EnvironmentError_:
    """Runs ``verifier/probe.py``; returns the reason if it cannot be told."""
    with RunFolder() as folder:
        environment = {**os.environ, **engine_environment(TargetConfig(model="none"), str(folder))}
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "paceline.verifier.probe"],
                env=environment,
                capture_output=True,
                text=True,
                timeout=_PROBE_TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            return EnvironmentError_(f"importing vLLM takes more than {_PROBE_TIMEOUT:.0f} s")
    if ended.returncode == 0:
        return msgspec.json.decode(ended.stdout.strip().splitlines()[-1], type=Probe)
    reason = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
    return EnvironmentError_(
        f"torch or vLLM cannot be imported ({reason}); install Paceline with its extra cpu, or "
        "vLLM 0.32 for this machine's GPU"
    )


def num_cpus() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def memory_gib(field: str) -> float:
    """Returns a field of /proc/meminfo, such as ``MemAvailable``."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.removesuffix("kB")) / (1 << 20)
    raise AssertionError(f"Linux has {field} in /proc/meminfo")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise EnvironmentError_(
            "it is not installed; install Paceline with its extra cpu or gpu"
        ) from None


def _curve() -> str:
    CurveKeys.generate()
    return f"{_version('pyzmq')} with CURVE"


def _memory() -> str:
    return f"{memory_gib('MemTotal'):.1f} GiB of memory, {memory_gib('MemAvailable'):.1f} GiB free"


def _ipc() -> str:
    """Binds what a run would: a socket file in a folder for temporary files."""
    with RunFolder() as folder:
        address = f"ipc://{folder}/control"
        try:
            check_address(address)
        except ValueError as error:
            raise ConfigError(f"{error}; set TMPDIR to a shorter path") from error
        with Router(address, 1, None):
            return f"{address} can be bound"


def _disk() -> Finding:
    folder = models.cache_dir()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free / _GIB
    text = f"{free:.1f} GiB free for models in {folder}"
    if free < MIN_FREE_GIB:
        advice = "free some, or set PACELINE_CACHE to another folder"
        return Finding("warn", "disk", f"{text}, less than {MIN_FREE_GIB:.0f}; {advice}")
    return Finding("ok", "disk", text)
