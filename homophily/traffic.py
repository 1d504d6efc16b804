"""What travelled: models in units of one model over one hop, their split by distance, and bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Traffic:
    """Counts of one run. A model already received in a round is not sent again, so a set of peers met is a bill."""

    def __init__(self, peers: int, device: torch.device) -> None:
        self.received = torch.zeros(peers, dtype=torch.int64, device=device)  # models times hops, by who asked
        self.by_hops: dict[int, int] = {}  # models, by distance
        self.bytes = 0.0  # of all peers
        self.peak = 0  # models times hops, of one peer in one round

    def count(self, met: Tensor, hops: Tensor, model_bytes: float, models: int = 1) -> None:
        """One round: the peers met and their distances, [P, B]; ``models`` travel for each, of ``model_bytes`` each."""
        far = met * hops
        asked = models * far.sum(1)
        self.received += asked
        self.peak = max(self.peak, int(asked.max()))
        for distance, number in enumerate(far.flatten().bincount().tolist()):
            if distance and number:
                self.by_hops[distance] = self.by_hops.get(distance, 0) + models * number
                self.bytes += models * number * distance * model_bytes

    def extra_bytes(self, count: float) -> None:
        """What travels beside models."""
        self.bytes += count

    def summary(self, rounds: int) -> dict[str, Any]:
        peers = len(self.received)
        return {
            "models_sent_per_peer": float(self.received.double().mean()),
            "bytes_sent_per_peer": self.bytes / peers,
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
