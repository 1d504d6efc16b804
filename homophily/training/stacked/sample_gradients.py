"""The gradient of every sample in a chain of layers, for private training."""

from __future__ import annotations

import torch
from torch import Tensor

from homophily.training.stacked.written_out import Part


class SampleGradients:
    """Receives the gradients of a chain's stages for rows [P, D], and keeps those of each of their B samples."""

    def __init__(self, rows: Tensor, samples: int) -> None:
        self.table = rows.new_zeros(len(rows), samples, rows.shape[1])  # [P, B, D], in the order of the stages

    def product(self, part: Part, g: Tensor, x: Tensor) -> None:
        part(self.table.flatten(0, 1)).copy_(torch.bmm(self._by_sample(g).mT, self._by_sample(x)))

    def sum(self, part: Part, g: Tensor) -> None:
        part(self.table.flatten(0, 1)).copy_(self._by_sample(g).sum(1))

    def _by_sample(self, values: Tensor) -> Tensor:
        """[P, M, ...] as [P * B, M / B, ...]."""
        peers, samples, _ = self.table.shape
        return values.reshape(peers * samples, -1, values.shape[-1])
