"""The round loop: what is trained, met, merged, counted and scored, and when."""

from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import homophily
from homophily import Method, RoundContext
from homophily.simulation.configuration import make
from homophily.simulation.exchange import PeerExchange
from homophily.simulation.rounds import OneRun, RunState, play_round
from homophily.simulation.setup import prepare
from homophily.simulation.user_objects import UserObjects

QUICK: dict[str, Any] = {
    "peers": 8,
    "rounds": 4,
    "method": {"name": "random", "k": 2},
    "data": {"angles": [0, 180], "train": 10, "test": 30},
}
LOCAL = {"name": "local"}

pytestmark = pytest.mark.usefixtures("here")


def run(**keys: Any) -> homophily.Run:
    """The quick federation with other keys; tables are completed from it, a method without k is taken as it is."""
    tables = {k: {**QUICK.get(k, {}), **v} for k, v in keys.items() if isinstance(v, dict) and v is not LOCAL}
    return homophily.run({**QUICK, **keys, **tables})


def test_both_engines_play_the_same_game() -> None:
    fast, plain = run(engine="vectorised"), run(engine="one-by-one")
    assert fast.about["plan"]["engine"] == "vectorised"
    assert plain.about["plan"]["engine"] == "one-by-one"
    assert np.array_equal(fast.merges(), plain.merges())
    difference = [fast.state_dict(3)[name] - tensor for name, tensor in plain.state_dict(3).items()]
    assert max(float(d.abs().max()) for d in difference) < 1e-4


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    first, again, other = run(), run(), run(seed=1)
    assert first.scores == again.scores
    assert np.array_equal(first.merges(), again.merges())
    assert not np.array_equal(first.merges(), other.merges())


def test_all_methods_of_a_seed_get_the_same_federation() -> None:
    """Before they have met anybody, peers of different methods are the same."""
    lines = [run(method=method, score="after-training", rounds=1).metrics()[0] for method in (LOCAL, {"k": 2})]
    assert lines[0]["accuracy"] == lines[1]["accuracy"]


def test_costs_and_merges_are_counted() -> None:
    found = run()
    assert found.summary["models_sent_per_peer"] == 4 * 2
    assert found.summary["peak_models_per_peer_round"] == 2
    row = sum(tensor.numel() for tensor in found.state_dict(0).values())
    assert found.summary["bytes_sent_per_peer"] == 4 * 2 * row * 4
    counts = found.merges()
    assert counts.sum() == 8 * 4 * 2
    assert counts.diagonal().sum() == 0
    inside = counts[:4, :4].sum() + counts[4:, 4:].sum()
    assert found.summary["same_cluster_merges"] == pytest.approx(inside / counts.sum())


def test_local_meets_nobody_and_has_no_neighbours() -> None:
    found = run(method=LOCAL).summary
    assert found["models_sent_per_peer"] == 0
    assert found["neighbour_precision"] is None
    assert found["same_cluster_merges"] is None


def test_oracle_merges_inside_its_cluster_only() -> None:
    found = run(method={"name": "oracle"})
    assert found.summary["same_cluster_merges"] == found.summary["neighbour_precision"] == 1.0
    assert found.summary["neighbour_recall"] == pytest.approx(2 / 3)


def test_a_fixed_topology_never_changes() -> None:
    counts = run(method={"name": "fix-topology"}).merges()
    assert set(counts.flatten().tolist()) == {0, 4}


def test_bounded_contacts_limit_the_peers_that_are_met() -> None:
    counts = run(contacts=3, rounds=20).merges()
    assert int((counts > 0).sum(1).max()) <= 3
    assert int((run(rounds=20).merges() > 0).sum(1).min()) > 3


def test_scores_after_merge_and_after_training_differ_and_the_models_are_the_scored_ones() -> None:
    merged, trained = run(evaluate=2), run(score="after-training")
    assert merged.summary["accuracy"] != trained.summary["accuracy"]
    assert [("accuracy" in line) for line in merged.metrics()] == [False, True, False, True]
    for found in (merged, trained):
        assert found.summary["accuracy"] == found.metrics()[-1]["accuracy"]
        assert found.summary["accuracy"] == pytest.approx(np.mean(found.scores["accuracy"]))


def test_independent_initialisations_differ_and_a_common_one_does_not() -> None:
    def first_rows(init: str) -> Tensor:
        found = run(init=init, rounds=1, method=LOCAL, training={"lr": 1e-9})
        return torch.stack([found.state_dict(i)["1.weight"] for i in range(8)])

    common, own = first_rows("common"), first_rows("independent")
    assert float((common - common[0]).abs().max()) < 1e-6
    assert float((own[1] - own[0]).abs().max()) > 0.01


def test_early_stopping_keeps_the_best_and_ends_the_run() -> None:
    keys = {"rounds": 60, "training": {"patience": 2, "lr": 0.5}, "data": {"validation": 10}}
    found = run(**keys)
    assert found.summary["stopped_early"] == 8
    assert found.summary["rounds"] < 60
    lines = found.metrics()
    assert [line["stopped"] for line in lines] == sorted(line["stopped"] for line in lines)
    # Who has stopped costs nothing more.
    assert found.summary["models_sent_per_peer"] < 2 * found.summary["rounds"]
    state = load_file(next((found.path / "checkpoints").iterdir()) / "state.safetensors")
    scored = load_file(found.path / "models.safetensors")["rows"]
    assert torch.equal(scored, state["best/rows"])
    assert not torch.equal(scored, state["current/rows"])


def test_clusters_are_averaged_over_peers_and_over_clusters() -> None:
    found = run(data={"sizes": [6, 2]})
    by_cluster = found.summary["accuracy_by_cluster"]
    assert list(by_cluster) == ["0°", "180°"]
    assert found.summary["accuracy"] == pytest.approx((6 * by_cluster["0°"] + 2 * by_cluster["180°"]) / 8)
    assert found.summary["accuracy_over_clusters"] == pytest.approx(sum(by_cluster.values()) / 2)


class MostAlike(Method):
    """Meets everyone, merges with the single most similar; remembers how often it has chosen."""

    def __init__(self, metric: str) -> None:
        self.metric = metric

    def meet(self, now: RoundContext) -> Tensor:
        return now.known

    def choose(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Tensor:
        assert similarity is not None
        now.memory["chosen"] = now.memory.get("chosen", torch.zeros(len(met))) + 1
        return similarity == similarity.amax(1, keepdim=True)


@pytest.mark.parametrize("metric", ["loss", "l2", "cosine-weights", "cosine-gradients", "panm"])
def test_every_metric_finds_the_own_cluster_in_both_engines(metric: str) -> None:
    found = [
        homophily.run(
            {**QUICK, "rounds": 3, "engine": engine, "data": {**QUICK["data"], "train": 60}}, method=MostAlike(metric)
        )
        for engine in ("vectorised", "one-by-one")
    ]
    assert np.array_equal(found[0].merges(), found[1].merges())
    assert found[0].summary["same_cluster_merges"] > 0.9


class Recalling(Method):
    """Merges with all it asked, whether or not they are among those met."""

    def meet(self, now: RoundContext) -> Tensor:
        return now.known

    def choose(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Tensor:
        return now.known


def test_a_peer_that_stopped_early_is_no_reason_to_refuse_a_method() -> None:
    found = homophily.run({**QUICK, **PATIENT, "data": {**QUICK["data"], **PATIENT["data"]}}, method=Recalling())
    assert found.summary["stopped_early"] == 8
    assert found.merges().diagonal().sum() == 0


PATIENT: dict[str, Any] = {"rounds": 40, "training": {"patience": 2, "lr": 0.5}, "data": {"validation": 10}}


@pytest.mark.parametrize("name", ["random", "pens", "panm", "dac", "dpg", "kin", "oracle"])
@pytest.mark.parametrize("engine", ["vectorised", "one-by-one"])
def test_every_method_outlives_the_stopping_of_all(name: str, engine: str) -> None:
    found = run(**PATIENT, method={"name": name}, engine=engine, evaluate=7)
    assert found.summary["stopped_early"] == 8
    assert found.summary["neighbour_recall"] is not None
    assert "accuracy" in found.metrics()[-1]


def test_a_server_outlives_it_too() -> None:
    method = {"name": "fedavg", "fraction": 0.3}
    keys = {key: value for key, value in PATIENT.items() if key != "data"}
    found = homophily.run({**QUICK, **keys, "method": method, "data": {**QUICK["data"], "validation": 10}})
    assert found.summary["stopped_early"] == 8


def test_a_peer_that_has_stopped_keeps_its_neighbours() -> None:
    """In PANM's stage 1 a peer that meets nobody would otherwise forget everyone."""
    found = run(**PATIENT, method={"name": "panm", "k": 2, "l": 4, "t1": 40})
    assert bool((found.neighbours().sum(1) == 2).all())


@pytest.mark.parametrize("name", ["local", "random", "pens", "panm", "dac", "dpg", "kin", "oracle", "fedavg", "ifca"])
def test_one_peer_is_a_federation(name: str) -> None:
    found = homophily.run({"peers": 1, "rounds": 2, "method": {"name": name}, "data": {"shift": "iid"}})
    assert found.summary["models_sent_per_peer"] == 2 * {"fedavg": 2, "ifca": 5}.get(name, 0)


def test_fedsim_measures_in_every_round_and_needs_a_method_that_compares() -> None:
    with pytest.raises(homophily.UserError, match="merge = 'fedsim' needs a method that compares"):
        run(merge="fedsim")
    found = run(merge="fedsim", rounds=9, method={"name": "pens", "l": 4, "t1": 3, "k": 2})
    assert [one.round for one in found.history.similarities(0)] == list(range(1, 10))
    assert found.metrics()[-1]["same_cluster_merges"] is not None


def test_a_diverged_peer_with_a_personal_layer_recovers() -> None:
    data = [homophily.PeerData(x=np.random.default_rng(i).normal(size=(12, 4)), y=np.arange(12) % 2) for i in range(4)]
    data[0] = homophily.PeerData(x=data[0].x * 1e30, y=data[0].y)  # its loss overflows in every round
    keys: dict[str, Any] = {"rounds": 3, "method": {"name": "random", "k": 3}, "model": {"personal": ["3"]}}
    found = homophily.run({**keys, "model": {"name": "mlp", "hidden": [4], "personal": ["3"]}}, data=data)
    assert found.summary["ever_diverged"] == [0]
    assert found.summary["diverged"] == []  # recovered by the last merge, personal layer included


@pytest.mark.parametrize(
    ("method", "received"),
    [
        ({"name": "random", "k": 3}, [3, 2, 2, 2]),
        ({"name": "dac", "k": 3, "metric": "panm"}, [3, 2, 2, 2]),
        ({"name": "dac", "k": 3, "on": "peer"}, [3, 2 + 3, 2 + 3, 2 + 3]),  # one's own goes to those met
        ({"name": "fedavg"}, [1, 2, 2, 2]),
    ],
    ids=["random", "panm", "on peer", "fedavg"],
)
def test_a_diverged_model_does_not_travel(method: dict[str, Any], received: list[int]) -> None:
    data = [homophily.PeerData(x=np.random.default_rng(i).normal(size=(12, 4)), y=np.arange(12) % 2) for i in range(4)]
    data[0] = homophily.PeerData(x=data[0].x * 1e30, y=data[0].y)
    found = homophily.run({"rounds": 1, "method": method, "model": "linear"}, data=data)
    assert found.summary["ever_diverged"] == [0]
    assert found.scores["models_received"] == received
    sizes = 2 if method.get("metric") == "panm" else 1  # with the update
    assert found.summary["bytes_sent_per_peer"] == sizes * sum(received) / 4 * 4 * (4 * 2 + 2)


@pytest.mark.parametrize("metric", ["cosine-weights", "l2", "panm"])
@pytest.mark.parametrize("name", ["dac", "panm", "pens"])
def test_a_diverged_peer_recovers_with_fedsim_whatever_the_metric(name: str, metric: str) -> None:
    data = [homophily.PeerData(x=np.random.default_rng(i).normal(size=(12, 4)), y=np.arange(12) % 2) for i in range(5)]
    data[0] = homophily.PeerData(x=data[0].x * 1e30, y=data[0].y)
    config = {"rounds": 3, "merge": "fedsim", "method": {"name": name, "k": 2, "metric": metric}, "model": "linear"}
    found = homophily.run(config, data=data)
    assert (found.summary["ever_diverged"], found.summary["diverged"]) == ([0], [])


@pytest.mark.parametrize(("name", "table"), [("dac", "similarity"), ("dpg", "probability")])
def test_a_diverged_peer_remembers_what_it_knew_of_others(name: str, table: str) -> None:
    config = {"peers": 8, "rounds": 9, "method": {"name": name, "k": 3, "metric": "cosine-weights"}}
    experiment, *_ = prepare(make(config), UserObjects(), torch.device("cpu"))
    state = RunState(experiment)
    play_round({0: state}, OneRun(state))
    assert isinstance(state.exchange, PeerExchange)
    before = state.exchange.memory[table].clone()
    state.federation.rows[0] = torch.nan
    assert play_round({0: state}, OneRun(state))[0]["diverged"] == [0]
    after = state.exchange.memory[table]
    assert torch.equal(after[0].nan_to_num(nan=-2.0), before[0].nan_to_num(nan=-2.0))
    assert not torch.equal(after[1].nan_to_num(nan=-2.0), before[1].nan_to_num(nan=-2.0))


@pytest.mark.parametrize("name", ["panm", "pens", "dac"])
def test_a_run_that_goes_beyond_a_methods_formula_has_no_nominal_cost(name: str) -> None:
    method = {"name": name, "l": 4, "k": 2, "on": "peer"}
    method = {key: value for key, value in method.items() if key != "l" or name != "dac"}
    both = [run(rounds=9, merge=merge, method=method).summary for merge in ("uniform", "fedsim")]
    assert both[0]["models_sent_per_peer"] <= both[0]["nominal_models_per_peer"]
    assert both[1]["nominal_models_per_peer"] is None


def test_a_share_of_clients_is_rounded_not_raised_and_costs_its_nominal() -> None:
    config = {"peers": 14, "rounds": 3, "method": {"name": "fedavg", "fraction": 0.07}}
    found = homophily.run(config).summary
    assert found["models_sent_per_peer"] == pytest.approx(found["nominal_models_per_peer"]) == pytest.approx(3 * 2 / 14)


@pytest.mark.parametrize("method", [{"name": "panm", "on": "peer", "l": 3}, {"name": "dac", "on": "peer"}])
def test_no_run_costs_more_than_its_nominal(method: dict[str, Any]) -> None:
    found = run(method=method).summary
    assert found["models_sent_per_peer"] <= found["nominal_models_per_peer"]


def test_over_several_hops_there_is_no_nominal_number_of_models() -> None:
    assert run(topology="ring", method={"name": "random", "hops": 3}).summary["nominal_models_per_peer"] is None


def test_a_method_object_keeps_its_stages_when_a_run_is_extended() -> None:
    from homophily.methods.pens import Pens

    short = homophily.run({**QUICK, "rounds": 6}, method=Pens(l=4, k=2))
    longer = homophily.resume(short.path, {"rounds": 20}, method=Pens(l=4, k=2))
    assert longer.summary["nominal_models_per_peer"] == 2 * 4 + 18 * 2


def test_a_method_object_with_a_server_is_the_same_as_its_name() -> None:
    from homophily.methods.server import Ifca

    given = homophily.run(QUICK, method=Ifca(models=2))
    named = homophily.run({**QUICK, "method": {"name": "ifca", "models": 2}})
    assert given.scores == named.scores


def test_only_a_shared_table_can_be_looked_up() -> None:
    class Eavesdropper(MostAlike):
        """Reads a table that its peers do not hand over."""

        def choose(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Tensor:
            now.memory["secret"] = torch.zeros(met.shape, dtype=torch.float64)
            now.shared("secret", now.view.contacts[:, :1])
            return met

    with pytest.raises(ValueError, match="must list it in `shares`"):
        homophily.run(QUICK, method=Eavesdropper("l2"))


def test_a_note_if_the_panm_metric_has_no_common_start() -> None:
    found = run(init="independent", method={"name": "panm", "metric": "panm"}).summary
    assert "start from different models" in found["notes"][0]
