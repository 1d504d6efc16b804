"""Scores are means over each peer's own samples; neighbours are judged against the true clusters."""

import pytest
import torch
from torch import Tensor, nn

from homophily.data.task_kinds import CLASSIFICATION
from homophily.data.types import FederatedData, Split
from homophily.federation.rows import Federation
from homophily.federation.view import View
from homophily.simulation.evaluation import Scorer, precision_and_recall
from homophily.training.losses import mse
from homophily.training.one_by_one import OneByOne
from homophily.training.score_metrics import peer_by_peer
from homophily.training.vectorised import Vectorised
from tests.training.nets import shares, task

NOBODY = torch.zeros(9, dtype=torch.bool)


def view(same: list[list[int]]) -> View:
    truth = torch.tensor(same).bool()
    peers = len(same)
    me = torch.arange(peers)
    contacts = me.expand(peers, peers)
    return View(me, torch.zeros_like(me), contacts, contacts != me[:, None], torch.ones_like(contacts), truth)


def test_accuracy_and_loss_of_unequal_test_sets_by_hand() -> None:
    x = torch.tensor([[1.0], [2.0], [-1.0], [4.0]])
    y = torch.tensor([1, 1, 1, 0])
    split = Split(x, y, torch.tensor([0, 3]), torch.tensor([3, 1]))
    data = FederatedData(split, split, None, 2, 2, None, kind=CLASSIFICATION)
    experiment = task(nn.Linear(1, 2, bias=False), data, torch.float32)
    # Outputs (0, x): class 1 where x > 0.
    rows = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    federation = Federation(experiment.layout, rows, {})
    for engine in (OneByOne(experiment), Vectorised(experiment, 2)):
        for peers, samples in ((1, 1), (2, 2), (2, 100)):
            found = Scorer(
                experiment, engine, peers, samples, {"seen": peer_by_peer("seen", lambda out, y: float(len(out)))}
            ).test(federation)
            assert torch.allclose(found.value, torch.tensor([200 / 3, 0.0]).double())
            expected = [nn.functional.cross_entropy(torch.cat([0 * x, x], 1)[a:b], y[a:b]) for a, b in ((0, 3), (3, 4))]
            assert torch.allclose(found.loss, torch.stack(expected).double(), atol=1e-6)
            assert found.extra["seen"].tolist() == [3.0, 1.0]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_peer_whose_weights_or_outputs_are_not_finite_has_no_scores(bad: float) -> None:
    data = shares([4, 4, 4], [2], outputs=2)
    experiment = task(nn.Linear(2, 2), data, torch.float32)
    rows = torch.ones(3, 6)
    rows[1, 0] = bad  # weights
    rows[2] = 3e38  # outputs overflow
    asked: list[int] = []

    def seen(outputs: Tensor, targets: Tensor) -> float:
        asked.append(len(outputs))
        return 1.0

    for engine in (OneByOne(experiment), Vectorised(experiment, 3)):
        found = Scorer(experiment, engine, 3, 10, {"seen": peer_by_peer("seen", seen)}).test(
            Federation(experiment.layout, rows, {})
        )
        assert found.diverged.tolist() == [False, True, True]
        for values in (found.loss, found.value, found.extra["seen"]):
            assert values.isnan().tolist() == [False, True, True]
    assert len(asked) == 2, "a user's metric is never asked about a diverged peer"


def test_regression_is_scored_by_the_mean_squared_error() -> None:
    data = shares([3, 2], [2], outputs=2, regression=True)
    experiment = task(nn.Linear(2, 2), data, loss=mse)
    rows = torch.zeros(2, 6).double()
    found = Scorer(experiment, Vectorised(experiment, 2), 2, 10).test(Federation(experiment.layout, rows, {}))
    expected = torch.stack([data.test.peer(i)[1].double().square().mean() for i in range(2)])
    assert found.headline.name == "mse"
    assert torch.allclose(found.value, expected)


def test_precision_is_the_inside_share_and_recall_the_share_of_the_cluster_found() -> None:
    same = [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    neighbours = torch.tensor([[0, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 1, 0]]).bool()
    precision, recall = precision_and_recall(view(same), neighbours, NOBODY[: len(same)])
    assert precision == (0.5 + 0.0 + 1.0) / 3  # of those that have neighbours
    assert recall == (1 + 0 + 0 + 1) / 4


def test_neighbours_may_be_weights_and_then_at_least_an_equal_share_is_found() -> None:
    same = [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    weights: Tensor = torch.tensor([[0, 0.75, 0.15, 0.1], [0.2, 0, 0.4, 0.4], [1.0, 0, 0, 0], [0, 0, 0, 0]])
    precision, recall = precision_and_recall(view(same), weights.double(), NOBODY[:4])
    assert precision == pytest.approx((0.75 + 0.2 + 0.0) / 3)
    assert recall == 0.5  # 0.75 is more than a third, 0.2 is less; the others are alone in their clusters


@pytest.mark.parametrize("peers", [2, 3, 11, 29, 40, 48])
def test_a_peer_that_considers_all_peers_similar_has_full_recall(peers: int) -> None:
    same = 1 - torch.eye(peers, dtype=torch.int64)
    for weights in (same.double() / (peers - 1), same.double()):
        assert precision_and_recall(view(same.tolist()), weights, torch.zeros(peers).bool()) == (pytest.approx(1), 1.0)


def test_a_peer_without_neighbours_counts_with_recall_0_unless_it_has_stopped() -> None:
    same = [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    nobody = torch.zeros(3, 3).bool()
    assert precision_and_recall(view(same), nobody, NOBODY[:3]) == (None, 0.0)
    assert precision_and_recall(view(same), nobody, ~NOBODY[:3]) == (None, None)
    one = torch.tensor([[0, 1, 0], [0, 0, 0], [0, 0, 0]]).bool()
    assert precision_and_recall(view(same), one, torch.tensor([False, True, False])) == (1.0, 1.0)
