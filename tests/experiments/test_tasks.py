"""Every kind of task runs in every engine, with every similarity, at real peers and in kin's fingerprints."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import homophily
from homophily.data.task_kinds import IGNORED
from tests.experiments.tasks import made

NAMES = ("tagging", "language", "multi-label")
KEYS: dict[str, Any] = {"rounds": 6, "method": {"name": "oracle", "k": 3}, "training": {"lr": 0.3, "batch": 16}}


def rows(run: homophily.Run) -> torch.Tensor:
    return load_file(run.path / "models.safetensors")["rows"]


@pytest.mark.parametrize("name", NAMES)
def test_the_engines_agree_with_the_loop_over_peers(name: str, tmp_path: Path) -> None:
    engines = ["one-by-one", "vectorised", *(["stacked"] if name == "multi-label" else [])]
    runs = {}
    for engine in engines:
        model, data = made(name)
        keys = {**KEYS, "rounds": 2, "engine": engine}
        runs[engine] = homophily.run(keys, model=model, data=data, out=tmp_path / engine)
        assert runs[engine].about["plan"]["engine"] == engine
    plain = runs["one-by-one"]
    for run in runs.values():
        assert torch.allclose(rows(run), rows(plain), atol=1e-4)
        headline = plain.summary["headline"]
        assert run.summary["loss"] == pytest.approx(plain.summary["loss"], rel=1e-3)
        assert run.summary[headline] == pytest.approx(plain.summary[headline], abs=0.5)


@pytest.mark.parametrize(
    ("name", "headline", "least"),
    [("tagging", "accuracy", 99), ("language", "accuracy", 80), ("multi-label", "f1", 90)],
)
def test_it_is_learnt_and_scored(name: str, headline: str, least: float, tmp_path: Path) -> None:
    model, data = made(name)
    run = homophily.run(KEYS, model=model, data=data, out=tmp_path / "run")
    found = run.summary
    assert found["headline"] == headline
    assert found[headline] > least
    assert list(found[f"{headline}_by_cluster"]) == ["0", "1"]
    assert found[f"{headline}_over_clusters"] == pytest.approx(np.mean(list(found[f"{headline}_by_cluster"].values())))
    assert len(run.scores[headline]) == 8
    assert run.metrics()[-1][headline] == found[headline]


@pytest.mark.parametrize("name", ["tagging", "language"])
def test_the_accuracy_is_over_the_tokens_that_count(name: str, tmp_path: Path) -> None:
    model, data = made(name)
    data = [replace(one, test_x=one.x, test_y=one.y) for one in data]
    run = homophily.run({**KEYS, "rounds": 1}, model=model, data=data, out=tmp_path / "run")
    y = torch.as_tensor(data[3].y)
    with torch.no_grad():
        right = run.model(3)(torch.as_tensor(data[3].x)).argmax(1) == y
    assert run.scores["accuracy"][3] == pytest.approx(100 * float(right[y != IGNORED].double().mean()))


@pytest.mark.parametrize("name", NAMES)
def test_kin_finds_the_two_groups(name: str) -> None:
    model, data = made(name)
    found = homophily.kin({}, model=model, data=data)
    assert found.families == [[0, 2, 4, 6], [1, 3, 5, 7]]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["pens", "panm", "dac"])
def test_methods_that_compare_models_find_the_own_group(name: str, method: str, tmp_path: Path) -> None:
    model, data = made(name)
    keys = {**KEYS, "method": {"name": method, "k": 3, "l": 4} if method != "dac" else "dac"}
    run = homophily.run(keys, model=model, data=data, out=tmp_path / "run")
    assert run.summary["same_cluster_merges"] > 0.5
