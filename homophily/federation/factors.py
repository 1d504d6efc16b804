"""Aggregation of LoRA adapters by their products: the mean of B A instead of the means of B and of A."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from homophily.federation.layout import Column, Layout


def with_mean_products(merged: Tensor, layout: Layout, models: Tensor, among: Tensor, share: Tensor) -> Tensor:
    """Return merged rows [P, D] with the factors nearest to the weighted mean of the models' products.

    models: [M, D]; among: [P, K], rows of the models; share: [P, K], weights that add up to 1. Models with weight 0
    are not read. A CPU computes one peer at a time, without padding, so that a real peer gets the same bits.
    """
    columns = {column.name: column for column in layout.columns}
    for a, b in ((columns[a], columns[b]) for a, b in layout.factors):
        if merged.is_cuda:
            read = [_tensors(models, among, column).where((share > 0)[..., None, None], 0.0) for column in (a, b)]
            _put(merged, (a, b), best_factors(read[0], read[1], share))
            continue
        for peer in range(len(merged)):
            some = share[peer] > 0
            read = [_tensors(models, among[peer, some], column) for column in (a, b)]
            _put(merged[peer], (a, b), best_factors(read[0], read[1], share[peer, some]))
    return merged


def _tensors(models: Tensor, rows: Tensor, column: Column) -> Tensor:
    out: Tensor = models[:, column.start : column.stop][rows].unflatten(-1, column.shape)
    return out


def _put(rows: Tensor, columns: tuple[Column, Column], values: tuple[Tensor, Tensor]) -> None:
    for column, value in zip(columns, values, strict=True):
        rows[..., column.start : column.stop] = value.flatten(-2).to(rows.dtype)


def best_factors(a: Tensor, b: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors [..., r, n] and [..., m, r] whose product is nearest to the weighted mean of products B A.

    a: [..., k, r, n]; b: [..., k, m, r]; weight: [..., k]. The mean, of rank up to k r, is never formed: the singular
    values are those of a matrix of at most k r rows and columns. The rows of the new A are orthogonal, with the mean
    norm of the old ones: they are not zero where the product is zero, so that B can still learn. Signs are fixed.
    """
    rank = a.shape[-2]
    a, b, weight = (tensor.to(torch.float64) for tensor in (a, b, weight))
    norm = ((weight * a.square().sum((-2, -1))).sum(-1) / rank).sqrt()[..., None, None]
    norm = torch.where(norm > 0, norm, 1.0)
    left = (weight[..., None, None] * b).movedim(-3, -2).flatten(-2)  # [..., m, k r]
    q_left, r_left = torch.linalg.qr(left)
    q_right, r_right = torch.linalg.qr(a.flatten(-3, -2).mT)  # of [..., n, k r]
    u, s, vh = torch.linalg.svd(r_left @ r_right.mT, full_matrices=False)
    u, s, vh = u[..., :rank], s[..., :rank], vh[..., :rank, :]
    new_a, new_b = norm * (vh @ q_right.mT), q_left @ (u * s[..., None, :]) / norm
    sign = torch.where(new_a.gather(-1, new_a.abs().argmax(-1, keepdim=True)) < 0, -1.0, 1.0)
    missing = rank - s.shape[-1]  # if the layer has fewer inputs or outputs than the rank
    return pad(sign * new_a, (0, 0, 0, missing)), pad(new_b * sign.mT, (0, missing))
