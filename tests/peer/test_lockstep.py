"""In lockstep, real peers end with the weights and the communication of the simulation."""

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from homophily import PeerData
from homophily.federation.similarity import Pairs
from homophily.methods import Method, RoundContext
from homophily.peer.deploy import Deployment, deploy
from homophily.simulation.configuration import make

NORMAL = {"name": "tests.peer.test_lockstep:normalised"}
QUICK: dict[str, Any] = {"rounds": 3, "data": {"train": 20, "test": 10, "angles": [0, 180]}}


def normalised(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    layers = nn.Linear(prod(inputs), 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs)
    return nn.Sequential(nn.Flatten(), *layers)


def played(folder: Path, peers: int, **keys: Any) -> Deployment:
    return deploy(make({**QUICK, **keys}), peers, folder, progress=lambda text: None)


def hot_headed() -> list[PeerData]:
    """Four peers; the loss of the first overflows in every round."""
    draw = np.random.default_rng(0)
    x = [draw.normal(size=(12, 4)) * (1e30 if peer == 0 else 1.0) for peer in range(4)]
    return [PeerData(x=each, y=np.arange(12) % 2) for each in x]


def moved_alike(pairs: Pairs) -> Tensor:
    return (pairs.my_update * pairs.your_update).sum(1).sign().double()


class Unsteady(nn.Module):
    """A linear layer, and a scale that overflows in the first step of training on samples with a huge last feature."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(3, 2), nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.scale.weight)

    def forward(self, x: Tensor) -> Tensor:
        shift = torch.sin(1e9 * self.scale.weight[0] * x[:, 3:])
        return self.linear(x[:, :3]) + torch.cat([shift, -shift], dim=1)


def unsteady(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    return Unsteady()


def one_unsteady() -> list[PeerData]:
    """Four peers; the scale of ``Unsteady`` overflows at the first."""
    draw = np.random.default_rng(0)
    parts = [draw.normal(size=(24, 3)) for _ in range(4)]
    last = [np.full((24, 1), 1e36 if peer == 0 else 0.0) for peer in range(4)]
    return [PeerData(x=np.hstack(each), y=np.arange(24) % 2) for each in zip(parts, last, strict=True)]


class Gossip(Method):
    """Meets whoever its partners of the last round liked best; its tables have a number for everyone it knows."""

    shares = ("liking", "meetings")

    def meet(self, now: RoundContext) -> Tensor:
        return now.top(now.known, 2, now.recall("heard") - now.recall("meetings"))

    def choose(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Tensor:
        columns, mask = now.ranked(met, now.recall("liking"))
        partners = torch.where(mask, now.view.contacts.gather(1, columns), -1)
        liking, meetings = now.shared("liking", partners), now.shared("meetings", partners)
        heard = liking.nan_to_num(nan=0.0) + meetings.nan_to_num(nan=0.5)
        tables = {
            "meetings": now.recall("meetings") + met,
            "liking": now.recall("liking") + heard + now.view.contacts % 3,
        }
        now.memory |= {"heard": heard, **{name: table.where(now.known, torch.nan) for name, table in tables.items()}}
        return met


def assert_identical(found: Deployment) -> None:
    result = found.result()
    assert result["largest_difference"] == 0.0
    assert result["identical"] is True
    assert result["bill"] == result["simulated_bill"]
    assert result["bills_identical"] is True
    assert result["bill"]["models_sent_per_peer"] > 0
    assert result["score"] == pytest.approx(result["simulated_score"])
    lines = [line for run in found.peers for line in run.metrics()]
    assert [line["unreachable"] for line in lines] == [[]] * len(lines)
    assert any(line["merged"] for line in lines), "peers that never merge prove nothing"


def assert_same_history(found: Deployment) -> None:
    """Each real peer has recorded its own rounds as the simulation has recorded them."""
    all_peers = found.simulation.history
    assert sorted(all_peers.watched) == list(range(len(found.peers)))
    for peer, run in enumerate(found.peers):
        mine = run.history
        rounds = mine.merge_rounds
        assert (mine.peers.tolist(), mine.names[peer], len(rounds) > 0) == ([peer], f"peer-{peer}", True)
        for round in rounds.tolist():
            pairs = all_peers.merges(round)
            assert np.array_equal(mine.merges(round), pairs[pairs[:, 0] == peer])
            contacts = mine.contacts(round)
            assert set(mine.merges(round)[:, 1]) <= set(contacts["met"])
            assert len(contacts["unreachable"]) == 0
        for name, scores in mine.scores.items():
            assert np.array_equal(scores[:, 0], all_peers.scores[name][: len(rounds), peer])
        measured = zip(mine.similarities(peer), all_peers.similarities(peer), strict=False)
        for real, simulated in measured:
            assert real.round == simulated.round
            assert np.array_equal(real.ids, simulated.ids)
            assert np.array_equal(real.values, simulated.values, equal_nan=True)


@pytest.mark.parametrize(
    "method",
    [{"name": "panm", "k": 2, "t1": 2}, {"name": "dac", "k": 2}, {"name": "kin", "k": 2}],
    ids=lambda m: m["name"],
)
def test_eight_peers_match_the_simulation(method: dict[str, Any], tmp_path: Path) -> None:
    found = played(tmp_path, 8, method=method)
    assert_identical(found)
    assert_same_history(found)


def test_the_summaries_of_real_peers_have_the_notes_of_kin(tmp_path: Path) -> None:
    data = {"train": 60, "test": 10, "angles": [0, 180]}
    found = played(tmp_path, 6, method={"name": "kin", "k": 2}, data=data, rounds=1)
    assert found.simulation.summary["notes"] == ["found 2 families, of 3, 3 peers"]
    assert [run.summary["notes"] for run in found.peers] == [["this peer belongs to a family of 3 peers"]] * 6


def test_dpg_on_a_torus_matches_the_simulation(tmp_path: Path) -> None:
    found = played(tmp_path, 16, method={"name": "dpg"}, topology={"name": "torus", "rows": 4}, rounds=2)
    assert_identical(found)


def test_personal_layers_stay_with_their_peers(tmp_path: Path) -> None:
    found = played(tmp_path, 4, method={"name": "dac", "k": 2}, model={"name": "mlp", "personal": ["3"]})
    assert_identical(found)


def test_settings_by_peer_and_a_schedule_match_the_simulation(tmp_path: Path) -> None:
    training = {
        "optimizer": "adamw", "weight_decay": 0.01, "clip": 1.0, "schedule": "cosine", "warmup": 1,
        "lr": 0.01, "lr_by_peer": {"180°": 0.02}, "epochs_by_peer": [1, 2, 3, 2],
    }  # fmt: skip
    found = played(tmp_path, 4, method={"name": "random", "k": 2}, training=training)
    assert_identical(found)
    assert [run.config.training.lr for run in found.peers] == [0.01, 0.01, 0.02, 0.02]
    assert [run.config.training.epochs for run in found.peers] == [1, 2, 3, 2]


@pytest.mark.parametrize("objective", [{"name": "fedprox", "mu": 0.1}, {"name": "fedrep", "body_epochs": 2}])
def test_local_objectives_match_the_simulation(objective: dict[str, Any], tmp_path: Path) -> None:
    model, training = {"name": "mlp", "personal": ["3"]}, {"objective": objective, "epochs": 2}
    assert_identical(played(tmp_path, 4, method={"name": "random", "k": 2}, model=model, training=training))


@pytest.mark.parametrize("merge", ["factors", "freeze-a", "product"])
def test_adapters_match_the_simulation(merge: str, tmp_path: Path) -> None:
    model = {"name": "mlp", "lora": {"rank": 2, "targets": ["1"], "train": ["3"], "merge": merge}}
    assert_identical(played(tmp_path, 4, method={"name": "random", "k": 2}, model=model))


def test_with_batch_norm_a_last_batch_of_one_joins_the_previous_one(tmp_path: Path) -> None:
    data, training = {"train": 21, "test": 10, "angles": [0, 180]}, {"batch": 20}
    assert_identical(played(tmp_path, 2, method={"name": "random", "k": 1}, data=data, training=training, model=NORMAL))


@pytest.mark.parametrize(
    "method",
    [
        {"name": "panm", "k": 1, "l": 2, "t1": 1, "tau": 3, "metric": "panm"},  # compares in rounds 1 and 3 only
        {"name": "pens", "k": 1, "l": 2, "t1": 1},
        {"name": "dac", "k": 2, "estimate": False},
        {"name": "dac", "k": 1, "metric": "tests.peer.test_lockstep:moved_alike"},
        {"name": "tests.peer.test_lockstep:Gossip"},
        {"name": "kin", "k": 2, "renew": 1},
    ],
    ids=["panm", "pens", "dac without estimates", "dac by an own metric", "an own method that shares", "kin, renewed"],
)
def test_four_peers_have_the_communication_of_the_simulation(method: dict[str, Any], tmp_path: Path) -> None:
    assert_identical(played(tmp_path, 4, method=method))


@pytest.mark.parametrize(
    "method",
    [
        {"name": "kin", "hops": 2, "renew": 2},
        {"name": "dac", "k": 2, "hops": 2},
        {"name": "tests.peer.test_lockstep:Gossip"},
    ],
    ids=["kin", "dac", "an own method that shares"],
)
def test_on_a_ring_fingerprints_and_tables_are_counted_per_hop(method: dict[str, Any], tmp_path: Path) -> None:
    assert_identical(played(tmp_path, 6, method=method, topology="ring"))


def test_a_diverged_model_does_not_travel(tmp_path: Path) -> None:
    data = {"name": "tests.peer.test_lockstep:hot_headed", "train": 6, "test": 6}
    method, model = {"name": "dac", "k": 3, "metric": "panm"}, {"name": "mlp", "hidden": [4]}
    found = played(tmp_path, 4, data=data, method=method, model=model)
    result = found.result()
    assert found.simulation.summary["ever_diverged"] == [0]
    assert result["identical"] is True
    assert result["bills_identical"] is True
    assert result["bill"]["models_received"] == [9, 6, 6, 6]


def test_models_from_two_hops_away_are_relayed(tmp_path: Path) -> None:
    """On a ring of five everyone is within two hops, and half of the models pass through somebody."""
    found = played(tmp_path, 5, method={"name": "random", "k": 4, "hops": 2}, topology="ring")
    assert_identical(found)
    for run in found.peers:
        assert [len(line["merged"]) for line in run.metrics()] == [4] * 3


def test_a_peer_that_stops_early_is_not_waited_for_and_still_answers(tmp_path: Path) -> None:
    data = {"train": 20, "test": 10, "validation": 10}
    method, training = {"name": "random", "k": 2}, {"patience": 1, "lr": 0.5}
    found = played(tmp_path, 4, rounds=12, data=data, method=method, training=training)
    assert_identical(found)
    assert len({len(run.metrics()) for run in found.peers}) > 1


@pytest.mark.parametrize(
    "method", [{"name": "dac", "k": 2, "metric": "panm"}, {"name": "kin", "k": 2, "renew": 1}], ids=["dac", "kin"]
)
def test_a_stopped_peer_has_no_update_and_no_new_fingerprint(method: dict[str, Any], tmp_path: Path) -> None:
    data, training = {"train": 20, "test": 10, "validation": 10}, {"patience": 1, "lr": 0.5}
    found = played(tmp_path, 4, rounds=6, data=data, method=method, training=training)
    assert_identical(found)
    assert len({len(run.metrics()) for run in found.peers}) > 1
    assert_same_history(found)


def test_a_peer_that_diverged_in_a_personal_layer_and_stopped_stays_diverged_for_the_others(tmp_path: Path) -> None:
    found = played(
        tmp_path,
        4,
        rounds=4,
        data={"name": f"{__name__}:one_unsteady", "train": 8, "validation": 8, "test": 8},
        model={"name": f"{__name__}:unsteady", "personal": ["scale"]},
        method={"name": "random", "k": 3},
        training={"patience": 1, "epochs": 1, "batch": 8, "lr": 0.01},
    )
    lines = [run.metrics() for run in found.peers]
    assert (len(lines[0]), lines[0][0]["diverged"], lines[0][0]["merged"]) == (1, [0], [])
    assert min(len(each) for each in lines[1:]) > 1, "peers that stop at once prove nothing"
    assert not any("peer-0" in line["merged"] for each in lines for line in each)
    result = found.result()
    assert result["identical"] is True
    assert result["bills_identical"] is True


def test_kin_leaves_out_peers_with_too_few_samples(tmp_path: Path) -> None:
    data = {"train": 1, "test": 10, "angles": [0, 180]}
    found = played(tmp_path, 3, data=data, method={"name": "kin", "k": 1}, rounds=2)
    for run in found.peers:
        assert "this peer has too few samples for a fingerprint, and merges with nobody" in run.summary["notes"]
    result = found.result()
    assert result["identical"] is True
    assert result["bills_identical"] is True
    assert result["bill"]["bytes_sent_per_peer"] == 0


def test_diverged_peers_match_the_simulation_and_have_no_accuracy(tmp_path: Path) -> None:
    found = played(tmp_path, 2, method={"name": "random", "k": 1}, training={"lr": 1e30})
    result = found.result()
    assert (result["identical"], result["largest_difference"], result["bills_identical"]) == (True, 0.0, True)
    assert (result["score"], result["simulated_score"]) == (None, None)
    assert "diverged in round 1" in (found.peers[0].path / "peer.log").read_text(encoding="utf-8")


class Tags(nn.Module):
    """A class for each of five tokens."""

    def __init__(self, inputs: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Conv1d(4, outputs, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).mT)


def tagged() -> list[PeerData]:
    """Tokens with classes, of which some do not count; two groups of two peers."""
    draw, out = np.random.default_rng(0), []
    for peer in range(4):
        x = draw.integers(0, 9, size=(24, 5))
        y = np.where(draw.random(x.shape) < 0.3, -100, (x + peer % 2) % 3)
        out.append(PeerData(x=x, y=y))
    return out


def labelled() -> list[PeerData]:
    """Three labels per sample; two groups of two peers."""
    draw = np.random.default_rng(0)
    return [PeerData(x=x, y=(x[:, :3] > 0) ^ bool(i % 2)) for i, x in enumerate(draw.normal(size=(4, 24, 5)))]


@pytest.mark.parametrize(
    ("name", "model", "method", "headline"),
    [
        ("tagged", "tests.peer.test_lockstep:Tags", {"name": "pens", "k": 1, "l": 2}, "perplexity"),
        ("labelled", "mlp", {"name": "kin", "k": 1}, "f1"),
    ],
)
def test_any_kind_of_task_matches_the_simulation(
    name: str, model: str, method: dict[str, Any], headline: str, tmp_path: Path
) -> None:
    data = {"name": f"tests.peer.test_lockstep:{name}"}
    found = played(tmp_path, 4, rounds=2, data=data, model=model, method=method, headline=headline)
    assert_identical(found)
    assert found.result()["headline"] == headline
    assert [run.headline.name for run in found.peers] == [headline] * 4
