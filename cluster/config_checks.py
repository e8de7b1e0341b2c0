"""What ``paceline doctor`` says of a configuration on this machine, before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator

from paceline import models
from paceline.cluster.config import PacelineConfig
from paceline.cluster.finding import Finding, tried
from paceline.cluster.machine_checks import memory_gib, num_cpus
from paceline.drafter.config import ROW_METHODS, DrafterConfig
from paceline.drafter.draft_checks import Remark
from paceline.drafter.preflight import check_drafter, draft_remarks, other_target
from paceline.errors import ConfigError, UserError
from paceline.transport import probe_bind
from paceline.verifier import preflight
from paceline.verifier.probe import Probe
from paceline.verifier.record_file import check_record


def check_config(config: PacelineConfig, probe: Probe | None) -> Iterator[Finding]:
    """Yields one finding for each thing that the run needs; ``probe``: None if it failed."""
    yield _cores(config)
    if probe is not None:
        yield from _gpus(config, probe)
        if config.target.engine_args:
            yield tried("engine_args", lambda: _engine_args(config, probe))
    yield tried("control", lambda: _control(config.transport.control))
    if (record := config.speculation.record) is not None:
        yield tried("record", lambda: _record(record))
    address = config.cluster.address or os.environ.get("RAY_ADDRESS")
    if address is not None:
        yield Finding(
            "warn", "cluster", f"models are looked for here, not where {address} runs the actors"
        )
    try:
        resolved = preflight.check_target(config.target)
    except UserError as error:
        yield Finding("fail", "target", str(error))
        return
    yield _model("target", config.target.model, resolved)
    for drafter in config.active_drafters:
        yield from _drafter(drafter, config, resolved)
    if os.path.isdir(resolved):
        yield from _memory(config, resolved, is_cpu=probe is None or probe.is_cpu)


def _cores(config: PacelineConfig) -> Finding:
    target = config.target
    needed = target.threads * target.tensor_parallel_size
    needed += sum(drafter.threads * drafter.replicas for drafter in config.active_drafters)
    text = f"target and drafters take {needed} threads, this machine has {num_cpus()} cores"
    if needed > num_cpus():
        return Finding("warn", "cores", f"{text}; they slow each other down")
    return Finding("ok", "cores", text)


def _gpus(config: PacelineConfig, probe: Probe) -> Iterator[Finding]:
    num_drafting = sum(d.replicas for d in config.active_drafters if d.device != "cpu")
    if num_drafting and not probe.devices:
        yield Finding("fail", "GPUs", "a drafter's device is cuda, but torch sees no GPU; set cpu")
        return
    if probe.is_cpu and not num_drafting:
        return
    num_verifying = 0 if probe.is_cpu else config.target.tensor_parallel_size
    text = (
        f"the target takes {num_verifying} and drafters take {num_drafting}, torch sees "
        f"{len(probe.devices)}"
    )
    if num_verifying > len(probe.devices):
        yield Finding("fail", "GPUs", f"{text}; lower target.tensor_parallel_size")
    elif num_verifying + num_drafting > len(probe.devices):
        yield Finding("fail", "GPUs", f"{text}; set a drafter's device to cpu")
    else:
        yield Finding("ok", "GPUs", text)


def _engine_args(config: PacelineConfig, probe: Probe) -> str:
    preflight.check_engine_args(config.target, probe.engine_args)
    return f"vLLM knows {', '.join(config.target.engine_args)}"


def _record(path: str) -> str:
    check_record(path)
    return f"{path} can be written"


def _control(address: str) -> str:
    if address == "auto":
        return "auto, a socket file of each run"
    if address.startswith("ipc://"):
        folder = os.path.dirname(address.removeprefix("ipc://"))
        if not os.access(folder, os.W_OK):
            raise ConfigError(
                f"transport.control is {address}, but {folder} is no folder that can be written"
            )
    probe_bind(address)
    return f"{address} can be bound"


def _drafter(drafter: DrafterConfig, config: PacelineConfig, target: str) -> Iterator[Finding]:
    subject = f"drafter {drafter.name}"
    if drafter.method == "scripted" and drafter.scripted_answers is None:
        yield Finding("warn", subject, "scripted, for paceline bench only, which makes its answers")
        return
    dtype = config.target.dtype
    remarks: list[Remark] = []
    try:
        if drafter.method in ROW_METHODS:
            remarks = draft_remarks(drafter, target, dtype, config.target.max_model_len)
        else:
            check_drafter(drafter, target, dtype)
        other = other_target(drafter, config.target.model, target, dtype)
        resolved = models.resolve(drafter.model, drafter.dtype or dtype) if drafter.model else ""
    except UserError as error:
        yield Finding("fail", subject, str(error))
        return
    if drafter.model is None:
        where = "in the target's own checkpoint" if drafter.method in ROW_METHODS else "no model"
        yield Finding("ok", subject, f"{drafter.method}, {where}")
    elif other:
        yield Finding(
            "warn",
            subject,
            f"{drafter.model} was trained for {other}, and the target is {config.target.model}: "
            "fewer of its drafts are accepted, if it fits at all",
        )
    else:
        yield _model(subject, drafter.model, resolved)
    for remark in remarks:
        yield Finding(remark.level, f"{subject}, {remark.subject}", remark.text)


def _model(subject: str, name: str, resolved: str) -> Finding:
    if not os.path.isdir(resolved):
        return Finding("warn", subject, f"{name} is a hub id: it is looked at when it is loaded")
    try:
        fingerprint = models.tokenizer_fingerprint(resolved)
    except UserError as error:
        return Finding("fail", subject, str(error))
    tokenizer = f"tokenizer {fingerprint[:12]}" if fingerprint else "no tokenizer.json"
    return Finding("ok", subject, f"{name} in {resolved}, {tokenizer}")


def _memory(config: PacelineConfig, resolved: str, *, is_cpu: bool) -> Iterator[Finding]:
    target = config.target
    yield tried("KV cache", lambda: preflight.check_kv_cache(target, resolved, is_cpu=is_cpu))
    if is_cpu:
        cache = target.kv_cache_gib or preflight.CPU_KV_CACHE_GIB
        needed = cache * target.tensor_parallel_size + models.weight_gib(resolved)
        free = memory_gib("MemAvailable")
        text = f"target and KV cache take {needed:.1f} GiB, {free:.1f} are free"
        if needed > free:
            yield Finding("fail", "memory", f"{text}; lower target.kv_cache_gib")
        else:
            yield Finding("ok", "memory", text)
