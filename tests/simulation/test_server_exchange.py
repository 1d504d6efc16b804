"""Clients and a server: models are chosen, handed out, averaged by hand's arithmetic, and billed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from homophily.data.task_kinds import REGRESSION
from homophily.data.types import FederatedData, Split
from homophily.federation.layout import Layout
from homophily.federation.rows import Federation
from homophily.methods.server import FedAvg, Ifca, ServerMethod
from homophily.simulation.server_exchange import ServerExchange
from homophily.training.losses import mse
from homophily.training.one_by_one import OneByOne
from homophily.training.task import Task
from tests.simulation.tiny import MODEL, federation, flags, tiny_task
from tests.training.nets import task as task_of

NOBODY, EVERYONE = flags(4), flags(4, 0, 1, 2, 3)
TRAINED = [[1.0, 0.0], [0.0, 1.0], [2.0, 2.0], [4.0, 0.0]]  # the four clients' models after training


def server(
    method: ServerMethod, models: Sequence[Sequence[float]], task: Task | None = None, chunk: int = 100
) -> ServerExchange:
    task = tiny_task([1, 2, 3, 4]) if task is None else task
    return ServerExchange(method, task, OneByOne(task), torch.tensor(models), chunk, ["a note"])


def after_training(of: ServerExchange, round: int = 1, rows: Sequence[Sequence[float]] = TRAINED) -> Federation:
    """The clients' models after a round in which they trained to ``rows``."""
    models = federation(of.task, [[9.0, 9.0]] * 4)
    trains = of.before_training(models, round, EVERYONE)
    models.rows[trains] = torch.tensor(rows)[trains]
    return models


# FedAvg


def test_fedavg_is_the_average_by_training_samples() -> None:
    found = server(FedAvg(), [[5.0, 5.0]])
    models = federation(found.task, [[9.0, 9.0]] * 4)
    assert torch.equal(found.before_training(models, 1, EVERYONE), EVERYONE)
    assert models.rows.tolist() == [[5.0, 5.0]] * 4  # everyone starts from the server's model
    models.rows.copy_(torch.tensor(TRAINED))
    assert not found.wants_rows_before(1)
    found.meet(models, None, 1, NOBODY, NOBODY)
    average = (1 * torch.tensor(TRAINED[0]) + 2 * torch.tensor(TRAINED[1]) + 3 * torch.tensor(TRAINED[2])) / 10
    average += 4 * torch.tensor(TRAINED[3]) / 10
    assert torch.allclose(found.models, average[None])
    assert torch.equal(models.rows, found.models.expand(4, 2))
    assert found.choose(None) is None  # type: ignore[func-returns-value]
    line = found.conclude(None)
    assert line["clients_of_model"] == [4]
    assert line["models_sent_per_peer"] == 2.0
    assert line["neighbour_precision"] is line["neighbour_recall"] is line["same_cluster_merges"] is None


def test_a_client_receives_every_server_model_and_sends_its_own() -> None:
    for models, each in (([[0.0, 0.0]], 1 + 1), ([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]], 3 + 1)):
        method = FedAvg() if each == 2 else Ifca(models=3)
        found = server(method, models)
        found.meet(after_training(found), None, 1, NOBODY, NOBODY)
        assert found.traffic.received.tolist() == [each] * 4
        assert found.traffic.bytes == 4 * each * MODEL
        summary = found.summary(1)
        assert summary["nominal_models_per_peer"] == each
        assert summary["notes"] == ["a note"]
        assert summary["same_cluster_merges"] is None


def test_a_diverged_client_is_left_out_and_sends_nothing() -> None:
    found = server(FedAvg(), [[5.0, 5.0]])
    models = after_training(found, rows=[*TRAINED[:3], [torch.nan, torch.inf]])
    found.meet(models, None, 1, NOBODY, models.diverged)
    average = (1 * torch.tensor(TRAINED[0]) + 2 * torch.tensor(TRAINED[1]) + 3 * torch.tensor(TRAINED[2])) / 6
    assert torch.allclose(found.models, average[None])
    assert torch.equal(models.rows, found.models.expand(4, 2))  # and starts again from the average
    assert found.traffic.received.tolist() == [2, 2, 2, 1]


def test_a_model_that_nobody_trained_is_kept() -> None:
    found = server(FedAvg(), [[5.0, 5.0]])
    models = after_training(found)
    models.rows.fill_(torch.nan)
    found.meet(models, None, 1, NOBODY, EVERYONE)
    assert found.models.tolist() == [[5.0, 5.0]]


def test_a_stopped_client_neither_trains_nor_receives() -> None:
    found = server(FedAvg(), [[5.0, 5.0]])
    models = federation(found.task, [[9.0, 9.0]] * 4)
    assert found.before_training(models, 1, flags(4, 0, 1)).tolist() == [True, True, False, False]
    assert models.rows.tolist() == [[5.0, 5.0], [5.0, 5.0], [9.0, 9.0], [9.0, 9.0]]
    models.rows[:2] = torch.tensor(TRAINED[:2])
    found.meet(models, None, 1, flags(4, 2, 3), NOBODY)
    average = (1 * torch.tensor(TRAINED[0]) + 2 * torch.tensor(TRAINED[1])) / 3
    assert torch.allclose(models.rows[:2], average)
    assert models.rows[2:].tolist() == [[9.0, 9.0], [9.0, 9.0]]
    assert found.traffic.received.tolist() == [2, 2, 0, 0]


@pytest.mark.parametrize(("fraction", "wanted"), [(1.0, 4), (0.5, 2), (0.3, 1), (0.01, 1)])
def test_a_fraction_of_the_clients_takes_part(fraction: float, wanted: int) -> None:
    found = server(FedAvg(fraction=fraction), [[5.0, 5.0]])
    drawn = []
    for round in range(1, 9):
        models = after_training(found, round)
        part = found.taking_part
        drawn.append(part.tolist())
        assert int(part.sum()) == wanted
        assert models.rows[~part].tolist() == found.models.expand(4, 2)[~part].tolist()  # handed out, not trained
        found.meet(models, None, round, NOBODY, NOBODY)
        weights = torch.where(part, torch.tensor([1.0, 2.0, 3.0, 4.0]), 0.0)
        assert torch.allclose(found.models[0], weights / weights.sum() @ torch.tensor(TRAINED))
    assert int(found.traffic.received.sum()) == 8 * 2 * wanted
    assert found.summary(8)["nominal_models_per_peer"] == 8 * 2 * wanted / 4
    assert wanted == 4 or len({tuple(part) for part in drawn}) > 1  # drawn anew in each round


# IFCA


def linear_task(weights: Sequence[Sequence[float]]) -> Task:
    """Clients with three samples each of y = w x, client i with its own w."""
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]).repeat(len(weights), 1)
    y = torch.cat([x[:3] @ torch.tensor(w)[:, None] for w in weights])
    count = torch.full((len(weights),), 3)
    split = Split(x, y, count.cumsum(0) - count, count)
    data = FederatedData(split, split, None, None, 1, None, kind=REGRESSION)
    return task_of(nn.Linear(2, 1, bias=False), data, torch.float32, mse)


def test_ifca_clients_choose_the_model_with_the_smallest_loss() -> None:
    task = linear_task([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.2, 1.0]])
    for chunk in (1, 3, 100):
        found = server(Ifca(models=2), [[0.0, 1.0], [1.0, 0.0]], task, chunk)
        models = federation(task, [[9.0, 9.0]] * 4)
        found.before_training(models, 1, EVERYONE)
        assert found.choice.tolist() == [1, 0, 1, 0]
        assert models.rows.tolist() == [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]
        models.rows.copy_(torch.tensor(TRAINED))
        found.meet(models, None, 1, NOBODY, NOBODY)
        assert found.models.tolist() == [[2.0, 0.5], [1.5, 1.0]]
        assert models.rows.tolist() == [[1.5, 1.0], [2.0, 0.5]] * 2
        assert found.conclude(None)["clients_of_model"] == [2, 2]
        assert found.final()["choice"].tolist() == [1, 0, 1, 0]


def test_a_client_that_does_not_take_part_keeps_its_choice() -> None:
    task = linear_task([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.2, 1.0]])
    found = server(Ifca(fraction=0.5, models=2), [[0.0, 1.0], [1.0, 0.0]], task)
    models = federation(task, [[9.0, 9.0]] * 4)
    found.before_training(models, 1, EVERYONE)
    assert found.choice.tolist() == [1, 0, 1, 0]  # in the first round everyone chooses
    found.models = found.models.flip(0)
    found.before_training(models, 2, EVERYONE)
    flipped, before = [0, 1, 0, 1], [1, 0, 1, 0]
    part = found.taking_part.tolist()
    assert sum(part) == 2
    assert found.choice.tolist() == [flipped[i] if part[i] else before[i] for i in range(4)]


def test_a_model_with_an_infinite_loss_is_chosen_by_nobody() -> None:
    found = server(Ifca(models=2), [[torch.nan, 1.0], [7.0, 7.0]])
    found.before_training(federation(found.task, [[9.0, 9.0]] * 4), 1, EVERYONE)
    assert found.choice.tolist() == [1, 1, 1, 1]


# Personal parameters


def personal_task() -> Task:
    """Two layers of which the second, the last two numbers of a row, is personal."""
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    found = task_of(net, tiny_task([1, 3]).data, torch.float32, mse)
    return replace(found, layout=Layout.of(found.module, personal=["1"]))


def test_personal_parameters_stay_with_the_client() -> None:
    task = personal_task()
    found = server(FedAvg(), [[5.0, 5.0, 5.0, 5.0, 5.0, 5.0]], task)
    models = federation(task, [[1.0] * 4 + [10.0, 11.0], [2.0] * 4 + [20.0, 21.0]])
    found.before_training(models, 1, flags(2, 0, 1))
    assert models.rows.tolist() == [[5.0] * 4 + [10.0, 11.0], [5.0] * 4 + [20.0, 21.0]]
    models.rows.copy_(torch.tensor([[1.0] * 4 + [30.0, 31.0], [2.0] * 4 + [40.0, 41.0]]))
    found.meet(models, None, 1, flags(2), flags(2))
    shared = (1 * 1.0 + 3 * 2.0) / 4
    assert models.rows.tolist() == [[shared] * 4 + [30.0, 31.0], [shared] * 4 + [40.0, 41.0]]
    assert found.traffic.bytes == 2 * 2 * (4 * 4)  # four numbers of a model travel


def test_a_server_model_is_evaluated_with_the_clients_personal_parameters() -> None:
    task = personal_task()
    x, y = task.data.train.peer(0)
    models = federation(task, [[0.0] * 4 + [1.0, 0.0], [0.0] * 4 + [0.0, 1.0]])
    servers = [[0.5, 1.5, -1.0, 2.0, 9.0, 9.0], [1.0, 0.0, 0.0, 1.0, -9.0, -9.0]]
    found = server(Ifca(models=2), servers, task)
    losses = found._losses(models)
    for client, head in ((0, [1.0, 0.0]), (1, [0.0, 1.0])):
        x, y = task.data.train.peer(client)
        for number, row in enumerate(servers):
            out = x @ torch.tensor(row[:4]).view(2, 2).T @ torch.tensor(head)
            assert float(losses[client, number]) == pytest.approx(float((out - y[:, 0]).square().mean()), rel=1e-5)


# Checkpoints


def test_a_restored_server_goes_on_as_if_it_had_never_stopped() -> None:
    def play(of: ServerExchange, round: int) -> Tensor:
        models = after_training(of, round)
        of.meet(models, None, round, NOBODY, NOBODY)
        return models.rows

    whole, again = (server(Ifca(fraction=0.5, models=2), [[0.0, 1.0], [1.0, 0.0]]) for _ in range(2))
    play(whole, 1)
    again.restore({name: t.clone() for name, t in whole.tensors().items()}, whole.numbers())
    assert torch.equal(play(whole, 2), play(again, 2))
    assert torch.equal(whole.models, again.models)
    assert whole.conclude(None) == again.conclude(None)
    assert whole.summary(2) == again.summary(2)
