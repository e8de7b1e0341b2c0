"""Which GPUs the environment lets a process see, and whether all who read it agree.

ROCm's runtime reads ROCR_VISIBLE_DEVICES, and HIP counts among those that it leaves. Ray sets
HIP_VISIBLE_DEVICES on AMD and CUDA_VISIBLE_DEVICES elsewhere, and refuses ROCR_VISIBLE_DEVICES
(ray/_private/accelerators/amd_gpu.py). vLLM copies the first to the second and refuses unequal ones
(vllm/platforms/rocm.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.cluster.finding import Finding

ROCR, HIP, CUDA = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
_HIDDEN = {"", "-1", "NoDevFiles"}
_KEEP_OUT = tuple(f"RAY_EXPERIMENTAL_NOSET_{name}" for name in (HIP, CUDA))


def visibility(environment: Mapping[str, str]) -> Finding:
    """Judges the variables; reads nothing but ``environment``."""
    values = {name: environment[name] for name in (ROCR, HIP, CUDA) if name in environment}
    shown = ", ".join(f"{name}={value}" for name, value in values.items())
    if values.get(HIP) and values.get(CUDA) and values[HIP] != values[CUDA]:
        return _fail(f"{HIP} and {CUDA} differ ({shown}), which vLLM refuses; unset {CUDA}")
    if ROCR in values and HIP not in values:
        return _fail(f"{shown}, which Ray refuses; set {HIP} in its place")
    if ROCR in values:
        visible = _entries(values[ROCR])
        beyond = [e for e in _entries(values[HIP]) if e.isdigit() and int(e) >= len(visible)]
        if beyond:
            return _fail(
                f"{HIP} counts among the {len(visible)} that {ROCR} leaves and names {beyond[0]} "
                f"({shown}); unset {ROCR}"
            )
        return _warn(f"{HIP} counts among those that {ROCR} leaves ({shown}); unset {ROCR}")
    for name, value in values.items():
        if value.strip() in _HIDDEN:
            return _warn(f"{name} is '{value}', which hides every GPU; unset it to use one")
    for name in _KEEP_OUT:
        if environment.get(name, "").lower() in ("1", "true"):
            return _warn(f"{name} is set: Ray gives no process GPUs of its own; unset it")
    return Finding("ok", "GPU visibility", shown or "not restricted")


def _entries(value: str) -> list[str]:
    return [entry.strip() for entry in value.split(",") if entry.strip()]


def _fail(text: str) -> Finding:
    return Finding("fail", "GPU visibility", text)


def _warn(text: str) -> Finding:
    return Finding("warn", "GPU visibility", text)
