"""Local objectives: the penalty, the reference weights and the phases of a round, in every engine that has them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import homophily
from homophily import Objective, Phase
from homophily.errors import UserError
from homophily.federation.layout import Layout
from homophily.models import models
from homophily.simulation.configuration import make, over
from homophily.training import vectorised
from homophily.training.engines import engine_limits
from homophily.training.objectives import FedProx, FedRep, vmap_obstacle
from homophily.training.one_by_one import OneByOne
from homophily.training.task import Engine, Task
from homophily.training.vectorised import StepKind, Vectorised
from tests.training.nets import Everything, shares, task, trained
from tests.training.test_engines import UNEQUAL, Unrecorded

HEAD = "3"  # the last layer of the MLP


def problem_with(objective: Objective, **settings: object) -> Task:
    torch.manual_seed(3)
    found = task(models.get("mlp")(inputs=(6,), outputs=10), shares(UNEQUAL, (6,)), **settings)
    return replace(found, layout=Layout.of(found.module, [HEAD]), objective=objective)


def start_of(problem: Task) -> Tensor:
    return problem.layout.read(problem.module)[0]


def columns(problem: Task, personal: bool) -> Tensor:
    return problem.layout.mask(shared=not personal)


class Ridge(Objective):
    """L2 regularisation without reference weights, in two phases that both train everything."""

    def __init__(self, strength: float = 0.1) -> None:
        self.strength = strength

    def penalty(self, weights: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> Tensor:
        assert not reference
        return self.strength * sum(value.square().sum() for value in weights.values())  # type: ignore[return-value]

    def phases(self, epochs: int) -> Sequence[Phase]:
        return [Phase(epochs), Phase(1)]


class Peeking(Objective):
    """Its penalty branches on a value, which torch.vmap cannot do."""

    def penalty(self, weights: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> Tensor | float:
        return 1.0 if float(next(iter(weights.values())).sum()) > 0 else 0.0


SETTINGS = [
    {"momentum": 0.9, "weight_decay": 1e-2},
    {"optimizer": "adamw", "lr": 1e-2, "weight_decay": 0.1, "clip": 0.5},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=["SGD", "AdamW, clipped"])
@pytest.mark.parametrize("objective", [FedProx(0.5), FedRep(2, 1), Ridge()], ids=lambda one: type(one).__name__)
def test_the_vectorised_engine_agrees_with_the_reference(objective: Objective, settings: dict[str, object]) -> None:
    problem = problem_with(objective, **settings)
    plain, _ = trained(OneByOne(problem), problem)
    fast, _ = trained(Vectorised(problem, 4), problem)
    assert float((plain - fast).abs().max()) < 1e-9
    other = replace(problem, objective=Objective())
    assert float((plain - trained(OneByOne(other), other)[0]).abs().max()) > 1e-3


@pytest.mark.parametrize("objective", [FedProx(0.5), FedRep(1, 2)], ids=["FedProx", "FedRep"])
def test_batch_norm_dropout_and_attention_agree(objective: Objective) -> None:
    torch.manual_seed(3)
    problem = task(Everything(), shares(UNEQUAL, (1, 8, 8)), weight_decay=1e-2)
    problem = replace(problem, layout=Layout.of(problem.module, ["head"]), objective=objective)
    plain, kept = trained(OneByOne(problem), problem)
    fast, kept_fast = trained(Vectorised(problem, 4), problem)
    assert float((plain - fast).abs().max()) < 1e-9
    assert all(torch.equal(kept[name], kept_fast[name]) for name in kept)


@pytest.mark.parametrize("kind", ["recorded", "compiled"])
@pytest.mark.parametrize("objective", [FedProx(0.5), FedRep(1, 2)], ids=["FedProx", "FedRep"])
def test_steps_padded_for_cuda_graphs_agree(
    objective: Objective, kind: StepKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference weights and the columns of a phase are at fixed addresses, where a graph reads them."""
    monkeypatch.setattr(vectorised, "RecordedStep", Unrecorded)
    monkeypatch.setattr(Vectorised, "_pool", None)
    monkeypatch.setattr(torch, "compile", lambda traced: traced)
    problem = problem_with(objective, weight_decay=1e-2)
    plain, _ = trained(OneByOne(problem), problem)
    assert float((plain - trained(Vectorised(problem, 4, kind), problem)[0]).abs().max()) < 1e-9


def test_the_gradient_of_fedprox_is_mu_times_the_distance_to_the_reference() -> None:
    torch.manual_seed(0)
    weights = {"a": torch.randn(2, 3, requires_grad=True), "b": torch.randn(4, requires_grad=True)}
    reference = {name: torch.randn_like(value) for name, value in weights.items()}
    penalty = FedProx(0.3).penalty(weights, reference)
    assert isinstance(penalty, Tensor)
    penalty.backward()
    for name, value in weights.items():
        assert torch.allclose(value.grad, 0.3 * (value - reference[name]))  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [OneByOne, lambda problem: Vectorised(problem, 4)], ids=["one-by-one", "vectorised"])
def test_a_large_mu_keeps_peers_at_the_merged_model(make: Any) -> None:
    moves = []
    for mu in (0.0, 10.0, 1000.0):  # with lr * mu = 1, all of a round's steps end one step from the reference
        problem = problem_with(FedProx(mu), lr=1e-3, momentum=0.0, epochs=20)
        moves.append(float((trained(make(problem), problem, rounds=1)[0] - start_of(problem)).norm()))
    assert moves[0] > moves[1] > 10 * moves[2] > 0


def test_the_reference_of_fedprox_is_the_model_at_the_start_of_each_round() -> None:
    problem = problem_with(FedProx(1.0), momentum=0.0, decay=1.0, epochs=1, batch=100)
    engine: Engine = OneByOne(problem)
    rows = start_of(problem).expand(len(UNEQUAL), -1).clone()
    engine.train(rows, {}, torch.arange(len(UNEQUAL)), 1)
    plain = replace(problem, objective=Objective())
    expected = start_of(problem).expand(len(UNEQUAL), -1).clone()
    OneByOne(plain).train(expected, {}, torch.arange(len(UNEQUAL)), 1)
    assert torch.equal(rows, expected)  # one step: the penalty is still zero


@pytest.mark.parametrize("make", [OneByOne, lambda problem: Vectorised(problem, 4)], ids=["one-by-one", "vectorised"])
@pytest.mark.parametrize(("phase", "changes"), [("personal", True), ("shared", False)])
def test_a_phase_changes_only_the_layers_that_it_trains(make: Any, phase: Any, changes: bool) -> None:
    class OnlyOne(Objective):
        def phases(self, epochs: int) -> Sequence[Phase]:
            return [Phase(epochs, phase)]

    problem = problem_with(OnlyOne(), weight_decay=0.1)
    rows, _ = trained(make(problem), problem)
    moved = (rows != start_of(problem)).any(0)
    assert torch.equal(moved, columns(problem, personal=changes))


def test_fedrep_trains_the_head_on_the_old_body_and_then_the_body_on_the_new_head() -> None:
    problem = problem_with(FedRep(head_epochs=3, body_epochs=2))
    found, _ = trained(OneByOne(problem), problem, rounds=1)

    class Head(Objective):
        def phases(self, epochs: int) -> Sequence[Phase]:
            return [Phase(3, "personal")]

    first = replace(problem, objective=Head())
    rows, _ = trained(OneByOne(first), first, rounds=1)
    personal = columns(problem, personal=True)
    assert torch.equal(rows[:, personal], found[:, personal])
    assert torch.equal(rows[:, ~personal], start_of(problem)[~personal].expand(len(UNEQUAL), -1))
    assert bool((found[:, ~personal] != rows[:, ~personal]).any(1).all())


def test_without_head_epochs_fedrep_takes_the_epochs_of_the_peer() -> None:
    assert [phase.epochs for phase in FedRep().phases(7)] == [7, 1]
    problem = replace(problem_with(FedRep()), epochs_by_peer=torch.tensor([1, 2, 3, 1, 2, 3]))
    plain, _ = trained(OneByOne(problem), problem)
    assert float((plain - trained(Vectorised(problem, 4), problem)[0]).abs().max()) < 1e-9


def test_engines_that_cannot_are_named_with_the_reason() -> None:
    assert engine_limits(problem_with(Objective())) == {}
    assert list(engine_limits(problem_with(FedProx()))) == ["stacked"]
    limits = engine_limits(problem_with(Peeking()))
    assert set(limits) == {"stacked", "vectorised"}
    assert limits["vectorised"].startswith("training.objective: torch.vmap cannot run its penalty: ")


class Several(Objective):
    def penalty(self, weights: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> Tensor:
        return next(iter(weights.values()))


class Failing(Objective):
    def penalty(self, weights: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> Tensor:
        return weights["nothing"]


@pytest.mark.parametrize(
    ("objective", "says"),
    [
        (Several(), r"its penalty must be one number, not a tensor \[2\]"),
        (Failing(), "the penalty of Failing fails: KeyError: 'nothing'"),
    ],
)
def test_a_penalty_that_is_not_a_number_is_refused(objective: Objective, says: str) -> None:
    with pytest.raises(UserError, match=f"training.objective: {says}"):
        vmap_obstacle(objective, {"a": torch.zeros(2)})


class In(Objective):
    """Trains in the given phases."""

    def __init__(self, *phases: Phase) -> None:
        self.given = phases

    def phases(self, epochs: int) -> Sequence[Phase]:
        return self.given


@pytest.mark.parametrize(
    ("objective", "personal", "says"),
    [
        (FedRep(), [], "trains personal layers, and model.personal names none"),
        (In(), [HEAD], "phases must return at least one homophily.Phase"),
        (In(Phase(0)), [HEAD], r"with at least 1 epoch each, .*, not \[Phase\(epochs=0"),
        (In(Phase(1.5)), [HEAD], r"with at least 1 epoch each, .*, not \[Phase\(epochs=1.5"),  # type: ignore[arg-type]
        (In(Phase(1, "head")), [HEAD], "that trains 'all', 'personal' or 'shared', not .* trains='head'"),  # type: ignore[arg-type]
    ],
)
def test_phases_that_train_nothing_are_refused(objective: Objective, personal: list[str], says: str) -> None:
    problem = problem_with(objective)
    with pytest.raises(UserError, match=says):
        replace(problem, layout=Layout.of(problem.module, personal)).check_objective()


# In a config


@dataclass(frozen=True)
class Sparse(Objective):
    """An objective of a user's own: an L1 penalty."""

    strength: float = 0.001

    def penalty(self, weights: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> Tensor:
        return self.strength * torch.stack([value.abs().sum() for value in weights.values()]).sum()


BASE: dict[str, Any] = {"peers": 4, "rounds": 2, "data": {"train": 10, "test": 5}, "method": {"name": "random", "k": 2}}


def test_an_objective_is_a_name_or_a_table_and_is_stored_with_its_defaults(tmp_path: Path) -> None:
    run = homophily.run({**BASE, "training": {"objective": "fedprox"}}, out=tmp_path / "run", device="cpu")
    assert run.config.training.objective.name == "fedprox"
    assert run.config.training.objective.keys == {"mu": 0.01}
    assert (run.about["plan"]["engine"], "objective" in run.about["plan"]["why"]) == ("vectorised", True)
    again = homophily.run(run.path / "config.toml", out=tmp_path / "again", device="cpu")
    assert again.scores == run.scores
    assert homophily.resume(run.path).scores == run.scores


def test_an_objective_of_ones_own_is_found_by_its_path(tmp_path: Path) -> None:
    objective = {"name": f"{__name__}:Sparse", "strength": 0.1}
    runs = [
        homophily.run({**BASE, "training": keys}, out=tmp_path / str(number), device="cpu")
        for number, keys in enumerate(({"objective": objective}, {}))
    ]
    small, large = (np.abs(run.model(0)[1].weight.detach().numpy()).sum() for run in runs)
    assert small < large
    with pytest.raises(UserError, match=r"must be a homophily\.Objective, not Linear"):
        homophily.run({**BASE, "training": {"objective": f"{__name__}:linear"}}, out=tmp_path / "none")


def linear() -> nn.Module:
    return nn.Linear(1, 1)


def test_another_objective_drops_the_keys_of_the_one_before() -> None:
    config = make({"training": {"objective": {"name": "fedprox", "mu": 0.3}}})
    assert over(config, {"training": {"lr": 0.1}}).training.objective.keys == {"mu": 0.3}
    assert over(config, {"training": {"objective": {"mu": 0.4}}}).training.objective.keys == {"mu": 0.4}
    assert over(config, {"training": {"objective": "loss"}}).training.objective.keys == {}
