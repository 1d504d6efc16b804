"""The merge guard: models that are much worse than a peer's own on its validation data are not merged.

It costs one forward pass over a peer's validation samples for each model to merge, and one for its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from homophily.federation.view import View
from homophily.simulation.evaluation import Scorer
from homophily.simulation.shards import Shards, total
from homophily.simulation.sources import LocalModels


class MergeGuard:
    """Leaves out models whose validation loss is more than ``factor`` times that of the peer's own, and counts them."""

    def __init__(self, factor: float, scorer: Scorer, shards: Shards) -> None:
        self._factor, self._scorer, self._shards = factor, scorer, shards
        self.count = 0  # models left out so far, by the peers of all processes

    def left_out(self, models: LocalModels, view: View, partners: Tensor) -> Tensor:
        """Return which of the partners [P, B] bool are left out, and count them. All processes call it in each round.

        A peer whose own model has diverged leaves out nobody, so that merging can repair it. Diverged models of others
        are not merged anyway, and not counted.
        """
        row, column = partners.nonzero(as_tuple=True)
        out = torch.zeros_like(partners)
        if len(row):
            out[row, column] = self._worse(models, row, view.contacts[row, column]).to(out.device)
        self.count += int(total(self._shards, out.sum()[None]))
        return out

    def _worse(self, models: LocalModels, row: Tensor, partner: Tensor) -> Tensor:
        """Which of the models of the peers ``partner`` [Q] are much worse than those of the deciding peers ``row``."""
        device = models.rows.device
        peers, mine = (part.to(device) for part in row.unique(return_inverse=True))
        model = models.local(partner).to(device)
        own = self._scorer.validation_losses(models.rows, models.kept, peers, peers)
        theirs = self._scorer.validation_losses(models.rows, models.kept, model, row.to(device))
        worse = (theirs > self._factor * own[mine]) | (theirs.isnan() & ~own[mine].isnan())
        return worse & ~models.diverged.to(device)[model]
