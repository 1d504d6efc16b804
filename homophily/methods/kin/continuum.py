"""A continuum: peers that differ without forming families. Each counts others by their shares in a mixture.

Step 6 of docs/kin.md, if there are no families. All in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

_STEPS, _NEGLIGIBLE, _FAR = 500, 1e-9, 1e12
_BLOCK = 4096  # peers whose mixtures are computed together, if all have the same candidates
_AT_ONCE = 256  # peers whose mixtures are computed together, if each has its own candidates


@dataclass(frozen=True)
class Continuum:
    """Peers that differ without forming families: the distribution of each is a mixture of those of others."""

    place: Tensor  # [N, r]: in the signal directions; NaN without a fingerprint
    count: Tensor  # [N] float64: samples behind each fingerprint
    inside: float  # noise of one sample in the signal directions
    outside: float  # and in the others
    sample: Tensor  # [S]: peers that the mixtures of all are made of

    def of_sample(self, rows: Tensor, position: Tensor) -> Tensor:
        """[P, B]: shares of the peers at ``position`` [P, B] of the sample in the mixtures of peers ``rows`` [P].

        Each mixture is of all peers in the sample; that of a peer without a fingerprint is 0.
        """
        out = torch.zeros(position.shape, dtype=torch.float64, device=self.place.device)
        for first in range(0, len(self.place), _BLOCK):
            mine = ((rows >= first) & (rows < first + _BLOCK)).nonzero()[:, 0]
            if len(mine):
                out[mine] = self._block(slice(first, first + _BLOCK))[rows[mine] - first].gather(1, position[mine])
        return out

    def _block(self, peers: slice) -> Tensor:
        """[P, S]: the mixtures of some peers; whole blocks, since a product of matrices rounds by their shapes."""
        place, usable = self.place[peers], self.count[peers] >= 2
        noise = self.inside / self.count[self.sample], self.outside / self.count[self.sample]
        out = torch.zeros(len(place), len(self.sample), dtype=torch.float64, device=place.device)
        oneself = peers.start + usable.nonzero() == self.sample
        out[usable] = mixtures(place[usable], self.place[self.sample], oneself, *noise)
        return out

    def among(self, rows: Tensor, columns: Tensor) -> Tensor:
        """[P, B]: the mixture of each peer of ``rows`` [P], of candidates ``columns`` [P, B] (-1: none) and itself.

        0 for a peer without a fingerprint.
        """
        found = [self._among(*some) for some in zip(rows.split(_AT_ONCE), columns.split(_AT_ONCE), strict=True)]
        return torch.cat(found)

    def _among(self, rows: Tensor, columns: Tensor) -> Tensor:
        everyone = torch.cat([columns, rows[:, None]], 1)
        index = everyone.clamp(min=0)
        count = self.count[index]
        mask = (everyone >= 0) & (count >= 2) & (count[:, -1:] >= 2)
        count = torch.where(mask, count, count[:, -1:].clamp(min=2.0))  # so that the others converge as fast
        oneself = torch.zeros_like(mask)
        oneself[:, -1] = True
        others = torch.where(mask[..., None], self.place[index], 0.0)
        return mixtures(others[:, -1], others, oneself, self.inside / count, self.outside / count, mask)[:, :-1]


def mixtures(
    rows: Tensor, others: Tensor, oneself: Tensor, inside: Tensor, outside: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Each row's distribution as a mixture of the others', as widely spread as possible: [M, S] on the simplex.

    rows: places [M, r]; others: places [S, r], or [M, S, r] if each row has its own, with their noise ([S] or [M, S])
    inside and outside the signal directions; oneself, mask: [M, S] bool; mask: the others that there are, the rest
    gets exactly 0.
    Minimises Mallows' risk, bias in the signal directions plus variance in all, by accelerated projected
    gradients. Using one's own sample costs twice its noise, since its noise explains itself.
    """
    target = _each(rows, others.mT) - torch.where(oneself, inside, 0.0)
    steepest = _largest_eigenvalue(_each(others.mT, others)) + outside.amax(-1, keepdim=True)
    root = (steepest / outside.amin(-1, keepdim=True).maximum(1e-12 * steepest)).sqrt()
    momentum = (root - 1.0) / (root + 1.0)  # at which the distance falls by 1 - 1 / root a step
    mask = torch.ones_like(oneself) if mask is None else mask
    forbidden = torch.where(mask, 0.0, -_FAR)
    p = on_simplex(torch.ones_like(target) + forbidden)
    ahead, steps = p, (20.0 * root).ceil().clamp(max=_STEPS)  # a row's own number: others do not change its bits
    for step in range(int(steps.max())):
        slope = _each(_each(ahead, others), others.mT) + ahead * outside - target
        after = on_simplex(ahead - slope / steepest + forbidden)
        ahead, p = after + momentum * (after - p), torch.where(step < steps, after, p)
    return torch.where(mask & (p > _NEGLIGIBLE), p, 0.0)


def _largest_eigenvalue(gram: Tensor) -> Tensor:
    """[..., 1] of products [..., r, r] of matrices with themselves.

    Filled up with zeros to a multiple of 8 numbers: LAPACK rounds by where in memory a matrix begins.
    """
    more = -gram.shape[-1] % 8
    values: Tensor = torch.linalg.eigvalsh(pad(gram, (0, more, 0, more)))
    return values[..., -1:]


def _each(rows: Tensor, matrix: Tensor) -> Tensor:
    """Rows [M, ..., a] times a matrix [a, b], or times one of their own each [M, a, b]: [M, ..., b].

    With own matrices, products are added one after the other: a batch of matrix products rounds by its size.
    """
    if matrix.dim() == 2:
        return rows @ matrix
    if rows.dim() > 2:
        return torch.stack([_each(row, matrix) for row in rows.unbind(1)], 1)
    return (rows[..., None] * matrix).cumsum(1)[:, -1]


def on_simplex(rows: Tensor) -> Tensor:
    """The nearest point of the simplex to each row [N, M]."""
    ordered = rows.sort(1, descending=True).values
    excess = (ordered.cumsum(1) - 1.0) / torch.arange(1, rows.shape[1] + 1, device=rows.device)
    last = (ordered > excess).sum(1, keepdim=True) - 1
    return (rows - excess.gather(1, last)).clamp(min=0.0)
