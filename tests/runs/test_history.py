"""A run records scores, merges, similarities and diagnostics by round; a reader needs only the folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import homophily
from homophily.data import prepared_data
from homophily.methods import RoundContext
from homophily.runs.history import LIMITS, History, HistoryWriter
from homophily.runs.record_file import RecordFile
from homophily.simulation.recording import RecordedPeers, recorded_peers

SMALL: dict[str, Any] = {
    "peers": 12, "rounds": 6, "data": {"train": 12, "test": 10, "angles": [0, 90, 180]}, "model": "linear",
    "training": {"epochs": 1},
}  # fmt: skip


def small(out: Path, **keys: Any) -> homophily.Run:
    return homophily.run({**SMALL, **keys}, out=out)


def test_scores_are_those_of_the_rounds_and_of_the_end(tmp_path: Path) -> None:
    run = small(tmp_path / "run", method="random")
    history = run.history
    assert (history.rounds.tolist(), history.peers.tolist(), history.total) == ([1, 2, 3, 4, 5, 6], list(range(12)), 12)
    assert np.allclose(history.scores["accuracy"][-1], run.scores["accuracy"])
    assert np.allclose(history.scores["loss"].mean(1), [line["loss"] for line in run.metrics()])
    assert history.clusters == run.scores["cluster"]
    assert [history.every(kind) for kind in LIMITS] == [1] * 4


def test_merges_by_round_add_up_to_the_counts_of_the_run(tmp_path: Path) -> None:
    run = small(tmp_path / "run", method={"name": "panm", "l": 5, "k": 2, "t1": 2, "tau": 2})
    counted = np.zeros((12, 12), dtype=np.int64)
    for round in run.history.merge_rounds.tolist():
        np.add.at(counted, tuple(run.history.merges(round).T), 1)
    assert counted.sum() > 0
    assert np.array_equal(counted, run.merges())
    with pytest.raises(homophily.UserError, match=r"has no entry of round 7: it keeps 1 of 1 rounds"):
        run.history.merges(7)


def test_similarities_of_a_watched_peer_are_those_that_its_method_sees(tmp_path: Path) -> None:
    seen: list[Tensor] = []

    class Watching(homophily.Method):
        metric = "l2"

        def meet(self, now: RoundContext) -> Tensor:
            return now.known & ((now.view.contacts + now.round) % 3 == 0)

        def choose(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Tensor:
            assert similarity is not None
            seen.append(similarity)
            return met

        def diagnostics(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> dict[str, Tensor]:
            assert similarity is not None
            return {"me": now.view.me, "largest": similarity.amax(1)}

    history = homophily.run(SMALL, method=Watching(), out=tmp_path / "run").history
    clusters = dict(zip(history.peers.tolist(), history.clusters or [], strict=True))
    assert len({clusters[peer] for peer in history.watched[:3].tolist()}) == 3  # one of each cluster first
    for peer in history.watched.tolist():
        for measured, table in zip(history.similarities(peer), seen, strict=True):
            assert np.array_equal(measured.values, table[peer, measured.ids].float().numpy())
            assert set(measured.ids % 3) == {-measured.round % 3}
    for report, table in zip(history.diagnostics, seen, strict=True):
        assert report.watched["me"].tolist() == history.watched.tolist()
        assert np.array_equal(report.watched["largest"], table.amax(1)[report.watched["me"]].float().numpy())
    other = next(peer for peer in range(12) if peer not in history.watched)
    with pytest.raises(homophily.UserError, match=f"the similarities of peer {other} are not recorded"):
        history.similarities(other)


@pytest.mark.parametrize("wrong", [5, {"x": 1}, {"x": torch.zeros(3)}, {1: torch.zeros(8)}])
def test_diagnostics_that_are_not_tables_of_the_watched_peers_are_refused(wrong: Any, tmp_path: Path) -> None:
    class Wrong(homophily.Method):
        def meet(self, now: RoundContext) -> Tensor:
            return now.known

        def diagnostics(self, now: RoundContext, met: Tensor, similarity: Tensor | None) -> Any:
            return wrong

    with pytest.raises(homophily.UserError, match="method: diagnostics"):
        homophily.run(SMALL, method=Wrong(), out=tmp_path / "run")


def test_kin_reports_its_spectrum_places_and_families(tmp_path: Path) -> None:
    config = {**SMALL, "data": {"angles": [0, 180], "train": 60}, "method": {"name": "kin", "renew": 4}}
    history = homophily.run(config, out=tmp_path / "run").history
    discovered = homophily.kin(config)
    assert [found.round for found in history.diagnostics] == [1, 5]
    found = history.diagnostics[0]
    summary = discovered.summary()
    assert np.allclose(found.values["singular_values"], summary["singular_values"], rtol=1e-5)
    assert np.allclose(found.values["edge"], summary["edge"], rtol=1e-5)
    assert found.values["rank"].tolist() == [summary["rank"]]
    assert found.ids.tolist() == list(range(12))
    assert summary["families"] == [(found.peers["family"] == f).nonzero()[0].tolist() for f in (0, 1)]
    means = [found.peers["place"][found.peers["family"] == f].mean(0) for f in (0, 1)]
    assert np.allclose(found.values["centres"], means, rtol=1e-4)  # all have equally many samples


def test_kin_reports_too_few_samples(tmp_path: Path) -> None:
    found = homophily.run({**SMALL, "data": {"train": 1}}, out=tmp_path / "few").history.diagnostics[0]
    assert np.isnan(found.values["edge"]).all()
    assert found.values["centres"].shape[0] == 0
    assert set(found.peers["family"].tolist()) == {-1}


def test_panm_reports_the_groups_of_its_em(tmp_path: Path) -> None:
    run = small(tmp_path / "run", rounds=8, method={"name": "panm", "l": 5, "k": 2, "t1": 2, "tau": 2})
    history = run.history
    assert [found.round for found in history.diagnostics] == [4, 6, 8]
    for found in history.diagnostics:
        table = found.watched
        for row, peer in enumerate(history.watched.tolist()):
            measured = next(one for one in history.similarities(peer) if one.round == found.round)
            others = table["others"][row]
            assert others[others >= 0].tolist() == measured.ids.tolist()
            upper, values = table["upper"][row][others >= 0], measured.values
            merged = {partner for me, partner in history.merges(found.round).tolist() if me == peer}
            assert merged <= set(measured.ids[upper].tolist())
            assert np.isclose(table["mean"][row, 0], values[upper].mean(), rtol=1e-4)
            if not upper.all():
                assert np.isclose(table["mean"][row, 1], values[~upper].mean(), rtol=1e-4)
                assert table["mean"][row, 0] > table["mean"][row, 1]
            assert np.isclose(table["share"][row, 0], upper.mean())
            floor = 0.1 * (values.max() - values.min())
            assert np.isclose(table["sigma"][row, 0], max(values[upper].std(), floor), rtol=1e-3)


def test_ifca_reports_the_choices_of_its_clients(tmp_path: Path) -> None:
    run = small(tmp_path / "run", method={"name": "ifca", "models": 3})
    for found, line in zip(run.history.diagnostics, run.metrics(), strict=True):
        choice = found.peers["choice"][found.ids.argsort()]
        assert np.bincount(choice, minlength=3).tolist() == line["clients_of_model"]
    assert not len(small(tmp_path / "one", method="fedavg").history.diagnostics)


def test_a_diverged_peer_has_nan_scores(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 3))
    peers = [homophily.PeerData(x * (1e30 if i == 0 else 1), x[:, 0]) for i in range(3)]
    config = {"rounds": 3, "method": "local", "model": "linear"}
    with pytest.warns(homophily.DivergedWarning):
        history = homophily.run(config, data=peers, out=tmp_path / "run").history
    assert np.isnan(history.scores["loss"]).tolist() == [[True, False, False]] * 3


def test_without_recording_there_is_no_history(tmp_path: Path) -> None:
    run = small(tmp_path / "run", record=False, method="panm")
    assert not (run.path / "history").exists()
    assert not run.recorded
    with pytest.raises(homophily.UserError, match="has no history: record = false"):
        _ = run.history
    assert len(run.frame()) > 0


def test_a_run_can_be_read_while_it_goes_on(tmp_path: Path) -> None:
    simulation = homophily.Simulation(SMALL, out=tmp_path / "run")
    with pytest.raises(homophily.UserError, match="has no history: no round has ended"):
        _ = homophily.Run(simulation.path).history
    simulation.step()
    simulation.step()
    simulation.save()
    history = homophily.Run(simulation.path).history
    assert (history.rounds.tolist(), len(history.merges(2)) > 0) == ([1, 2], True)


def test_scores_are_recorded_in_the_rounds_that_are_scored(tmp_path: Path) -> None:
    run = small(tmp_path / "run", evaluate=4, score="after-training")
    assert run.history.rounds.tolist() == [4, 6]


def test_names_of_peers_are_recorded(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 3))
    peers = [homophily.PeerData(x, np.arange(20) % 2, name=f"site {i}") for i in range(3)]
    history = homophily.run({"rounds": 1}, data=peers, out=tmp_path / "run").history
    assert (history.names, history.clusters) == ({i: f"site {i}" for i in range(3)}, None)


def test_names_of_peers_that_a_real_peer_no_longer_meets_are_kept(tmp_path: Path) -> None:
    me = torch.tensor([7])
    for names in ({7: "me", 9: "old"}, {7: "me", 2**60: "new"}):
        recorded = RecordedPeers(torch.zeros(1, dtype=torch.int64), me, 2, None, names)
        merged = torch.tensor([max(names)])
        entry = recorded.merges(torch.zeros_like(merged), merged)
        writer = HistoryWriter(tmp_path / "history")
        writer.add(len(list(tmp_path.rglob("*.record"))) + 1, {"merges": entry}, recorded.about)
        writer.flush()
    history = History(tmp_path / "history")
    assert history.names == {7: "me", 9: "old", 2**60: "new"}
    assert [history.merges(round).tolist() for round in (1, 2)] == [[[7, 9]], [[7, 2**60]]]


# Size


def record(folder: Path, rounds: int, peers: int, partners: int, measured: int = 20) -> int:
    """Bytes of a history with random entries; they have the shapes of a simulation's."""
    ids = torch.arange(min(peers, 1000))
    recorded, writer = RecordedPeers(ids, ids, peers, None, {}), HistoryWriter(folder)
    who = torch.arange(peers).repeat_interleave(partners)
    met = torch.zeros(8, peers, dtype=torch.bool)
    met[:, : min(measured, peers)] = True
    table = torch.rand(8, peers, dtype=torch.float64)
    everyone = torch.arange(peers).expand(8, -1)
    for round in range(1, rounds + 1):
        chosen = torch.randint(peers, (len(who),))
        values = torch.rand(peers, dtype=torch.float64)
        entries = {
            "scores": recorded.scores({"accuracy": values, "loss": values}),
            "merges": recorded.merges(who, chosen),
            "similarities": recorded.similarities(met, everyone, table),
        }
        writer.add(round, entries, recorded.about)
    writer.flush()
    return sum(path.stat().st_size for path in folder.iterdir())


def test_100_peers_and_300_rounds_take_less_than_5_mb_and_keep_every_round(tmp_path: Path) -> None:
    assert record(tmp_path / "run", 300, 100, 4) < 2e6
    history = History(tmp_path / "run")
    assert len(history.rounds) == len(history.merge_rounds) == 300
    assert record(tmp_path / "everyone", 300, 100, 99, 99) < 5e6
    history = History(tmp_path / "everyone")
    assert (len(history.rounds), len(history.merge_rounds), history.every("merges")) == (300, 75, 4)


def test_10000_peers_are_bounded(tmp_path: Path) -> None:
    assert record(tmp_path / "run", 120, 10_000, 4, 10_000) < 5e6
    history = History(tmp_path / "run")
    assert history.scores["accuracy"].shape == (len(history.rounds), 1000)
    assert len(history.rounds) > 50
    assert len(history.similarities(0)[0].ids) == 1000
    assert len(history.merges(1)) == 4000
    assert record(tmp_path / "everyone", 6, 10_000, 400) < 5e6
    found = History(tmp_path / "everyone").merges(1)
    assert set(np.unique(found[:, 0], return_counts=True)[1]) == {400}  # all partners of as many as fit


def test_peers_of_a_large_federation_are_sampled_by_the_seed() -> None:
    made = prepared_data("digits", {}, {"train": 1, "test": 1}, 1200, 0, None).roster
    found = [recorded_peers(made, seed) for seed in (0, 0, 1)]
    assert torch.equal(found[0].ids, found[1].ids)
    assert not torch.equal(found[0].ids, found[2].ids)
    assert (len(found[0].ids), len(found[0].ids.unique()), found[0].ids[:4].tolist()) == (
        1000,
        1000,
        [0, 300, 600, 900],
    )


# Damage


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    method = {"name": "panm", "l": 5, "k": 2, "t1": 2, "tau": 2}
    return small(tmp_path_factory.mktemp("good") / "run", method=method).path


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 2), ("peers", "abc"), ("peers", [1e300]), ("peers", None), ("watched", 10**12), ("watched", -1),
        ("clusters", ["a"]), ("clusters", 5), ("names", []), ("names", {"x": "y"}), ("total", "x"),
    ],
)  # fmt: skip
def test_a_damaged_description_is_refused(key: str, value: Any, good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "run")
    path = tmp_path / "run" / "history" / "peers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(homophily.UserError, match=r"peers\.json is damaged"):
        _ = homophily.Run(tmp_path / "run").history


READS: dict[str, Callable[[History], Any]] = {
    "scores": lambda history: history.scores,
    "merges": lambda history: history.merges(100),
    "similarities": lambda history: history.similarities(int(history.watched[-1])),
    "diagnostics": lambda history: history.diagnostics,
}


@pytest.mark.parametrize(
    ("kind", "arrays"),
    [
        ("scores", {"accuracy": np.zeros(11, np.float32)}),
        ("scores", {"accuracy": np.zeros((12, 3), np.float32)}),
        ("scores", {"accuracy": np.zeros(12, np.complex64)}),
        ("merges", {}),
        ("merges", {"counts": np.array([2**62, 2**62], np.int64), "partners": np.zeros(3, np.int64)}),
        ("merges", {"counts": np.array([-1, 4], np.int64), "partners": np.zeros(3, np.int64)}),
        ("merges", {"counts": np.ones(3, np.uint16), "partners": np.zeros(2, np.uint16)}),
        ("merges", {"counts": np.ones(13, np.uint16), "partners": np.zeros(13, np.uint16)}),
        ("merges", {"counts": np.ones(3, np.float32), "partners": np.zeros(3, np.uint16)}),
        ("similarities", {"counts": np.ones(1, np.uint16), "others": np.zeros(1, np.uint16)}),
        ("similarities", {"counts": np.zeros(1, np.uint16), "others": np.zeros(0, np.uint16)}),
        ("diagnostics", {"x": np.zeros(3)}),
        ("diagnostics", {"watched/x": np.zeros(3)}),
        ("diagnostics", {"peer/x": np.zeros(3)}),
        ("diagnostics", {"peer/id": np.zeros((3, 2), np.uint16), "peer/x": np.zeros(3)}),
    ],
)  # fmt: skip
def test_entries_that_do_not_fit_are_refused(kind: str, arrays: dict[str, Any], good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "run")
    path = tmp_path / "run" / "history" / f"{kind}.record"
    file = RecordFile(path, 1 << 20)
    file.add(100, arrays)
    file.flush()
    history = homophily.Run(tmp_path / "run").history
    with pytest.raises(homophily.UserError, match=f"{kind}.record is damaged in the entry of round 100"):
        READS[kind](history)


def test_a_run_with_a_damaged_history_cannot_be_resumed_and_says_so(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "run")
    path = tmp_path / "run" / "history" / "merges.record"
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(homophily.UserError, match=r"merges\.record is damaged after 16 bytes"):
        homophily.resume(tmp_path / "run", {"rounds": 8})
    path.unlink()  # what is not there is recorded from now on
    assert homophily.resume(tmp_path / "run", {"rounds": 8}).history.merge_rounds.tolist() == [7, 8]
