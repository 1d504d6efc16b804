"""DAC: draws peers by the softmax of similarities, measured or estimated from the tables that partners share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from homophily.federation.view import View
from homophily.methods.base import (
    Amount,
    LossesOf,
    LossOn,
    Memory,
    Method,
    MetricName,
    Partners,
    Reach,
    RoundContext,
    UpdateShare,
    methods,
    metric_cost,
)
from homophily.randomness import Purpose

_SEARCHED = 1 << 20  # pairs of a contact and a contact's contact that are compared at a time


@dataclass(frozen=True)
class _Dac(Method, ABC):
    metric: MetricName = "loss"
    k: Partners = 4
    estimate: Annotated[
        bool, Field(description="whether similarities of peers never met are estimated from the partners' similarities")
    ] = True
    alpha: UpdateShare = 0.5
    on: LossOn = "own"
    losses: LossesOf = "train"
    hops: Reach = 1
    unknown = torch.nan

    @property
    def shares(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("similarity",) if self.estimate else ()

    def notes(self, view: View, memory: Memory) -> list[str]:
        if self.estimate and not _have_common_contacts(view):
            return ["DAC's estimates cannot apply here: no peer shares a contact with one of its contacts"]
        return []

    @abstractmethod
    def _temperature(self, round: int) -> float:
        """tau, the inverse temperature of the softmax in this round."""

    def _logits(self, now: RoundContext) -> Tensor:
        """The factor times the similarity; 0 for peers without an entry."""
        return self._temperature(now.round) * now.recall("similarity", self.unknown).nan_to_num(nan=0.0)

    def meet(self, now: RoundContext) -> Tensor:
        return now.pick_weighted(now.known, self.k, self._logits(now), Purpose.MEET)

    def choose(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Tensor:
        assert similarity is not None
        # NaN: no entry. A diverged peer loses its entry, until it is met with a finite model.
        measured = met & similarity.isfinite()
        entries = torch.where(met, torch.where(measured, similarity, torch.nan), now.recall("similarity", self.unknown))
        ever = (now.recall_set("met") & ~met) | measured
        if self.estimate:
            entries = torch.where(now.known & ~ever, self._estimates(now, measured, similarity, entries), entries)
        now.memory |= {"similarity": entries, "met": ever}
        return met

    def _estimates(self, now: RoundContext, friends: Tensor, similarity: Tensor, entries: Tensor) -> Tensor:
        """The entry of the most similar friend that has one, for each peer; the old entry if no friend has one."""
        columns, mask = now.ranked(friends, similarity)
        said = now.shared("similarity", torch.where(mask, now.view.contacts.gather(1, columns), -1))
        return torch.where(said.isnan(), entries, said)

    def neighbours(self, now: RoundContext, partners: Tensor) -> Tensor:
        logits = torch.where(now.known, self._logits(now), -torch.inf)
        return logits.softmax(1).nan_to_num(nan=0.0)

    def nominal(self, rounds: int) -> float:
        return float(metric_cost(self).models * rounds * self.k)


@methods("dac")
@dataclass(frozen=True)
class Dac(_Dac):
    """DAC: draws k peers by softmax(tau * similarity); estimates peers never met from its most similar partner."""

    tau: Annotated[Amount, Field(description="factor of the similarities in the softmax")] = 30.0

    def _temperature(self, round: int) -> float:
        return self.tau


@methods("dac-var")
@dataclass(frozen=True)
class DacVar(_Dac):
    """DAC with a softmax that sharpens over the rounds: tau rises from 1 towards tau_max + 1."""

    tau_max: Annotated[
        Amount,
        Field(
            description="the factor of the similarities in the softmax is 1 in the first round and rises towards "
            "`tau_max` + 1"
        ),
    ] = 30.0

    def _temperature(self, round: int) -> float:
        return 1.0 + self.tau_max * (2.0 / (1.0 + math.exp(-0.2 * (round - 1))) - 1.0)


def _have_common_contacts(view: View) -> bool:
    """Whether some peer has a contact that knows another one of its contacts."""
    if view.contacts.stride(0) == 0:  # the same contacts for all
        return view.contacts.shape[1] > 2
    last = torch.iinfo(torch.int64).max
    ordered = torch.where(view.contacts < 0, last, view.contacts)  # ids ascend, and padding comes last
    step = max(1, _SEARCHED // max(1, view.contacts.shape[1]) ** 2)
    for rows in torch.arange(len(view.me), device=view.me.device).split(step):
        mine = view.contacts[rows]
        theirs = ordered[torch.searchsorted(view.me, mine.clamp(min=0))]  # [rows, B, B]
        about = mine[:, None].expand_as(theirs).contiguous()
        place = torch.searchsorted(theirs, about).clamp_(max=theirs.shape[2] - 1)
        found = (theirs.gather(2, place) == about) & (about != view.me[rows, None, None])
        if bool((found & (mine >= 0)[:, :, None]).any()):
            return True
    return False
