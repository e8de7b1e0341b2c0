"""What vLLM's sampling refuses or does wrong once speculation is on, and is set right here.

| here                       | vllm/…                              | why                         |
|----------------------------|-------------------------------------|-----------------------------|
| ``_validate_spec_decode``  | sampling_params.py                  | requests with ``min_p`` and |
| ``build_logitsprocs``      | v1/worker/gpu_model_runner.py (V1)  | … ``logit_bias`` are let in |
| ``expand_batch_to_tokens`` | v1/sample/rejection_sampler.py (V1) | wrong on CPU                |

See docs/decisions/0008-sampling-on-cpu.md. V2 has a sampler of its own, which applies every
parameter to every row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def accept_undrafted_parameters() -> None:
    """Lets requests with ``min_p`` or ``logit_bias`` in; called in the front end's process.

    vLLM refuses them for every request once speculation is on (sampling_params.py,
    ``_validate_spec_decode``), since its rejection sampler does not apply them to drafted rows.
    Here such requests have no drafted rows (``_is_draftable``).
    """
    SamplingParams._validate_spec_decode = lambda self, speculative_config: None


def repair_v1_sampling() -> None:
    """Replaces two functions of the V1 runner's; called in the worker's process."""
    # Not above: on a CPU the worker has to be imported first (vllm_worker.py).
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.worker import gpu_model_runner

    gpu_model_runner.build_logitsprocs = _build_all_logitsprocs
    if current_platform.is_cpu():
        rejection_sampler.expand_batch_to_tokens = _expand_batch_to_tokens


def _build_all_logitsprocs(
    vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool, *args: Any, **kwargs: Any
) -> Any:
    """Builds the processors of ``min_p`` and ``logit_bias``, too, which vLLM leaves out (see
    ``accept_undrafted_parameters``); the ordinary sampler applies them to undrafted rows.

    Only vLLM's own three: drafted rows would not see a custom one, which vLLM refuses for that, and
    so does ``TargetConfig``.
    """
    from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors

    return LogitsProcessors(
        processor(vllm_config, device, is_pin_memory) for processor in BUILTIN_LOGITS_PROCESSORS
    )


def _expand_batch_to_tokens(
    x: torch.Tensor,  # [batch_size]
    cu_num_tokens: torch.Tensor,  # [batch_size], running sums
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> torch.Tensor:  # [num_tokens]
    """Repeats each request's value for each of its draft tokens.

    Stands in for vLLM's own on CPU (rejection_sampler.py). Its kernel there writes to a copy, so
    that temperature, top-k and top-p of drafted rows are whatever the memory held
    (cpu_triton_utils.py, ``_expand_kernel_impl``).
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return x.masked_fill(x == replace_from, replace_to).repeat_interleave(counts.long())
