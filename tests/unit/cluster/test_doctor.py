"""What the doctor says of machines and configurations, without an engine."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline.cards import CARD_FILE, Card, card_text
from paceline.cluster import config_checks, doctor, launch, machine_checks
from paceline.cluster.config import PacelineConfig
from paceline.cluster.config_checks import check_config
from paceline.cluster.finding import Finding
from paceline.config import parse
from paceline.errors import EnvironmentError_
from paceline.verifier.probe import Device, Probe
from tests.tiny import make_tiny_llama
from tests.unit.drafter import checkpoints
from tests.unit.wire import free_tcp_address

CPU = Probe(
    torch="2.13.0",
    devices=[],
    vllm="0.32.0",
    engine_args=["enforce_eager", "quantization"],
    is_cpu=True,
    problem="",
)


def gpus(number: int) -> Probe:
    device = Device(name="MI300X", memory_gib=192.0)
    return msgspec.structs.replace(CPU, is_cpu=False, devices=[device] * number)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CPU machine with 8 cores and 16 GiB free, whatever this one has."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(config_checks, "num_cpus", lambda: 8)
    monkeypatch.setattr(config_checks, "memory_gib", lambda field: 16.0)
    monkeypatch.setattr(doctor, "run_probe", lambda: CPU)
    yield


def findings(tiny: Path, probe: Probe | None = CPU, **changes: Any) -> dict[str, Finding]:
    """What is said of a target in the folder ``tiny``, with ``changes`` to the sections."""
    sections: dict[str, Any] = {
        "target": {"model": str(tiny), "dtype": "float32", **changes.pop("target", {})},
        **changes,
    }
    config = parse(sections, PacelineConfig, source="test")
    return {finding.subject: finding for finding in check_config(config, probe)}


def draft(**changes: Any) -> dict[str, Any]:
    return {"name": "d", "method": "draft_model", **changes}


def test_a_configuration_that_fits_is_fine_throughout(tiny: Path) -> None:
    found = findings(tiny, drafters=[draft(model=str(tiny)), {"name": "n", "method": "ngram"}])
    assert {finding.level for finding in found.values()} == {"ok"}
    assert list(found) == [
        *("cores", "control", "target", "drafter d", "drafter n", "KV cache", "memory")
    ]
    assert str(found["drafter n"]) == "ok    drafter n: ngram, no model"


def test_more_threads_than_cores_are_a_warning(tiny: Path) -> None:
    found = findings(tiny, target={"threads": 6}, drafters=[draft(model=str(tiny), threads=3)])
    assert found["cores"].level == "warn"
    assert "take 9 threads, this machine has 8 cores" in found["cores"].text


@pytest.mark.parametrize(
    ("name", "level", "text"),
    [
        ("enforce_eager", "ok", "vLLM knows enforce_eager"),
        (
            "enforce_eagre",
            "fail",
            "target.engine_args.enforce_eagre is no argument of vLLM's; did you mean "
            "'enforce_eager'?",
        ),
        ("xyz", "fail", "target.engine_args.xyz is no argument of vLLM's; leave it out"),
    ],
)
def test_engine_arguments_are_looked_up_in_this_vllm(
    tiny: Path, name: str, level: str, text: str
) -> None:
    target = {"engine_args": {name: True}}
    found = findings(tiny, target=target)["engine_args"]
    assert (found.level, found.text) == (level, text)
    assert "engine_args" not in findings(tiny, None, target=target), "this vLLM is not known"


def test_a_target_that_is_not_there_ends_the_checks_of_models(tiny: Path) -> None:
    found = findings(tiny, target={"model": "/no/such/model"}, drafters=[draft(model=str(tiny))])
    assert found["target"] == Finding(
        "fail", "target", "the model folder '/no/such/model' does not exist: check the path"
    )
    assert "drafter d" not in found and "KV cache" not in found


def test_a_draft_on_the_target_s_states_is_told_thing_by_thing(tmp_path: Path) -> None:
    target = checkpoints.target(tmp_path / "t")
    path = checkpoints.block(tmp_path / "d", "dflash", "z-lab")
    drafters = [draft(method="dflash", model=str(path), num_speculative_tokens=8)]
    found = findings(target, drafters=drafters, target={"max_model_len": 512})
    assert found["drafter d"].level == "ok"
    assert found["drafter d, block size"].level == "fail"
    assert found["drafter d, layers"].text == "takes what enters layers 1, 3, 5 of 6"
    assert "drafter d, rows" not in found, "of what does not fit no costs are told"
    drafters[0]["num_speculative_tokens"] = 7
    found = findings(target, drafters=drafters)
    assert {finding.level for finding in found.values()} == {"ok"}
    assert "768 bytes for each token" in found["drafter d, rows"].text
    drafters[0]["method"] = "dspark"
    assert "is a draft for dflash" in findings(target, drafters=drafters)["drafter d"].text


def test_mtp_without_a_model_is_looked_for_in_the_target(tmp_path: Path) -> None:
    target = checkpoints.target(tmp_path / "t")
    block = checkpoints.mtp(tmp_path / "b", "mimo")
    (block / "model.safetensors").rename(target / "mtp.safetensors")
    found = findings(target, drafters=[draft(method="mtp")])
    assert found["drafter d"].text == "mtp, in the target's own checkpoint"
    assert found["drafter d, layers"].text == "takes the target's last state"


def test_a_drafter_that_does_not_fit_is_one_of_several(tiny: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny, other)
    config = other / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 256', '"vocab_size": 512'))
    found = findings(
        tiny,
        drafters=[draft(model=str(other)), draft(name="e", model=str(tiny))],
    )
    assert found["drafter d"].level == "fail" and "vocabulary of 512" in found["drafter d"].text
    assert found["drafter e"].level == "ok"


def test_a_kv_cache_that_is_too_small_for_one_request(tiny: Path) -> None:
    # 2 layers, 2 heads of 32, keys and values, 4 bytes: 1 KiB a token; 512 of them 0.5 MiB.
    found = findings(tiny, target={"max_model_len": 512, "kv_cache_gib": 0.4 / 1024})
    assert found["KV cache"].level == "fail"
    assert "raise target.kv_cache_gib or lower target.max_model_len" in found["KV cache"].text
    found = findings(tiny, target={"max_model_len": 512, "kv_cache_gib": 1.1 / 1024})
    assert found["KV cache"].level == "ok" and "2 at a time" in found["KV cache"].text


def test_more_memory_than_is_free(tiny: Path) -> None:
    found = findings(tiny, target={"kv_cache_gib": 17})
    assert found["memory"].level == "fail" and "16.0 are free" in found["memory"].text
    assert "memory" not in findings(tiny, gpus(1), target={"kv_cache_gib": 17})


@pytest.mark.parametrize(
    ("probe", "tensor_parallel_size", "device", "level", "text"),
    [
        (CPU, 1, "cpu", None, ""),
        (CPU, 1, "cuda", "fail", "torch sees no GPU; set cpu"),
        (gpus(2), 1, "cuda", "ok", "takes 1 and drafters take 1, torch sees 2"),
        (gpus(1), 1, "cpu", "ok", "takes 1 and drafters take 0, torch sees 1"),
        (gpus(1), 1, "cuda", "fail", "set a drafter's device to cpu"),
        (gpus(1), 2, "cpu", "fail", "lower target.tensor_parallel_size"),
        (None, 1, "cuda", None, ""),
    ],
)
def test_gpus_that_are_wanted_are_counted(
    tiny: Path,
    probe: Probe | None,
    tensor_parallel_size: int,
    device: str,
    level: str | None,
    text: str,
) -> None:
    found = findings(
        tiny,
        probe,
        target={"tensor_parallel_size": tensor_parallel_size},
        drafters=[draft(model=str(tiny), device=device)],
    )
    if level is None:
        assert "GPUs" not in found
    else:
        assert found["GPUs"].level == level and text in found["GPUs"].text


def test_the_control_address_is_tried(tiny: Path) -> None:
    address = free_tcp_address()
    found = findings(tiny, transport={"control": address})
    assert str(found["control"]) == f"ok    control: {address} can be bound"
    found = findings(tiny, transport={"control": "ipc:///no/such/folder/socket"})
    assert found["control"].level == "fail" and "/no/such/folder" in found["control"].text


def test_on_a_cluster_the_models_are_elsewhere(tiny: Path) -> None:
    assert findings(tiny, cluster={"address": "head:6379"})["cluster"].level == "warn"


def test_a_hub_id_is_not_looked_at(tiny: Path) -> None:
    found = findings(tiny, target={"model": "some/model"})
    assert found["target"].level == "warn" and "hub id" in found["target"].text


def test_this_machine_is_told_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(machine_checks.check_machine())
    subjects = [finding.subject for finding in found]
    assert subjects[0] == "Python" and subjects[-1] == "disk"
    assert {"ray", "pyzmq", "CPU", "GPU visibility", "sockets"} <= set(subjects)
    monkeypatch.setattr(machine_checks, "PACKAGES", ("no-such-package",))
    missing = next(f for f in machine_checks.check_machine() if f.subject == "no-such-package")
    assert missing.level == "fail" and "extra cpu or gpu" in missing.text


def test_a_folder_for_temporary_files_that_is_too_deep(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    sockets = next(f for f in machine_checks.check_machine() if f.subject == "sockets")
    assert sockets.level == "fail" and "set TMPDIR to a shorter path" in sockets.text


def test_a_disk_that_is_nearly_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "MIN_FREE_GIB", 1e9)
    disk = list(machine_checks.check_machine())[-1]
    assert disk.level == "warn" and "set PACELINE_CACHE to another folder" in disk.text


@pytest.mark.parametrize(
    ("probe", "subject", "level"),
    [
        (CPU, "vLLM", "ok"),
        (msgspec.structs.replace(CPU, problem="too old"), "vLLM", "fail"),
        (EnvironmentError_("no module named vllm"), "vLLM", "fail"),
        (gpus(0), "GPU", "fail"),
        (gpus(2), "GPU 1", "ok"),
    ],
)
def test_what_the_probe_found_is_told(
    probe: Probe | EnvironmentError_, subject: str, level: str
) -> None:
    found = {finding.subject: finding for finding in machine_checks.check_engine(probe)}
    assert found[subject].level == level


def test_a_probe_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    probe = machine_checks.run_probe()
    assert isinstance(probe, EnvironmentError_) and "exit code 1" in str(probe)


def test_a_broken_configuration_fails_on_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("target: {modle: m}")
    assert launch.main(["doctor", "--config", str(path)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert all(re.match(r"(ok|warn|fail) +[^:]+: .", line) for line in lines)
    assert lines[-1] == (
        f"fail  configuration: {path}: unknown key 'target.modle'; did you mean 'model'?"
    )


def test_a_failure_keeps_the_self_test_from_running(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("target: {model: /no/such/model}")
    assert launch.main(["doctor", "--config", str(path), "--self-test"]) == 2
    assert capsys.readouterr().out.splitlines()[-1].startswith("fail  self-test: not run")


def test_nothing_that_fails_is_exit_code_zero(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "check_machine", lambda: [Finding("warn", "x", "y")])
    assert launch.main(["doctor"]) == 0
    assert launch.main(["doctor", "--self-test"]) == 2
    assert "name its configuration with --config" in capsys.readouterr().err


def test_a_draft_for_another_target_is_a_warning(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "draft"
    shutil.copytree(tiny, path)
    card = Card(
        name="draft", target="somebody/other", method="draft_model", num_speculative_tokens=4
    )
    (path / CARD_FILE).write_text(card_text({}, card, ""))
    found = findings(tiny, drafters=[draft(model=str(path))])["drafter d"]
    assert found.level == "warn"
    assert "was trained for somebody/other, and the target is" in found.text
