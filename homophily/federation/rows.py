"""A federation is a matrix: a row per peer. Training moves rows, a merge adds rows, a checkpoint is the rows."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from homophily.errors import UserError
from homophily.federation.layout import Kept, Layout
from homophily.federation.merging import Gathering, Merge, is_rowwise
from homophily.federation.peer_sets import compact
from homophily.plugins.validation import answer

_ON_CPU, _ON_GPU = 2 << 20, 256 << 20  # bytes of rows gathered at a time, on a CPU no more than its cache holds
_NOBODY = torch.iinfo(torch.int64).max
_ROUNDING = 1e-6  # of weights in float32


@dataclass
class Federation:
    """All peers' models. rows: [N, D], changed in place only; kept: buffers outside the rows, [N, ...] each."""

    layout: Layout
    rows: Tensor
    kept: Kept

    @property
    def sick(self) -> Tensor:
        """[N] bool: the model holds a NaN or an infinity."""
        return ~all_finite(self.rows)

    def copy(self) -> Federation:
        return Federation(self.layout, self.rows.clone(), {name: table.clone() for name, table in self.kept.items()})

    def put(self, which: Tensor, other: Federation) -> None:
        """Take over the rows ``which`` [N] bool, on the CPU, of another federation."""
        those = which.nonzero()[:, 0].to(self.rows.device)
        self.rows[those] = other.rows[those]
        for name, table in self.kept.items():
            table[those] = other.kept[name][those]

    def merge(self, gathering: Gathering, how: Merge) -> Tensor:
        """Shared numbers are merged over each peer's gathering; who has no partner stays as it is.

        Returns whose models were merged: [P, K] bool, oneself left out.
        """
        share = None if is_rowwise(how) else _weights(gathering, how)
        weighty = gathering.there if share is None else share > 0
        partners = weighty & ~gathering.own
        some = partners.any(1).nonzero()[:, 0]
        width = self.layout.width * self.rows.element_size() * (1 if share is not None else 3 * gathering.ids.shape[1])
        device = self.rows.device
        merged = []
        for peers in some.split(max(1, (_ON_GPU if self.rows.is_cuda else _ON_CPU) // max(1, width))):
            ids, there, here = gathering.ids[peers].clamp(min=0).to(device), gathering.there[peers], peers.to(device)
            if share is None:
                rows = self._rowwise(ids, there.to(device), gathering.own[peers].to(device), how, here)
            else:
                rows = self._sum(ids, there, share[peers])
            merged.append((here, rows))
        for here, rows in merged:
            if self.layout.has_personal:
                rows = torch.where(self.layout.mask(shared=True).to(device), rows, self.rows[here])
            self.rows[here] = rows
        return partners

    def heal(self, start: Federation) -> None:
        """Personal numbers that are not finite begin again: merging cannot reach them."""
        if self.layout.has_personal:
            personal = self.layout.mask(shared=False).to(self.rows.device)
            shared_well = torch.where(personal, 0.0, self.rows).isfinite().all(1, keepdim=True)
            self.rows.copy_(torch.where(personal & shared_well & ~self.rows.isfinite(), start.rows, self.rows))

    def _sum(self, ids: Tensor, there: Tensor, share: Tensor) -> Tensor:
        """Weight times row, one partner after the other, multiply and add apart: the same bits alone or among all."""
        share = share.to(self.rows.device, self.rows.dtype)
        if self.rows.is_cuda and has_triton():
            from homophily.federation.merge_kernel import weighted_rows  # needs Triton, which only comes with a GPU

            return weighted_rows(self.rows, ids, share)
        total = torch.zeros(len(share), self.layout.width, dtype=self.rows.dtype, device=self.rows.device)
        for slot in range(ids.shape[1]):
            term = self.rows[ids[:, slot]].mul_(share[:, slot, None])
            if not bool(there[:, slot].all()):  # the row is left out, not multiplied by zero: it may be sick
                term[~there[:, slot].to(term.device)] = 0.0
            total += term
        return total

    def _rowwise(self, ids: Tensor, there: Tensor, own: Tensor, how: Merge, peers: Tensor) -> Tensor:
        """Personal numbers are hidden from the merge: they do not travel."""
        shared = self.layout.mask(shared=True).to(self.rows.device)
        rows = self.rows[ids]
        out = self.rows[peers].clone()
        given = torch.where(there[..., None], rows, 0.0)[..., shared]
        wanted = len(given), given.shape[2]
        merged = answer(how(given, there, own), wanted, "merge: must return a model for everyone who merges")
        out[:, shared] = merged.to(out.dtype)
        return out


def _weights(gathering: Gathering, how: Merge) -> Tensor:
    """What ``how`` answers, if it can be a merge's weights."""
    share = answer(how(gathering), gathering.ids.shape, "merge: must return a weight for everyone gathered")
    share = torch.where(gathering.there, share, 0.0)
    total, least = share.sum(1, dtype=torch.float64), share.amin(1)
    off = ~(((total - 1).abs() < _ROUNDING) | (total == 0)) | (least < 0)
    if bool(off.any()):
        if float(least.min()) < 0:
            raise UserError(f"merge: a peer's weights must be at least 0, not {float(least.min()):g}")
        raise UserError(f"merge: a peer's weights must add up to 1, or be all 0, not {float(total[off][0]):g} in sum")
    return share


def all_finite(rows: Tensor) -> Tensor:
    """[P] bool: whether a row [P, d] holds no NaN and no infinity; amax and amin both pass a NaN on."""
    return rows.amax(1).isfinite() & rows.amin(1).isfinite()


@cache
def has_triton() -> bool:
    """Whether kernels can be compiled for a GPU."""
    return importlib.util.find_spec("triton") is not None


def gather(book: Tensor, partners: Tensor, me: Tensor, samples: Tensor, similarity: Tensor | None = None) -> Gathering:
    """Partners (a set over the book, [P, B] bool) and oneself [P] in ascending id.

    samples: [N]; similarity: [P, B] float64, None where nothing was measured.
    """
    columns, there = compact(partners)
    ids = torch.where(there, book.gather(1, columns), _NOBODY)
    ids, order = torch.cat([ids, me[:, None]], dim=1).sort(1)
    alike = torch.full_like(ids, -torch.inf, dtype=torch.float64)
    if similarity is not None:
        alike[:, :-1] = torch.where(there, similarity.gather(1, columns), -torch.inf)
        alike = alike.gather(1, order)
    there = ids != _NOBODY
    ids = torch.where(there, ids, -1)
    return Gathering(ids, there, ids == me[:, None], samples[ids.clamp(min=0)].to(torch.float64), alike)
