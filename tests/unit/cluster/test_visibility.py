"""Variables that say which GPUs are visible: where their readers disagree, it is said."""

from __future__ import annotations

import pytest

from paceline.cluster.finding import Level
from paceline.cluster.visibility import visibility

ROCR, HIP, CUDA = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
NOSET = "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES"

TABLE: list[tuple[dict[str, str], Level, str]] = [
    ({}, "ok", "not restricted"),
    ({"PATH": "/bin", "RAY_ADDRESS": "auto"}, "ok", "not restricted"),
    ({HIP: "0,1"}, "ok", f"{HIP}=0,1"),
    ({CUDA: "3"}, "ok", f"{CUDA}=3"),
    ({CUDA: "GPU-8a1f"}, "ok", f"{CUDA}=GPU-8a1f"),
    ({HIP: "0,1", CUDA: "0,1"}, "ok", f"{HIP}=0,1, {CUDA}=0,1"),
    ({HIP: "0", CUDA: "1"}, "fail", f"which vLLM refuses; unset {CUDA}"),
    ({HIP: "0,1", CUDA: "1,0"}, "fail", "which vLLM refuses"),
    ({HIP: "0", CUDA: "1", ROCR: "0,1"}, "fail", "which vLLM refuses"),
    ({ROCR: "0"}, "fail", f"{ROCR}=0, which Ray refuses; set {HIP} in its place"),
    ({ROCR: "0", CUDA: "0"}, "fail", "which Ray refuses"),
    ({ROCR: "0", NOSET: "1"}, "fail", "which Ray refuses"),
    ({ROCR: "4,5", HIP: "0,1"}, "warn", f"counts among those that {ROCR} leaves"),
    ({ROCR: "4,5", HIP: "4"}, "fail", "counts among the 2 that"),
    ({ROCR: "4,5", HIP: "0,2"}, "fail", "names 2"),
    ({ROCR: "", HIP: "0"}, "fail", "counts among the 0 that"),
    ({HIP: ""}, "warn", f"{HIP} is '', which hides every GPU"),
    ({CUDA: ""}, "warn", f"{CUDA} is '', which hides every GPU"),
    ({CUDA: "-1"}, "warn", "hides every GPU"),
    ({HIP: "NoDevFiles"}, "warn", "hides every GPU"),
    ({HIP: "0", CUDA: ""}, "warn", "hides every GPU"),
    ({NOSET: "1", HIP: "0"}, "warn", f"{NOSET} is set: Ray gives no process GPUs of its own"),
    ({NOSET: "0", HIP: "0"}, "ok", f"{HIP}=0"),
]


@pytest.mark.parametrize(("environment", "level", "text"), TABLE)
def test_each_environment_has_its_verdict(
    environment: dict[str, str], level: Level, text: str
) -> None:
    finding = visibility(environment)
    assert (finding.level, finding.subject) == (level, "GPU visibility")
    assert text in finding.text
