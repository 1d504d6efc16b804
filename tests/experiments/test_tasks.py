"""Every kind of task runs in every engine, with every similarity, at real peers and in kin's fingerprints."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import homophily
from homophily.data import prepared_data, sample_constants
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


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_exported_and_its_inputs_prepared(name: str, tmp_path: Path) -> None:
    model, data = made(name)
    run = homophily.run({**KEYS, "rounds": 1}, model=model, data=data, out=tmp_path / "run")
    model.load_state_dict(load_file(run.export(3, tmp_path / "model.safetensors")), strict=False)
    x = run.prepared(3, np.asarray(data[3].x))
    with torch.no_grad():
        assert torch.equal(model.eval()(x), run.model(3)(x))


@pytest.mark.parametrize(("name", "expected"), [("tagging", {"classes": 3}), ("multi-label", {"mean", "std"})])
def test_constants_of_a_sample_are_agreed_by_all_peers(name: str, expected: Any, tmp_path: Path) -> None:
    _, data = made(name)
    np.savez(tmp_path / "sample.npz", x=np.asarray(data[0].x), y=np.asarray(data[0].y))
    found = sample_constants(str(tmp_path / "sample.npz"), {}, {}, None, 0).table
    assert (found if name == "tagging" else set(found)) == expected
    one = [homophily.PeerData(data[0].x, np.minimum(data[0].y, 1))] * 2  # some classes do not occur
    shares = prepared_data("", {}, {"scale": found}, None, 0, one if name == "tagging" else data).shares
    assert shares.outputs == (3 if name == "tagging" else 4)


def test_classes_of_labels_are_refused() -> None:
    with pytest.raises(homophily.UserError, match=r"data\.scale: classes = 2, but the data is a multi-label task"):
        prepared_data("", {}, {"scale": {"classes": 2}}, None, 0, made("multi-label")[1])


def test_a_run_of_tokens_is_resumed(tmp_path: Path) -> None:
    model, data = made("tagging")
    keys = {**KEYS, "headline": "perplexity"}
    whole = homophily.run({**keys, "rounds": 4}, model=model, data=data, out=tmp_path / "whole")
    homophily.run({**keys, "rounds": 2}, model=made("tagging")[0], data=data, out=tmp_path / "half")
    resumed = homophily.resume(tmp_path / "half", {"rounds": 4}, model=model, data=data)
    assert torch.equal(rows(resumed), rows(whole))
    assert resumed.scores["perplexity"] == whole.scores["perplexity"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_agrees_with_the_cpu(name: str, tmp_path: Path) -> None:
    runs = []
    for device in ("cpu", "cuda"):
        model, data = made(name)
        keys = {**KEYS, "rounds": 2, "extra_metrics": ["auroc"] if name == "multi-label" else ["perplexity", "f1"]}
        runs.append(homophily.run(keys, model=model, data=data, out=tmp_path / device, device=device))
    here, there = runs
    assert torch.allclose(rows(here), rows(there).cpu(), atol=1e-3)
    for key, value in here.summary.items():
        if isinstance(value, float) and key != "seconds":
            assert there.summary[key] == pytest.approx(value, rel=0.02), key
