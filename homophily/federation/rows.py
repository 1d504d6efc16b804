"""A federation is a matrix of model parameters with one row per peer; a merge replaces rows by combinations of rows."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from homophily.errors import UserError
from homophily.federation.factors import with_mean_products
from homophily.federation.layout import Kept, Layout
from homophily.federation.merging import Merge, MergeGroup, is_rowwise
from homophily.plugins.validation import answer

_ON_CPU, _ON_GPU = 2 << 20, 256 << 20  # bytes of rows gathered at a time; on a CPU they fit into its cache
_ROUNDING = 1e-6  # rounding error of the sum of weights in float32


@dataclass
class Federation:
    """All peers' models. rows: [N, D], changed in place only; kept: buffers outside the rows, [N, ...] each."""

    layout: Layout
    rows: Tensor
    kept: Kept

    @property
    def diverged(self) -> Tensor:
        """[N] bool: whether a model contains a NaN or an infinity."""
        return ~all_finite(self.rows)

    def copy(self) -> Federation:
        return Federation(self.layout, self.rows.clone(), {name: table.clone() for name, table in self.kept.items()})

    def put(self, which: Tensor, other: Federation) -> None:
        """Copy the rows ``which`` ([N] bool, on the CPU) from another federation."""
        peers = which.nonzero()[:, 0].to(self.rows.device)
        self.rows[peers] = other.rows[peers]
        for name, table in self.kept.items():
            table[peers] = other.kept[name][peers]

    def merge(self, group: MergeGroup, how: Merge, models: Tensor | None = None) -> Tensor:
        """Merge shared parameters over each peer's group; a peer without a partner keeps its model.

        models: [M, D], the rows that group.rows refers to; None: the rows of this federation. Returns [P, K] bool:
        whose models were merged, without the peer itself.
        """
        models = self.rows if models is None else models
        share = None if is_rowwise(how) else _weights(group, how)
        weighty = group.mask if share is None else share > 0
        partners = weighty & ~group.is_self
        some = partners.any(1).nonzero()[:, 0]
        width = self.layout.width * self.rows.element_size() * (1 if share is not None else 3 * group.ids.shape[1])
        device = self.rows.device
        merged = []
        for peers in some.split(max(1, (_ON_GPU if self.rows.is_cuda else _ON_CPU) // max(1, width))):
            among, mask, here = group.rows[peers].to(device), group.mask[peers], peers.to(device)
            if share is None:
                rows = self._rowwise(models[among], mask.to(device), group.is_self[peers].to(device), how, here)
            else:
                rows = self._sum(models, among, mask, share[peers])
                rows = with_mean_products(rows, self.layout, models, among, share[peers].to(device))
            merged.append((here, rows))
        for here, rows in merged:
            if self.layout.has_personal:
                rows = torch.where(self.layout.mask(shared=True).to(device), rows, self.rows[here])
            self.rows[here] = rows
        return partners

    def recover(self, start: Federation, active: Tensor) -> None:
        """Reset non-finite personal parameters of active peers [N] to ``start``: merging cannot repair them."""
        if self.layout.has_personal:
            personal = self.layout.mask(shared=False).to(self.rows.device) & active.to(self.rows.device)[:, None]
            shared_finite = torch.where(personal, 0.0, self.rows).isfinite().all(1, keepdim=True)
            self.rows.copy_(torch.where(personal & shared_finite & ~self.rows.isfinite(), start.rows, self.rows))

    def _sum(self, models: Tensor, among: Tensor, mask: Tensor, share: Tensor) -> Tensor:
        """Return the weighted sums of rows, partner by partner, without fused multiply-add.

        So the result is bit for bit the same for one peer and for many.
        """
        share = share.to(models.device, models.dtype)
        if models.is_cuda and has_triton():
            from homophily.federation.merge_kernel import weighted_rows  # needs Triton

            return weighted_rows(models, among, share)
        total = torch.zeros(len(share), self.layout.width, dtype=models.dtype, device=models.device)
        for slot in range(among.shape[1]):
            term = models[among[:, slot]].mul_(share[:, slot, None])
            if not bool(mask[:, slot].all()):  # set to zero, not multiplied by zero: the row may contain NaN
                term[~mask[:, slot].to(term.device)] = 0.0
            total += term
        return total

    def _rowwise(self, rows: Tensor, mask: Tensor, is_self: Tensor, how: Merge, peers: Tensor) -> Tensor:
        """Return the models merged by a rowwise merge, which sees only the shared parameters."""
        shared = self.layout.mask(shared=True).to(self.rows.device)
        out = self.rows[peers].clone()
        given = torch.where(mask[..., None], rows, 0.0)[..., shared]
        wanted = len(given), given.shape[2]
        merged = answer(how(given, mask, is_self), wanted, "merge: must return one model per peer")
        out[:, shared] = merged.to(out.dtype)
        return out


def _weights(group: MergeGroup, how: Merge) -> Tensor:
    """Return the weights [P, K] of a merge; raise a UserError if they are negative or do not sum to 1 or 0."""
    share = answer(how(group), group.ids.shape, "merge: must return a weight for each model of the group")
    share = torch.where(group.mask, share, 0.0)
    total, least = share.sum(1, dtype=torch.float64), share.amin(1)
    off = ~(((total - 1).abs() < _ROUNDING) | (total == 0)) | (least < 0)
    if bool(off.any()):
        if float(least.min()) < 0:
            raise UserError(f"merge: a peer's weights must be at least 0, not {float(least.min()):g}")
        raise UserError(f"merge: a peer's weights must add up to 1, or be all 0, not {float(total[off][0]):g} in sum")
    return share


def all_finite(rows: Tensor) -> Tensor:
    """Return [P] bool: whether a row of [P, d] has neither NaN nor infinities; amax and amin both propagate NaN."""
    return rows.amax(1).isfinite() & rows.amin(1).isfinite()


@cache
def has_triton() -> bool:
    """Whether kernels can be compiled for a GPU."""
    return importlib.util.find_spec("triton") is not None
