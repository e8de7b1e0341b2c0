"""The arrows between the roles, and the other rules that a file cannot break unnoticed.

The roles are read, not imported: none of their dependencies is needed here.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROLES = {"bench", "cluster", "drafter", "scheduler", "training", "verifier"}
MAY_IMPORT: dict[str, set[str]] = {
    "scheduler": set(),
    "drafter": {"scheduler"},
    "verifier": {"scheduler"},
    "cluster": {"scheduler", "drafter", "verifier"},
    "training": {"drafter", "verifier"},
    "bench": ROLES,
    "contract": set(),
}
"""Which roles each role may import; "contract" is the files of paceline/ itself."""

ONLY_IN = {"vllm": {"verifier", "bench", "training"}, "ray": {"cluster", "bench"}}
"""Who may import what is heavy, so that everybody else is tested without it."""

IMPURE = {
    "asyncio",
    "multiprocessing",
    "ray",
    "socket",
    "subprocess",
    "threading",
    "time",
    "torch",
    "vllm",
    "zmq",
}
"""What scheduler/ must not import: it decides from events and a time that it is told."""

UNSAFE_MODULES = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}
UNSAFE_CALLS = {
    "recv_pyobj",
    "send_pyobj",
    "torch.load",
    "yaml.full_load",
    "yaml.load",
    "yaml.unsafe_load",
}
"""What runs code that is found in data; data here comes from peers and from downloads."""

HEAVY = {"ray", "torch", "transformers", "vllm"}
NEEDS_HEAVY = {"paceline.model_convert"}
"""Files of the contract that are run in a process of their own, never imported."""

MAX_LINES = 500


def _files(role: str) -> list[Path]:
    if role == "contract":
        return sorted((ROOT / "paceline").glob("*.py"))
    return sorted((ROOT / role).rglob("*.py"))


def _production_files() -> Iterator[tuple[str, Path]]:
    for role in sorted(MAY_IMPORT):
        for path in _files(role):
            yield role, path
    for folder in ("examples", "scripts"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield folder, path


def _module_of(path: Path) -> list[str]:
    """The package that relative imports in this file start from."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return parts if parts[0] == "paceline" else ["paceline", *parts]


def imports(source: str, module: list[str]) -> set[str]:
    """Every module that the source imports, with each name of a from-import as a candidate.

    Imports inside functions and under TYPE_CHECKING count: an arrow is an arrow.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module[: -node.level] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            found.add(stem)
            found.update(f"{stem}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call):
            # importlib.import_module("…") and __import__("…")
            name = ast.unparse(node.func).rpartition(".")[2]
            first = node.args[0] if node.args else None
            if (
                name in {"import_module", "__import__"}
                and isinstance(first, ast.Constant)
                and isinstance(first.value, str)
            ):
                found.add(first.value)
    return found


def faults(role: str, source: str, module: list[str]) -> list[str]:
    """What in the source breaks a rule, one line each."""
    found = []
    for name in sorted(imports(source, module)):
        top, _, rest = name.partition(".")
        if top in ROLES:
            found.append(f"imports {name}: write paceline.{name}")
        if top == "paceline":
            target = rest.partition(".")[0]
            allowed = MAY_IMPORT.get(role, ROLES) | {role}
            if target in ROLES and target not in allowed:
                found.append(f"imports {name}: {role} may import {sorted(allowed - {role})}")
        if top in ONLY_IN and role not in ONLY_IN[top] and role in MAY_IMPORT:
            found.append(f"imports {name}: only {sorted(ONLY_IN[top])} may")
        if role == "scheduler" and top in IMPURE:
            found.append(f"imports {name}: scheduler/ is pure")
        if top in UNSAFE_MODULES or name in UNSAFE_CALLS:
            found.append(f"imports {name}: it runs code that is found in data")
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        call = ast.unparse(node.func)
        if call in UNSAFE_CALLS or call.rpartition(".")[2] in UNSAFE_CALLS:
            found.append(f"line {node.lineno} calls {call}: it runs code that is found in data")
        if any(word.arg == "allow_pickle" for word in node.keywords):
            found.append(f"line {node.lineno} names allow_pickle: arrays carry no objects here")
    return found


def test_no_file_breaks_a_rule() -> None:
    broken = [
        f"{path.relative_to(ROOT)} {fault}"
        for role, path in _production_files()
        for fault in faults(role, path.read_text(), _module_of(path))
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("role", "source"),
    [
        ("drafter", "from paceline.verifier import engine"),
        ("drafter", "from paceline import verifier"),
        ("drafter", "from ..verifier import engine"),
        ("drafter", "def f():\n    import vllm.config"),
        ("drafter", "import pickle"),
        ("drafter", "from torch import load"),
        ("drafter", "import torch\ntorch.load('x')"),
        ("verifier", "import importlib\nimportlib.import_module('paceline.drafter')"),
        ("verifier", "import ray"),
        ("verifier", "import numpy as np\nnp.load('x', allow_pickle=True)"),
        ("scheduler", "import time"),
        ("scheduler", "from time import monotonic"),
        ("scheduler", "import cluster"),
        ("training", "from paceline.bench import report"),
        ("contract", "from paceline.scheduler import state"),
        ("contract", "socket.send_pyobj(1)"),
        ("contract", "import yaml\nyaml.load('')"),
        ("examples", "import drafter.loop"),
    ],
)
def test_the_rules_catch(role: str, source: str) -> None:
    assert faults(role, source, ["paceline", role, "module"])


@pytest.mark.parametrize(
    ("role", "source"),
    [
        ("drafter", "from paceline.scheduler.state import State\nfrom . import loop"),
        ("cluster", "import ray\nfrom paceline.drafter import loop"),
        ("verifier", "from vllm import LLM\nfrom paceline.messages import Open"),
        ("scheduler", "import math\nfrom dataclasses import dataclass"),
        ("contract", "import yaml\nyaml.safe_load('')"),
    ],
)
def test_the_rules_allow(role: str, source: str) -> None:
    assert not faults(role, source, ["paceline", role, "module"])


def test_every_role_is_linked_relatively() -> None:
    """An absolute link would work on one machine; a copy in place of a link would drift."""
    links = {p.name: os.readlink(p) for p in (ROOT / "paceline").iterdir() if p.is_symlink()}
    assert links == {role: f"../{role}" for role in ROLES}
    for role in ROLES:
        assert (ROOT / role / "__init__.py").is_file()


def test_no_file_is_too_long() -> None:
    files = [path for _, path in _production_files()] + sorted((ROOT / "tests").rglob("*.py"))
    lines = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in files}
    assert not {name: count for name, count in lines.items() if count > MAX_LINES}


def test_no_role_is_imported_under_its_bare_name() -> None:
    """`cluster.x` beside `paceline.cluster.x` would be two modules with two unequal classes."""
    assert not ROLES & sys.modules.keys()


def _loaded_by(code: str) -> set[str]:
    """The heavy packages in sys.modules after the code has run in a fresh interpreter."""
    script = f"{code}\nimport sys\nprint('loaded', *({HEAVY!r} & sys.modules.keys()))"
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    "module",
    [
        ".".join(_module_of(path)).removesuffix(".__init__")
        for path in _files("contract")
        if ".".join(_module_of(path)) not in NEEDS_HEAVY
    ],
)
def test_the_contract_loads_nothing_heavy(module: str) -> None:
    assert _loaded_by(f"import {module}") == set()


@pytest.mark.skipif(
    not (ROOT / "cluster" / "launch.py").exists(), reason="there is no command line yet"
)
def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['paceline', '--help']\n"
        "from paceline.cluster.launch import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
    )
    assert _loaded_by(code) == set()
