"""Costs are counted exactly: one unit is one model over one hop."""

import pytest
import torch

from homophily.methods import methods
from homophily.simulation.communication import Traffic, table_bytes
from tests.methods.views import play, view_of

CPU = torch.device("cpu")


def test_models_cost_their_hops() -> None:
    traffic = Traffic(2, CPU)
    hops = torch.tensor([[1, 2, 3], [1, 1, 2]])
    traffic.count(torch.tensor([[True, False, True], [False, True, False]]), hops, model_bytes=10.0)
    traffic.count(torch.tensor([[False, True, False], [False, False, False]]), hops, model_bytes=10.0)
    found = traffic.summary(rounds=2)
    assert found["models_sent_per_peer"] == (4 + 1 + 2) / 2
    assert found["bytes_sent_per_peer"] == 35.0
    assert found["peak_models_per_peer_round"] == 4
    assert found["models_per_peer_round_by_hops"] == {"1": 2 / 4, "2": 1 / 4, "3": 1 / 4}


def test_what_comes_beside_models_costs_its_hops_and_counts_as_no_model() -> None:
    traffic = Traffic(2, CPU)
    hops, models = torch.tensor([[1, 2], [3, 1]]), torch.tensor([[2, 0], [1, 0]])
    traffic.count(models, hops, model_bytes=10.0, beside=torch.tensor([[7, 5], [0, 4]]))
    assert traffic.received.tolist() == [2, 3]
    found = traffic.summary(rounds=1)
    assert found["peak_models_per_peer_round"] == 3
    assert found["models_per_peer_round_by_hops"] == {"1": 1.0, "2": 0.0, "3": 0.5}
    assert found["bytes_sent_per_peer"] == (10 * (2 + 3) + 7 + 2 * 5 + 4) / 2


def test_an_entry_of_shared_tables_is_an_id_and_a_number_in_each() -> None:
    assert table_bytes(0, 1) == 0
    assert table_bytes(5, 1) == 5 * (8 + 8)
    assert table_bytes(torch.tensor([0, 5]), 2).tolist() == [0, 5 * (8 + 8 + 8)]


def test_the_arithmetic_of_dpgs_table_four() -> None:
    """Per client and round 0.47 models from one hop away and 2.53 from two cost 5.53 transfers."""
    traffic = Traffic(100, CPU)
    drawn = torch.zeros(100, 300, dtype=torch.bool)
    drawn[0] = True  # 47 near and 253 far, for all clients together
    traffic.count(drawn, torch.where(torch.arange(300) < 47, 1, 2).expand(100, 300), 1.0)
    found = traffic.summary(rounds=1)
    assert found["models_per_peer_round_by_hops"] == pytest.approx({"1": 0.47, "2": 2.53})
    assert found["models_sent_per_peer"] == pytest.approx(5.53)


@pytest.mark.parametrize(
    ("l", "nominal"), [(4, 30 * 4 + 29 * 4 + 54 * 4 + 6 * 8), (6, 30 * 6 + 29 * 6 + 54 * 6 + 6 * 12)]
)
def test_panm_with_full_neighbour_lists_costs_exactly_its_nominal(l: int, nominal: int) -> None:  # noqa: E741
    """Similarities tell the truth and k = l, so that no list is ever shorter than l or k."""
    panm = methods.get("panm")(l=l, k=l, t1=30, tau=10)
    view = view_of(40, [i % 2 for i in range(40)])
    assert view.same is not None
    truth = 0.1 + 0.8 * view.same.double()
    traffic = Traffic(40, CPU)
    for met, _, _ in play(panm, view, 90, table=truth):
        traffic.count(met, view.hops, 1.0)
    assert panm.nominal(90) == nominal
    assert traffic.received.tolist() == [nominal] * 40


def test_shorter_lists_cost_less_than_nominal() -> None:
    panm = methods.get("panm")(l=4, k=2, t1=10, tau=10)
    view = view_of(12, [i % 4 for i in range(12)])
    assert view.same is not None
    traffic = Traffic(12, CPU)
    for met, _, _ in play(panm, view, 40, table=view.same.double()):
        traffic.count(met, view.hops, 1.0)
    assert float(traffic.received.double().mean()) < panm.nominal(40)


def test_a_checkpoint_goes_on_counting() -> None:
    first, again = Traffic(2, CPU), Traffic(2, CPU)
    met, hops = torch.tensor([[True], [True]]), torch.tensor([[2], [1]])
    first.count(met, hops, 5.0)
    again.restore(first.received.clone(), first.numbers())
    first.count(met, hops, 5.0)
    again.count(met, hops, 5.0)
    assert first.summary(2) == again.summary(2)
