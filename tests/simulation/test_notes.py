"""What the processes of a run gather for the notes at its end."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from homophily.simulation.configuration import make
from homophily.simulation.exchange import PeerExchange
from homophily.simulation.rounds import OneRun, RunState, play_round
from homophily.simulation.setup import prepare
from homophily.simulation.shards import OneProcess
from homophily.simulation.user_objects import UserObjects


class _Halves(OneProcess):
    """Two processes with equal peers."""

    size = 2

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def gathered(self, table: Tensor) -> Tensor:
        self.shapes.append(tuple(table.shape))
        return torch.cat([table, table])


@pytest.mark.parametrize(("method", "tables"), [("random", False), ("pens", False), ("kin", True)])
def test_the_contacts_of_all_peers_are_gathered_only_for_a_method_with_notes(method: str, tables: bool) -> None:
    config = make({"peers": 9, "rounds": 1, "method": method, "topology": "ring"})
    experiment, _, _ = prepare(config, UserObjects(), torch.device("cpu"))
    state, exchange = RunState(experiment), experiment.exchange
    play_round({0: state}, OneRun(state))
    assert isinstance(exchange, PeerExchange)
    exchange._shards = shards = _Halves()
    exchange.summary(1)
    assert any(len(shape) > 1 and shape[0] == 9 for shape in shards.shapes) == tables
