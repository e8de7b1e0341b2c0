"""What a worker does with the states of a pass: pack, copy to the host, hand over to the link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from paceline.transport import CurveKeys
from paceline.verifier.assembly import EngineSettings
from paceline.verifier.host_copy import HostCopier
from paceline.verifier.kv_rows import KvReader
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
        self.needs = settings.rows.needs
        """What may be asked for; ``aux_layers`` is the order of ``export``'s."""
        self._rank = rank
        self._readers: dict[int, KvReader] = {}
        self._first_head = 0
        self.last_norm: Callable[[torch.Tensor], torch.Tensor] | None = None
        """The target's, where ``export`` is given what comes before it."""
        self._copier = HostCopier(device)
        keys = CurveKeys.read(Path(settings.key_file)) if settings.key_file else None
        self.link = RowsLink(settings.rows.addresses[rank], rank, settings.transport, keys)

    def read_caches(self, readers: dict[int, KvReader], first_head: int) -> None:
        """Takes in how keys and values are read.

        Args:
            readers: By layer; empty on a rank whose heads another one sends already.
            first_head: Which of the target's heads this rank's first one is.
        """
        self._readers, self._first_head = readers, first_head

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
        slots: Callable[[int], torch.Tensor],
    ) -> None:
        """Sends the committed rows of a pass to those who need them.

        Args:
            computed: All requests of the pass, in the batch's order.
            aux: The input of each of ``needs.aux_layers``, each [T or more, H].
            final: What the model returns, [T or more, H]: the last norm's output, or what
                ``last_norm`` takes.
            input_ids: [T or more], integers.
            num_sampled: [R], integers: accepted drafts and the bonus token; 0 within a prompt.
            bonus: [R], integers: the last token that was sampled; anything within a prompt.
            slots: From a layer to where the pass's keys and values lie in its cache, [T or more].
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
                states = pack([final], rows)
                tensors["final"] = states if self.last_norm is None else self.last_norm(states)
        wanted = {layer for needs in plan.drafters.values() for layer in needs.kv_layers}
        for layer in sorted(wanted & self._readers.keys()):
            chosen = pack([slots(layer).unsqueeze(1)], rows).squeeze(1)
            tensors[f"key.{layer}"], tensors[f"value.{layer}"] = self._readers[layer].read(chosen)
        arrived = self._copier.start(tensors)
        packed = Packed(
            spans=spans,
            drafters=plan.drafters,
            tensors={},
            aux_layers=tuple(self.needs.aux_layers),
            first_head=self._first_head,
        )
        self.link.post(Pass(plan.verifier, lambda: replace(packed, tensors=arrived())))
