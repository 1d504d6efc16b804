"""The merge guard: a model that is much worse on a peer's validation samples is not merged, and is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import homophily
from homophily.errors import UserError

KEYS: dict[str, Any] = {
    "peers": 8,
    "rounds": 6,
    "method": {"name": "random", "k": 3},
    "data": {"angles": [0, 180], "train": 30, "validation": 20, "test": 20},
}
HUGE = 1e12

pytestmark = pytest.mark.usefixtures("here")


def models(run: homophily.Run) -> bytes:
    return (run.path / "models.safetensors").read_bytes()


def test_it_is_off_by_default_and_a_huge_factor_changes_nothing() -> None:
    without, with_guard = homophily.run(KEYS), homophily.run({**KEYS, "merge_guard": HUGE})
    assert "models_left_out" not in without.summary
    assert with_guard.summary["models_left_out"] == 0
    assert models(without) == models(with_guard)


def test_models_of_another_cluster_are_left_out_and_counted() -> None:
    without, run = homophily.run(KEYS), homophily.run({**KEYS, "merge_guard": 1.5})
    counts = [line["models_left_out"] for line in run.metrics()]
    assert counts == sorted(counts)
    merged = [int(one.merges().sum()) for one in (without, run)]
    assert run.summary["models_left_out"] == counts[-1] == merged[0] - merged[1] > 0
    assert run.summary["same_cluster_merges"] > without.summary["same_cluster_merges"]


@pytest.mark.parametrize("engine", ["stacked", "vectorised"])
def test_all_engines_leave_out_the_same_models(engine: str) -> None:
    plain, fast = (homophily.run({**KEYS, "merge_guard": 1.5, "engine": name}) for name in ("one-by-one", engine))
    assert plain.summary["models_left_out"] == fast.summary["models_left_out"]
    assert np.array_equal(plain.merges(), fast.merges())


def test_the_count_continues_after_a_resume(here: Path) -> None:
    keys = {**KEYS, "merge_guard": 1.5}
    whole = homophily.run(keys)
    homophily.run({**keys, "rounds": 3}, out=here / "half")
    resumed = homophily.resume(here / "half", {"rounds": 6})
    assert resumed.summary["models_left_out"] == whole.summary["models_left_out"]
    assert models(resumed) == models(whole)


def test_a_peer_that_has_diverged_takes_the_models_of_others() -> None:
    keys = {**KEYS, "merge_guard": 1.0, "training": {"lr_by_peer": [1e30, *[0.05] * 7]}}
    run = homophily.run(keys)
    assert run.scores["diverged_rounds"][0] > 0
    assert run.merges()[0].sum() > 0


def test_mistakes_name_the_key() -> None:
    with pytest.raises(UserError, match=r"merge_guard needs validation samples: set data\.validation"):
        homophily.run({**KEYS, "merge_guard": 2, "data": {"validation": 0}})
    with pytest.raises(UserError, match=r"merge_guard = 0\.5: must be at least 1"):
        homophily.run({**KEYS, "merge_guard": 0.5})
    private = {"epsilon": 50.0, "delta": 1e-5, "unit": "sample"}
    with pytest.raises(UserError, match="privacy: merge_guard chooses by losses on private data"):
        homophily.run({**KEYS, "merge_guard": 2, "privacy": private})


def test_a_server_ignores_it() -> None:
    run = homophily.run({**KEYS, "rounds": 1, "merge_guard": 2, "method": {"name": "fedavg"}})
    assert "fedavg uses a server and ignores merge_guard" in run.summary["notes"]
