"""Keyed dropout: the same mask for the same key, and a new one each time a layer is used."""

import torch
from torch import Tensor, nn

from homophily.models.keyed_dropout import dropout_keys, with_keyed_dropout


class Shared(nn.Module):
    """Uses one dropout layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.drop(x), self.drop(x)])


def test_a_layer_used_twice_draws_two_masks_that_repeat_in_every_pass() -> None:
    net = with_keyed_dropout(Shared()).train()
    assert dropout_keys(net) == ["drop.key"]
    first, second = net(torch.ones(4, 500))
    alike = float(((first > 0) == (second > 0)).double().mean())
    assert 0.45 < alike < 0.55
    assert torch.equal(net(torch.ones(4, 500)), torch.stack([first, second]))
    net.drop.key.fill_(7)  # type: ignore[operator, union-attr]
    assert not torch.equal(net(torch.ones(4, 500))[0], first)


def test_in_evaluation_nothing_is_dropped() -> None:
    net = with_keyed_dropout(Shared()).eval()
    assert bool((net(torch.ones(2, 3)) == 1).all())
