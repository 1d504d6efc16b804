"""The merge guard of real peers: it leaves out an insider's models, and decides as the simulation does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from homophily import Run
from homophily.errors import UserError
from homophily.experiments.runner import ActiveRun
from homophily.peer import Peer
from homophily.peer.deploy import deploy, status, write_files
from homophily.peer.settings import load
from homophily.peer.setup import prepare_peer
from homophily.runs.writer import RunWriter
from homophily.simulation.configuration import make
from homophily.simulation.sources import Published

KEYS: dict[str, Any] = {
    "rounds": 3,
    "method": {"name": "random", "k": 2},
    "data": {"train": 30, "validation": 20, "test": 10, "angles": [0, 180]},
    "model": "linear",
}
PATIENCE = {"deadline": 10.0, "wait_for": 2}


class Insider(Peer):
    """A member with a valid certificate that publishes its model with all signs flipped."""

    def _joined(self, writer: RunWriter) -> ActiveRun:
        source = self._network.source
        publish = source.publish

        def publish_flipped(round: int, own: Published) -> None:
            rows = -own.federation.rows
            publish(round, replace(own, federation=replace(own.federation, rows=rows)))
            source._own = own

        source.publish = publish_flipped  # type: ignore[method-assign]
        return super()._joined(writer)


def with_an_insider(folder: Path, guard: dict[str, float], rounds: int) -> list[dict[str, Any]]:
    """The last status of peers 0 and 1, of one cluster, which play with an insider, peer 2, of the same."""
    data = {**KEYS["data"], "angles": [0]}
    config = make({**KEYS, "rounds": rounds, "peers": 3, "data": data})
    first, second, third = write_files(config, 3, folder, "free", **PATIENCE, **guard)
    with Peer(first) as a, Peer(second) as b, Insider(third) as insider:
        while not a.finished:
            for peer in (a, b, insider):
                peer.step()
    return [status(folder / name) for name in ("peer-0", "peer-1")]


def test_real_peers_leave_out_the_models_of_an_insider_and_count_them(tmp_path: Path) -> None:
    rounds = 6
    for found, friend in zip(
        with_an_insider(tmp_path, {"merge_guard": 2.0}, rounds), ("peer-1", "peer-0"), strict=True
    ):
        lines = Run(tmp_path / found["peer"]).metrics()
        assert sum(line["left_out"] == ["peer-2"] for line in lines) >= rounds - 2  # models are alike at the very start
        assert all(friend in line["merged"] for line in lines[1:])
        assert lines[-1]["merged"] == found["merged"] == [friend]
        assert found["left_out"] == ["peer-2"]
        assert found["models_left_out"] == sum(len(line["left_out"]) for line in lines)


def test_without_a_guard_real_peers_merge_the_models_of_an_insider(tmp_path: Path) -> None:
    for found in with_an_insider(tmp_path, {}, 3):
        assert "peer-2" in found["merged"]
        assert (found["left_out"], found["models_left_out"]) == ([], None)


def test_a_restarted_peer_goes_on_counting_and_may_change_its_factor(tmp_path: Path) -> None:
    before = with_an_insider(tmp_path, {"merge_guard": 2.0}, 4)[0]["models_left_out"]
    file = tmp_path / "peer-0.toml"
    text = file.read_text().replace("merge_guard = 2.0", "merge_guard = 1.5").replace("rounds = 4", "rounds = 5")
    file.write_text(text.replace("wait_for = 2", "wait_for = 0").replace("deadline = 10.0", "deadline = 1.0"))
    with Peer(file) as again:
        assert again.step()["models_left_out"] == before > 0


def test_real_peers_leave_out_what_the_simulation_leaves_out(tmp_path: Path) -> None:
    made = deploy(make({**KEYS, "merge_guard": 1.2, "peers": 4}), 4, tmp_path, "lockstep", lambda text: None)
    assert made.result()["identical"]
    states = [tmp_path / f"peer-{i}" for i in range(4)]
    counts = [Run(state).summary["models_left_out"] for state in states]
    assert sum(counts) == Run(tmp_path / "simulation").summary["models_left_out"] > 0
    assert [status(state)["models_left_out"] for state in states] == counts
    by_round = [sum(len(line["left_out"]) for line in Run(state).metrics()) for state in states]
    assert by_round == counts


def test_the_factor_of_a_peer_replaces_that_of_the_config(tmp_path: Path) -> None:
    config = make({**KEYS, "merge_guard": 1.2, "peers": 2})
    plain, own = (write_files(config, 2, tmp_path / name, "free", **keys)[0] for name, keys in
                  (("plain", {}), ("own", {"merge_guard": 3.0})))  # fmt: skip
    assert [prepare_peer(load(file)).config.merge_guard for file in (plain, own)] == [1.2, 3.0]


def test_a_guard_without_validation_samples_is_refused_at_the_start(tmp_path: Path) -> None:
    config = make({**KEYS, "peers": 2, "data": {"train": 30, "test": 10, "angles": [0]}})
    file = write_files(config, 2, tmp_path, "free", merge_guard=2.0)[0]
    with pytest.raises(UserError, match="merge_guard needs validation samples"), Peer(file):
        pass
