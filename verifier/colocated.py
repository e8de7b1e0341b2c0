"""vLLM's own speculation in a target without drafters of ours, to measure against."""

from __future__ import annotations

from typing import Any

import msgspec

from paceline import models


class ColocatedSpeculation(msgspec.Struct, frozen=True, kw_only=True):
    """The draft runs in the target's own process, by vLLM's code alone."""

    speculative_config: dict[str, Any]
    """vLLM's argument of this name; a ``model`` in it is named as in the configuration file."""

    def resolved(self, dtype: str) -> dict[str, Any]:
        """Returns vLLM's argument with the model's folder, on the machine that loads it.

        Raises:
            ModelError: the model is not there.
        """
        values = dict(self.speculative_config)
        if "model" in values:
            values["model"] = models.resolve(values["model"], dtype)
        return values


def read_counts(metrics: Any, method: str) -> dict[str, Any]:
    """Converts vLLM's counts of a request to the keys of ``Pipeline.report``.

    vLLM counts otherwise in three ways. Undrafted passes are not counted, so that ``rounds`` is
    None. Drafts behind the end of the request count as proposed and may count as accepted. The
    placeholders of a request that resumes after preemption count as proposed.

    Args:
        metrics: ``RequestSpecDecodeMetrics`` (vllm/v1/metrics/stats.py) at its level ``detailed``.
        method: Name of the method.
    """
    passes = [
        (drafted, accepted)
        for drafted, accepted in zip(
            metrics.per_step_drafted, metrics.per_step_accepted, strict=True
        )
        if drafted
    ]
    longest = max((drafted for drafted, _ in passes), default=0)
    return {
        "method": method,
        "rounds": None,
        "drafted_rounds": len(passes),
        "proposed": sum(drafted for drafted, _ in passes),
        "accepted": sum(accepted for _, accepted in passes),
        "accepted_per_position": [
            sum(1 for _, accepted in passes if accepted > position) for position in range(longest)
        ],
    }
