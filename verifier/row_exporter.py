"""What a worker does with the states of a pass: pack, copy to the host, hand over to the link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from paceline.transport import CurveKeys
from paceline.verifier.assembly import EngineSettings
from paceline.verifier.host_copy import HostCopier
from paceline.verifier.rows_export import Computed, Packed, choose, pack
from paceline.verifier.rows_link import Pass, RowsLink
from paceline.verifier.rows_plan import RowsPlan


class RowExporter:
    """Sends one rank's rows. ``export`` belongs to the worker's thread and never waits."""

    def __init__(self, settings: EngineSettings, rank: int, device: torch.device) -> None:
        """Args:
        settings: They offer rows.
        rank: Among the tensor-parallel ranks.
        device: Where the target computes.
        """
        assert settings.rows is not None
        self._needs = settings.rows.needs
        self._rank = rank
        self._copier = HostCopier(device)
        keys = CurveKeys.read(Path(settings.key_file)) if settings.key_file else None
        self.link = RowsLink(settings.rows.addresses[rank], rank, settings.transport, keys)

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """The layers whose input ``export`` gets, in this order."""
        return tuple(self._needs.aux_layers)

    def start(self) -> None:
        """Opens the endpoint.

        Raises:
            ConfigError: it cannot be bound.
        """
        self.link.start()

    def stop(self) -> None:
        """Closes it; may be called twice."""
        self.link.stop()

    def export(
        self,
        plan: RowsPlan,
        computed: Sequence[Computed],
        aux: Sequence[torch.Tensor] | None,
        final: torch.Tensor,
        input_ids: torch.Tensor,
        num_sampled: torch.Tensor,
        bonus: torch.Tensor,
    ) -> None:
        """Sends the committed rows of a pass to those who need them.

        Args:
            computed: All requests of the pass, in the batch's order.
            aux: The input of each of ``aux_layers``, each [T or more, H].
            final: The last norm's output, [T or more, H].
            input_ids: [T or more], integers.
            num_sampled: [R], integers: accepted drafts and the bonus token; 0 within a prompt.
            bonus: [R], integers: the last token that was sampled; anything within a prompt.
        """
        spans, rows = choose(plan, computed)
        if not spans:
            return
        tensors: dict[str, torch.Tensor] = {
            "input_ids": pack([input_ids.unsqueeze(1)], rows).squeeze(1),
            "num_sampled": num_sampled.clone(),
            "bonus": bonus.clone(),
        }
        if self._rank == 0:
            asked = list(plan.drafters.values())
            if aux is not None and any(needs.aux_layers for needs in asked):
                tensors["aux"] = pack(aux, rows)
            if any(needs.final for needs in asked):
                tensors["final"] = pack([final], rows)
        arrived = self._copier.start(tensors)
        packed = Packed(spans=spans, drafters=plan.drafters, tensors={}, aux_layers=self.aux_layers)
        self.link.post(Pass(plan.verifier, lambda: replace(packed, tensors=arrived())))
