"""What a federation's network and data must have in common before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import homophily
from homophily import PeerData, UserError


class Normed(nn.Module):
    """BatchNorm, and dropout that is drawn in ``forward`` or not at all."""

    def __init__(self, dropout: float, norm: bool = True) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4) if norm else nn.Identity()
        self.last, self.dropout = nn.Linear(4, 2), dropout

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x))
        return self.last(F.dropout(hidden, self.dropout, self.training) if self.dropout else hidden)


def data(*counts: int) -> list[PeerData]:
    chance = torch.Generator().manual_seed(0)
    test = torch.randn(6, 3, generator=chance), torch.arange(6) % 2
    return [
        PeerData(torch.randn(n, 3, generator=chance), torch.arange(n) % 2, test_x=test[0], test_y=test[1])
        for n in counts
    ]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_peer_with_one_sample_is_refused_with_batch_norm(dropout: float, tmp_path: Path) -> None:
    keys = {"rounds": 1, "method": "local"}
    with pytest.raises(UserError, match=r"peer 1 has one training sample, .* couples .* \(BatchNorm\): it needs at"):
        homophily.run(keys, model=Normed(dropout), data=data(6, 1, 6), out=tmp_path / "run")
    with pytest.raises(UserError, match=r"training\.batch = 1: this network couples .*; it needs 2"):
        homophily.run({**keys, "training": {"batch": 1}}, model=Normed(dropout), data=data(6, 6), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_peer_with_one_sample_can_train_with_dropout_alone(tmp_path: Path) -> None:
    found = homophily.run(
        {"rounds": 1, "method": "local"}, model=Normed(0.5, norm=False), data=data(6, 1, 6), out=tmp_path / "run"
    )
    assert found.finished
