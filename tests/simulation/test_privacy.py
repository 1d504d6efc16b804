"""Runs with [privacy]: what they promise and spend, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import homophily
from homophily.config.privacy import Privacy
from homophily.errors import UserError
from homophily.fingerprints.private import SENSITIVITY, PrivateFingerprints
from homophily.methods.kin import Kin
from homophily.privacy.accountant import Noise, epsilon_of
from homophily.privacy.gaussian import gaussian_noise
from homophily.privacy.loss_distribution import Release
from homophily.simulation import training_setup
from homophily.simulation.configuration import make
from homophily.simulation.privacy import PrivacyAccount, peers_with, released_counts, released_fingerprints

SMALL = {
    "peers": 4, "rounds": 3, "data": {"train": 40, "test": 20}, "method": "random",
    "training": {"batch": 10, "epochs": 2}, "model": {"hidden": [8]},
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("here")


def _run(privacy: dict[str, Any], out: str = "run", model: Any = None, **keys: Any) -> homophily.Run:
    config = {**SMALL, "privacy": {"epsilon": 8.0, **privacy}, **keys}
    if model is not None:
        config.pop("model")
    return homophily.run(config, out=out, model=model)


def test_a_run_spends_what_it_promises(here: Path) -> None:
    told = _run({}).summary["privacy"]
    assert (told["epsilon_promised"], told["delta"], told["unit"]) == (8.0, 1e-5, "sample")
    assert 7.9 < told["epsilon_spent"] <= 8.0
    steps = 3 * 2 * 4  # rounds, epochs, 1 / rate
    assert epsilon_of([Release(told["noise"], 0.25, steps)], 1e-5) == pytest.approx(8.0, rel=0.01)


def test_less_epsilon_needs_more_noise_and_persons_more_than_samples() -> None:
    noise = [
        _run(keys, out=str(number)).summary["privacy"]["noise"]
        for number, keys in enumerate([{}, {"epsilon": 2.0}, {"unit": "person", "samples_per_person": 3}])
    ]
    assert noise[0] < noise[2] < 3.5 * noise[0]
    assert noise[0] < noise[1]


def test_all_engines_give_the_same_private_models() -> None:
    names = ["one-by-one", "vectorised", "stacked"]
    runs = [_run({}, out=name, engine=name) for name in names]
    assert [run.about["plan"]["engine"] for run in runs] == names
    losses = [run.summary["loss"] for run in runs]
    assert losses == pytest.approx(losses[:1] * 3, rel=1e-4)


def test_runs_side_by_side_are_as_private_as_runs_by_themselves() -> None:
    config = {key: value for key, value in SMALL.items() if key != "method"} | {"privacy": {"epsilon": 8.0}}
    homophily.compare(config, methods=["local", "random"], seeds=[0], out="both")
    runs = {name: homophily.Run(f"both/{name}-0") for name in ("local", "random")}
    assert runs["random"].summary["loss"] == pytest.approx(_run({}).summary["loss"], rel=1e-5)
    for run in runs.values():
        assert 7.9 < run.summary["privacy"]["epsilon_spent"] <= 8.0


def test_epsilon_spent_grows_from_round_to_round_in_the_metrics() -> None:
    run = _run({})
    spent = [line["epsilon_spent"] for line in run.metrics()]
    assert 0 < spent[0] < spent[1] < spent[2] == run.summary["privacy"]["epsilon_spent"]


def test_the_summary_shows_a_promise_that_was_broken() -> None:
    """The account is of what was released, whatever was promised."""
    promise = Privacy(epsilon=8.0)
    peers = peers_with(promise, 10, 40, 6, 3, 0)
    too_little = replace(peers, noise=Noise(None, 0.5 * (peers.noise.training or 0.0)))
    told = PrivacyAccount(promise, (peers, too_little), lambda rounds: 0).summary(3)
    assert told["epsilon_promised"] == 8.0
    assert told["epsilon_spent"] > 16.0
    beyond = PrivacyAccount(promise, (peers,), lambda rounds: 0).summary(6)
    assert beyond["epsilon_spent"] > 8.5


def test_a_stopped_run_is_resumed_with_the_same_draws_and_not_extended() -> None:
    whole = _run({}, out="whole")
    simulation = homophily.Simulation({**SMALL, "privacy": {"epsilon": 8.0}}, out="part")
    simulation.step()
    simulation.save()
    again = homophily.resume("part")
    assert again.summary["loss"] == whole.summary["loss"]
    assert again.summary["privacy"] == whole.summary["privacy"]
    with pytest.raises(UserError, match="another number of rounds needs a new run"):
        homophily.resume("whole", {"rounds": 5})


# kin: fingerprint and training in one account

ROTATED = {
    "peers": 12, "rounds": 3, "data": {"train": 100, "test": 20, "angles": [0, 180]}, "method": "kin",
    "training": {"batch": 25, "epochs": 1}, "model": {"hidden": [8]}, "privacy": {"epsilon": 20.0},
}  # fmt: skip


def test_kin_finds_families_with_released_fingerprints_and_one_account() -> None:
    summary = homophily.run(ROTATED, out="kin").summary
    assert summary["notes"][0] == "found 2 families, of 6, 6 peers"
    assert summary["same_cluster_merges"] == 1.0
    told = summary["privacy"]
    assert 19.9 < told["epsilon_spent"] <= 20.0
    fingerprint, training = Release(told["fingerprint_noise"]), Release(told["noise"], 0.25, 3 * 4)
    delta = 1e-5 * 0.99  # the rest pays for batches that do not fit
    assert epsilon_of([fingerprint, training], delta) == pytest.approx(told["epsilon_spent"], rel=1e-9)
    assert epsilon_of([fingerprint], delta) == pytest.approx(10.0, rel=1e-3)
    assert epsilon_of([training], delta) < 0.9 * told["epsilon_spent"]


def test_engines_choose_the_same_partners_from_released_fingerprints() -> None:
    runs = [homophily.run({**ROTATED, "engine": name}, out=name) for name in ("one-by-one", "vectorised")]
    assert runs[0].summary["loss"] == pytest.approx(runs[1].summary["loss"], rel=1e-4)
    for round in (1, 2, 3):
        pairs = [run.history.merges(round).tolist() for run in runs]
        assert pairs[0] == pairs[1] != []


def test_the_own_fingerprint_is_compared_as_it_was_released(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[PrivateFingerprints] = []
    decide = Kin.on_released

    def spy(self: Kin, view: Any, prints: PrivateFingerprints, ids: Any, limited: bool) -> Any:
        heard.append(prints)
        return decide(self, view, prints, ids, limited)

    monkeypatch.setattr(Kin, "on_released", spy)
    monkeypatch.setattr(training_setup, "fingerprints", None)  # fingerprints without noise are not even made
    told = homophily.run({**ROTATED, "method": {"name": "kin", "renew": 1}}, out="kin").summary["privacy"]
    assert len(heard) == 3
    assert heard[0].noise == pytest.approx(told["fingerprint_noise"] * SENSITIVITY)
    assert not torch.equal(heard[0].count, heard[1].count)  # a renewed fingerprint has fresh noise, which is charged
    assert told["fingerprint_noise"] == pytest.approx(3**0.5 * gaussian_noise(10.0, 1e-5 * 0.99), rel=1e-6)


def test_kin_with_stopped_rounds_is_resumed_and_not_extended() -> None:
    whole = homophily.run(ROTATED, out="whole")
    simulation = homophily.Simulation(ROTATED, out="part")
    simulation.step()
    simulation.save()
    again = homophily.resume("part")
    assert (again.summary["loss"], again.summary["privacy"]) == (whole.summary["loss"], whole.summary["privacy"])
    with pytest.raises(UserError, match="another number of rounds needs a new run"):
        homophily.resume("whole", {"rounds": 4})


def test_too_much_noise_on_fingerprints_is_refused_before_the_first_round(here: Path) -> None:
    privacy = {"epsilon": 1.0, "max_noise": 10.0}
    with pytest.raises(UserError, match=r"3 fingerprints per peer.*do: epsilon = .* or method.renew = 0 or"):
        homophily.run({**ROTATED, "privacy": privacy, "method": {"name": "kin", "renew": 1}}, out="kin")
    assert not (here / "kin").exists()


def test_a_method_that_needs_fingerprints_without_noise_is_refused() -> None:
    class Curious(Kin):
        on_released = homophily.Method.on_released

    with pytest.raises(UserError, match="must define on_released"):
        homophily.run(ROTATED, method=Curious(), out="curious")


def test_constants_of_the_peers_own_data_are_refused() -> None:
    x = torch.randn(3, 40, 5)
    peers = [homophily.PeerData(x[i], (x[i, :, 0] > 0).long()) for i in range(3)]
    with pytest.raises(UserError, match=r"privacy: your own data needs data\.scale with classes, since constants"):
        homophily.run({"rounds": 1, "method": "random", "privacy": {"epsilon": 8.0}}, data=peers, out="own")


def test_everything_that_own_data_lacks_is_named_at_once() -> None:
    x = torch.randn(3, 40, 5)
    x[:, ::2, 0] = torch.nan
    peers = [homophily.PeerData(one, one[:, 1]) for one in x]
    config: dict[str, Any] = {
        "rounds": 1, "method": "random", "model": "linear", "data": {"normalise": "standard", "train": 20},
        "privacy": {"epsilon": 8.0, "unit": "person", "samples_per_person": 3},
    }  # fmt: skip
    with pytest.raises(UserError) as error:
        homophily.run(config, data=peers, out="own")
    said = str(error.value)
    assert said.startswith(
        "privacy: your own data needs data.scale with target_mean and target_std and fill instead of data.normalise, "
    )
    assert "; and test and validation samples (data.split, or test_x) and no data.train, since " in said
    assert "; and data.person, or person in the .npz file or in PeerData, since privacy.unit = 'person'" in said
    # With all of it, the run begins.
    scale = {"target_mean": [0.0], "target_std": [1.0], "fill": [0.0] * 5}
    given = {**config, "data": {"scale": scale}, "training": {"batch": 10, "epochs": 1}}
    persons = [f"patient {i // 3}" for i in range(40)]
    whole = [replace(one, test_x=one.x[1:5], test_y=one.y[1:5], person=persons) for one in peers]
    assert homophily.run(given, data=whole, out="own").summary["privacy"]["unit"] == "person"


def _patients(rows: int, persons: int, tests: bool = True) -> list[homophily.PeerData]:
    x, held = torch.randn(3, rows, 5), torch.randn(10, 5)
    test: dict[str, Any] = {"test_x": held, "test_y": (held[:, 0] > 0).long()} if tests else {}
    person = [f"patient {i % persons}" for i in range(rows)]
    return [homophily.PeerData(one, (one[:, 0] > 0).long(), person=person, **test) for one in x]


@pytest.mark.parametrize(
    ("patients", "most", "problem"),
    [
        ({"persons": 10}, 4, None),
        ({"persons": 10}, 3, "peer 0 has 4 training samples of one person, above"),
        ({"persons": 10, "tests": False}, 4, "one sample more would change which others are drawn"),
    ],
)
def test_own_data_is_private_by_person(patients: dict[str, Any], most: int, problem: str | None) -> None:
    config = {
        "rounds": 1, "method": "random", "model": "linear", "training": {"batch": 10, "epochs": 1},
        "data": {"scale": {"classes": 2}},
        "privacy": {"epsilon": 8.0, "unit": "person", "samples_per_person": most},
    }  # fmt: skip
    if problem is None:
        assert homophily.run(config, data=_patients(40, **patients), out="own").summary["privacy"]["unit"] == "person"
        return
    with pytest.raises(UserError, match=problem):
        homophily.run(config, data=_patients(40, **patients), out="own")


@given(
    epsilon=st.floats(0.5, 20.0),
    rounds=st.integers(1, 6),
    share=st.floats(0.1, 0.9),
    renew=st.integers(0, 3),
    samples=st.sampled_from([20, 50, 400]),
)
@settings(max_examples=25, deadline=None)
def test_what_is_spent_grows_to_the_promise_and_never_above_it(
    epsilon: float, rounds: int, share: float, renew: int, samples: int
) -> None:
    promise = Privacy(epsilon=epsilon, share=share)
    fingerprints = released_fingerprints(Kin(renew=renew))
    peers = peers_with(promise, 10, samples, 2 * rounds, rounds, fingerprints(rounds))
    account = PrivacyAccount(promise, (peers,), fingerprints)
    spent = [account.summary(played)["epsilon_spent"] for played in range(rounds + 1)]
    assert spent[0] == 0.0
    assert spent == sorted(spent)
    assert spent[-1] <= epsilon


NORM = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"method": "pens"}, "losses on private data"),
        (
            {"method": {"name": "panm", "losses": "validation"}, "data": {"validation": 10, "train": 40}},
            "losses on private data",
        ),
        ({"method": {"name": "dac", "metric": "loss"}}, "'dac' compares losses on private data"),
        ({"method": {"name": "dac", "metric": "loss"}, "merge": "fedsim"}, "'dac' compares losses on private data"),
        ({"method": "ifca"}, "losses on private data"),
        ({"method": "fedavg"}, "exact sample counts"),
        ({"merge": "fedavg"}, "exact sample counts"),
        ({"training": {"patience": 2}, "data": {"validation": 10, "train": 40}}, "patience"),
        ({"training": {"optimizer": "RMSprop"}}, "sgd, adam, adamw"),
        ({"model": NORM}, "BatchNorm"),
        ({"privacy": {"delta": 0.05}}, "below 1 / 40"),
        (
            {"privacy": {"epsilon": 0.05}},
            "max_noise = 30; what would do: epsilon = .* samples per peer or fewer",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_the_account_does_not_cover_is_refused(here: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        _run(keys.pop("privacy", {}), **keys)
    assert not (here / "run").exists()


@pytest.mark.parametrize(("delta", "samples"), [(0.01, None), (0.004, 10)])
def test_delta_must_be_too_small_for_the_largest_peer_to_release_a_sample(delta: float, samples: int | None) -> None:
    x = torch.randn(200, 5)
    peers = [homophily.PeerData(x[:n], (x[:n, 0] > 0).long(), test_x=x, test_y=(x[:, 0] > 0).long()) for n in (20, 200)]
    privacy = {"epsilon": 8.0, "delta": delta, "samples": samples}
    config = {"rounds": 1, "method": "random", "model": "linear", "data": {"scale": {"classes": 2}}}
    if delta < 1 / 200:
        assert homophily.run({**config, "privacy": privacy}, data=peers, out="run").summary["privacy"]["delta"] == delta
        privacy["delta"] = 0.006  # the number of samples that is agreed does not make a peer smaller
    with pytest.raises(UserError, match=r"must be below 1 / 200, the samples of a peer"):
        homophily.run({**config, "privacy": privacy}, data=peers, out="refused")


def test_similarities_of_models_and_what_is_built_on_them_are_free() -> None:
    spent = [
        _run({}, out=name, **keys).summary["privacy"]["epsilon_spent"]
        for name, keys in {
            "random": {},
            "dac": {"method": {"name": "dac", "metric": "l2", "k": 2}, "merge": "fedsim"},
        }.items()
    ]
    assert spent[0] == spent[1]


def sly(pairs: Any) -> torch.Tensor:
    """A metric that does not declare that it uses losses."""
    return -torch.as_tensor(pairs.loss("own"))


def test_a_metric_that_uses_losses_without_saying_so_is_refused() -> None:
    with pytest.raises(UserError, match="privacy: this metric uses losses on private data"):
        _run({}, method={"name": "dac", "metric": f"{__name__}:sly"})


def test_a_transform_that_mixes_samples_is_refused() -> None:
    def mixed(x: torch.Tensor, draws: Any) -> torch.Tensor:
        return 0.5 * (x + x.flip(0))

    def shifted(x: torch.Tensor, draws: Any) -> torch.Tensor:
        return x + 0.1 * draws.normal(*x.shape[1:])

    config = {**SMALL, "rounds": 1, "privacy": {"epsilon": 8.0}}
    with pytest.raises(UserError, match=r"data\.transform mixes the samples of a batch"):
        homophily.run(config, transform=mixed, out="mixed")
    assert homophily.run(config, transform=shifted, out="shifted").summary["privacy"]["epsilon_spent"] <= 8.0


def test_counts_that_peers_send_are_replaced_by_1() -> None:
    counts = torch.tensor([40, 7])
    assert released_counts(make({}), counts).tolist() == [40, 7]
    assert released_counts(make({"privacy": {"epsilon": 8.0}}), counts).tolist() == [1, 1]


def test_a_comparison_of_all_methods_leaves_out_those_that_the_promise_excludes(here: Path) -> None:
    config = {
        "rounds": 1, "peers": 8, "data": {"train": 100}, "training": {"batch": 50, "epochs": 1},
        "privacy": {"epsilon": 8.0},
    }  # fmt: skip
    comparison = homophily.compare(config, methods="all", out="all")
    assert {"kin", "local", "oracle", "random"} <= {*comparison.runs}
    assert not {"fedavg", "panm", "pens"} & {*comparison.runs}
    with pytest.raises(UserError, match="method = 'pens' compares losses"):
        homophily.compare(config, methods=["local", "pens"], out="some")
