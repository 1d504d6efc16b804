"""Tokens beyond an embedding are found before training, and the message names the peer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import homophily

WORDS = np.arange(24).reshape(8, 3) % 10
CLASSES = np.arange(8) % 2
TOO_HIGH, TOO_LOW = WORDS.copy(), WORDS.copy()
TOO_HIGH[7, 2], TOO_LOW[3, 1] = 12, -1


class Bag(nn.Module):
    def __init__(self, named: bool = False) -> None:
        super().__init__()
        self.embedding, self.head, self.named = nn.Embedding(10, 4), nn.Linear(4, 2), named

    def forward(self, x: Tensor | None = None, **fields: Tensor) -> Tensor:
        tokens = fields["words"] if self.named else x
        return self.head(self.embedding(tokens).mean(1))  # type: ignore[no-any-return]


def play(model: nn.Module, **third: Any) -> homophily.Run:
    """A run in which the peer ``c`` has other data."""
    usual = {"x": WORDS, "y": CLASSES}
    data = {name: homophily.PeerData(**usual) for name in "ab"} | {"c": homophily.PeerData(**{**usual, **third})}
    return homophily.run({"rounds": 1, "method": "local"}, model=model, data=data)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("third", "says"),
    [
        ({"x": TOO_HIGH}, "peer 'c': x has the token 12"),
        ({"x": TOO_LOW}, "peer 'c': x has the token -1"),
        ({"test_x": TOO_HIGH, "test_y": CLASSES}, "peer 'c': test_x has the token 12"),
    ],
)
def test_a_token_beyond_the_embedding_names_the_peer(third: dict[str, Any], says: str) -> None:
    with pytest.raises(homophily.UserError) as refused:
        play(Bag(), **third)
    assert str(refused.value) == f"{says}, and the network's embedding 'embedding' has tokens 0 to 9"


@pytest.mark.usefixtures("here")
def test_a_field_of_named_inputs_is_checked_too() -> None:
    def peer(words: Any) -> homophily.PeerData:
        return homophily.PeerData({"words": words, "ages": np.full((8, 1), 90)}, CLASSES)

    config = {"rounds": 1, "method": "local"}
    with pytest.raises(homophily.UserError, match="peer 1: x has the token 12"):
        homophily.run(config, model=Bag(named=True), data=[peer(WORDS), peer(TOO_HIGH)])
    assert homophily.run(config, model=Bag(named=True), data=[peer(WORDS), peer(WORDS)]).finished


@pytest.mark.usefixtures("here")
def test_a_network_that_maps_tokens_itself_may_take_any() -> None:
    class Folding(Bag):
        def forward(self, x: Tensor | None = None, **fields: Tensor) -> Tensor:
            assert x is not None
            return super().forward(torch.remainder(x, 10))

    assert play(Folding(), x=TOO_HIGH).finished
