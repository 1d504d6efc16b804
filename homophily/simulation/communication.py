"""What travelled: models in units of one model over one hop, their split by distance, and bytes.

A simulation and a real peer count with this code. Counted are the parameters of models, the parameters before training
for a metric that compares updates, the entries of shared tables, and fingerprints, each times the hops it travelled.
What has a fixed size for each message (headers, the number of samples, signatures) is not.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from homophily.runs.fields import Summary
from homophily.simulation.shards import ONE_PROCESS, Shards, total

ENTRY = 8  # bytes of a number in a shared table, and of the id of the peer that it is about

Count = TypeVar("Count", int, Tensor)


def table_bytes(entries: Count, tables: int) -> Count:
    """Bytes of shared tables about so many peers: an id for each, and a number in each table."""
    return entries * (ENTRY * (1 + tables))


class Traffic:
    """Counts of one run. A model already received in a round is not sent again, so a set of peers met is a bill."""

    def __init__(self, peers: int, device: torch.device, shards: Shards = ONE_PROCESS, everyone: int = 0) -> None:
        """peers: of this process; everyone: of all processes, if there are several."""
        self._shards, self._everyone = shards, everyone or peers
        self.received = torch.zeros(peers, dtype=torch.int64, device=device)  # models times hops, by who asked
        self.by_hops: dict[int, int] = {}  # models, by distance
        self.bytes = 0.0  # of all peers
        self.peak = 0  # models times hops, of one peer in one round

    def count(self, models: Tensor, hops: Tensor, model_bytes: float, beside: Tensor | None = None) -> None:
        """One round: how many models each peer received from each other and their distances, [P, B].

        model_bytes: of one model; beside: [P, B] int64, bytes that came with the models.
        """
        far = models * hops
        asked = far.sum(1)
        self.received += asked
        mask = models > 0
        distances = hops[mask].repeat_interleave(models[mask].to(torch.int64))
        extra = 0 if beside is None else int((beside * hops).sum())
        found = [int(asked.max()) if len(asked) else 0, extra, *distances.bincount().tolist()]
        for peak, more, *numbers in self._of_all(found):
            self.peak = max(self.peak, peak)
            self.bytes += more
            for distance, number in enumerate(numbers):
                if number:
                    self.by_hops[distance] = self.by_hops.get(distance, 0) + number
                    self.bytes += number * distance * model_bytes

    def _of_all(self, counts: list[int]) -> list[list[int]]:
        """The counts of each process."""
        sizes = self._shards.gathered(torch.tensor([len(counts)])).tolist()
        return [part.tolist() for part in self._shards.gathered(torch.tensor(counts)).split(sizes)]

    def extra_bytes(self, count: float) -> None:
        """What travels without models, such as fingerprints, to the peers of this process."""
        self.bytes += float(self._shards.gathered(torch.tensor([count], dtype=torch.float64)).sum())

    @property
    def models_per_peer(self) -> float:
        return int(total(self._shards, self.received.sum()[None])) / self._everyone

    @property
    def bytes_per_peer(self) -> float:
        return self.bytes / self._everyone

    def summary(self, rounds: int) -> Summary:
        peers = self._everyone
        return {
            "models_sent_per_peer": self.models_per_peer,
            "bytes_sent_per_peer": self.bytes_per_peer,
            "peak_models_per_peer_round": self.peak,
            "models_per_peer_round_by_hops": {
                str(distance): self.by_hops.get(distance, 0) / (peers * max(1, rounds))
                for distance in range(1, max(self.by_hops, default=0) + 1)
            },
        }

    def numbers(self) -> dict[str, Any]:
        """For a checkpoint, with ``received`` beside it."""
        return {"by_hops": {str(k): v for k, v in self.by_hops.items()}, "bytes": self.bytes, "peak": self.peak}

    def restore(self, received: Tensor, numbers: dict[str, Any]) -> None:
        self.received = received
        self.by_hops = {int(k): v for k, v in numbers["by_hops"].items()}
        self.bytes, self.peak = numbers["bytes"], numbers["peak"]
