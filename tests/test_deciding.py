"""A method's decisions, as far as they are about peers one knows."""

from __future__ import annotations

import torch
from torch import Tensor

from homophily import Method, Now, deciding
from tests.methods.views import view_of


class Weighing(Method):
    """Holds everyone to be alike, and says nonsense of itself."""

    def neighbours(self, now: Now, partners: Tensor) -> Tensor:
        return torch.where(now.known, 2.0, torch.nan)


def test_whom_one_does_not_know_is_no_neighbour_whatever_is_said_of_it() -> None:
    view = view_of(3)
    found = deciding.neighbours(Weighing(), view, 1, {}, view.known)
    assert torch.equal(found, 2.0 * view.known)
