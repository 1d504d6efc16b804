"""A comparison's folder takes more methods, seeds and swept values, and refuses what contradicts its runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import homophily
from homophily import Comparison, UserError
from homophily.methods.baselines import Random
from homophily.runs.comparison import Contents

SMALL: dict[str, Any] = {"peers": 4, "rounds": 2, "data": {"train": 6, "test": 10, "angles": [0, 180]}}


def written(folder: Path) -> dict[str, int]:
    """When each run was finished."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("*/summary.json")}


def test_only_what_is_missing_is_played_and_only_what_is_asked_is_shown(tmp_path: Path) -> None:
    out = tmp_path / "study"
    homophily.compare(SMALL, methods=["local"], seeds=[0], out=out)
    before = written(out)
    grown = homophily.compare(SMALL, methods=["random", "local"], seeds=[1, 0], out=out)
    after = written(out)
    assert sorted(after) == ["local-0", "local-1", "random-0", "random-1"]
    assert after["local-0"] == before["local-0"]
    assert list(grown.runs) == ["random", "local"]
    assert [run.config.seed for run in grown.runs["local"]] == [1, 0]
    fewer = homophily.compare(SMALL, methods=["random"], seeds=[1], out=out)
    assert {name: [run.path.name for run in runs] for name, runs in fewer.runs.items()} == {"random": ["random-1"]}
    assert written(out) == after
    assert list(json.loads((out / "compare.json").read_text())) == ["local", "random"]


def test_runs_that_are_added_equal_runs_that_were_there_from_the_start(tmp_path: Path) -> None:
    for methods in (["random"], ["random", "oracle"]):
        grown = homophily.compare(SMALL, {"method": {"k": 1}}, methods=methods, out=tmp_path / "grown")
    whole = homophily.compare(SMALL, {"method": {"k": 1}}, methods=["random", "oracle"], out=tmp_path / "whole")
    for name, (run,) in whole.runs.items():
        assert grown.runs[name][0].scores == run.scores


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"rounds": 3}, "rounds is 2 there and 3 here; name another folder, or compare both with sweep.rounds=2,3"),
        ({"model": "linear"}, "model.name is 'mlp' there and 'linear' here"),
        ({"training": {"lr": 0.1}}, "training.lr is 0.05 there and 0.1 here"),
        ({"data": {**SMALL["data"], "angles": [0, 90]}}, "data.angles is [0, 180] there and [0, 90] here; name"),
        ({"data": {**SMALL["data"], "sizes": [3, 1]}}, "data.sizes is left out there and [3, 1] here"),
        ({"method": {"k": 1}}, "method.k is 3 there and 1 here"),
    ],
)
def test_a_call_that_contradicts_the_folder_is_refused(other: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    out = tmp_path / "study"
    homophily.compare(SMALL, methods=["random"], out=out)
    before = (out / "comparison.json").read_bytes()
    with pytest.raises(UserError) as refused:
        homophily.compare({**SMALL, **other}, methods=["random"], seeds=[5], out=out)
    assert str(refused.value).startswith(f"{out} holds another comparison: {sentence}")
    assert (out / "comparison.json").read_bytes() == before
    assert list(written(out)) == ["random-0"]


def test_a_default_that_is_written_out_is_no_contradiction(tmp_path: Path) -> None:
    out = tmp_path / "study"
    homophily.compare(SMALL, methods=["random"], out=out)
    explicit = {**SMALL, "data": {**SMALL["data"], "shift": "rotation"}, "model": {"hidden": [32]}, "method": {"k": 3}}
    homophily.compare(explicit, methods=["random"], out=out)
    homophily.compare(SMALL, methods=["random"], seeds=[1], out=out)
    assert sorted(written(out)) == ["random-0", "random-1"]


def peers(seed: int) -> list[homophily.PeerData]:
    rng = np.random.default_rng(seed)
    return [homophily.PeerData(x=rng.normal(size=(20, 3)), y=np.arange(20) % 2) for _ in range(4)]


def test_other_objects_are_refused_also_for_new_methods_and_seeds(tmp_path: Path) -> None:
    out = tmp_path / "study"
    homophily.compare({"rounds": 1}, methods=["local"], data=peers(0), model=nn.Linear(3, 2), out=out)
    more: dict[str, Any] = {"methods": ["random"], "seeds": [3], "out": out}
    with pytest.raises(UserError, match="has changed since the run began"):
        homophily.compare({"rounds": 1}, data=peers(1), model=nn.Linear(3, 2), **more)
    with pytest.raises(UserError, match="the network, or the shape of the data, differs"):
        homophily.compare({"rounds": 1}, data=peers(0), model=nn.Linear(3, 2, bias=False), **more)
    with pytest.raises(UserError, match=r"data\.name is '\(given in Python\)' there and 'digits' here"):
        homophily.compare({"rounds": 1}, **more)
    homophily.compare({"rounds": 1}, data=peers(0), model=nn.Linear(3, 2), **more)
    assert sorted(written(out)) == ["local-0", "random-3"]


def test_a_folder_is_a_config_that_can_be_extended(tmp_path: Path) -> None:
    out = tmp_path / "study"
    keys = {**SMALL, "method": {"random": {"k": 1}}}
    homophily.compare(keys, methods={"random": "random", "mine": Random(k=2)}, seeds=[0, 1], out=out)
    more = homophily.compare(out, methods=["local"])
    assert {name: len(runs) for name, runs in more.runs.items()} == {"local": 2}
    more = homophily.compare(out, seeds=[2])
    assert {name: len(runs) for name, runs in more.runs.items()} == {"random": 1, "local": 1}
    assert more.runs["random"][0].config.method.keys["k"] == 1
    with pytest.raises(UserError, match=r"method\.k is 1 there and 2 here"):
        homophily.compare(out, {"method": {"k": 2}}, methods=["random"])
    with pytest.raises(UserError, match="is not the folder of a comparison"):
        homophily.compare(out / "local-0")


def test_a_comparison_with_a_merge_that_needs_similarities_can_be_extended(tmp_path: Path) -> None:
    keys = {**SMALL, "merge": "fedsim"}
    homophily.compare(keys, methods=["pens"], out=tmp_path / "study")
    more = homophily.compare(tmp_path / "study", seeds=[0, 1])
    assert [run.config.seed for run in more.runs["pens"]] == [0, 1]


def test_a_folder_of_the_earlier_format_opens_and_grows(tmp_path: Path) -> None:
    out = tmp_path / "study"
    first = homophily.compare(SMALL, methods={"local": "local", "mine": Random(k=2)}, seeds=[0, 1], out=out)
    (out / "comparison.json").unlink()
    asked = [{**run.config.toml(), "method": {"name": "local"}} for run in first.runs["local"]]
    (out / "asked.json").write_text(json.dumps([{**one, "data": SMALL["data"] | {"name": "digits"}} for one in asked]))
    old = Comparison(out)
    assert (old.methods, old.seeds, old.swept) == (["local", "mine"], [0, 1], [])
    assert old.table() == first.table()
    with pytest.raises(UserError, match="rounds is 2 there and 3 here"):
        homophily.compare({**SMALL, "rounds": 3}, methods=["local"], out=out)
    homophily.compare(SMALL, methods={"mine": Random(k=2), "random": "random"}, out=out)
    assert sorted(written(out)) == ["local-0", "local-1", "mine-0", "mine-1", "random-0"]
    assert Comparison(out).methods == ["local", "mine", "random"]


def test_a_folder_that_is_not_a_comparison_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a comparison: it has no comparison\.json"):
        Comparison(tmp_path)
    (tmp_path / "comparison.json").write_text("{}")
    with pytest.raises(UserError, match=r"comparison\.json is damaged"):
        Comparison(tmp_path)
    (tmp_path / "comparison.json").write_text('{"format": 99}')
    with pytest.raises(UserError, match="its format is 99"):
        Comparison(tmp_path)


def test_a_comparison_opens_without_its_unfinished_runs(tmp_path: Path) -> None:
    out = tmp_path / "study"
    homophily.compare(SMALL, methods=["local", "random"], seeds=[0, 1], out=out)
    os.remove(out / "random-1" / "summary.json")
    found = Comparison(out)
    assert {name: len(runs) for name, runs in found.runs.items()} == {"local": 2, "random": 1}
    assert found.unfinished == [out / "random-1"]
    contents = Contents.read(out)
    assert contents is not None
    assert len(contents.runs) == 4


def test_a_frame_has_the_method_the_seed_and_the_swept_keys_of_each_run(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    found = homophily.compare(
        SMALL, methods=["local", "random"], seeds=[0, 1], sweep={"method.k": [1, 2]}, out=tmp_path / "study"
    )
    frame = Comparison(tmp_path / "study").frame()
    assert list(frame.columns) == ["method", "seed", "method.k", "round", "peer", "cluster", "metric", "value"]
    assert frame[frame.method == "local"]["method.k"].isna().all()
    last = frame[(frame["round"] == 2) & (frame.metric == "accuracy") & frame.peer.isna() & frame.cluster.isna()]
    assert len(last) == 6
    for row in found.rows:
        k = row.swept.get("method.k")
        mine = last[(last.method == row.method) & (last["method.k"].isna() if k is None else last["method.k"] == k)]
        assert mine.sort_values("seed").value.tolist() == [run.summary["accuracy"] for run in row.runs]
    for run in found.runs["local"]:
        (run.path / "summary.json").unlink()
    assert set(Comparison(tmp_path / "study").frame().method) == {"random"}


# Sweeps


def test_a_sweep_runs_all_combinations_and_methods_without_the_key_once(tmp_path: Path) -> None:
    sweep = {"method.k": [1, 2], "training.lr": [0.05, 0.1]}
    found = homophily.compare(SMALL, methods=["local", "random"], sweep=sweep, out=tmp_path / "study")
    assert list(found.runs) == [
        "local lr=0.05", "local lr=0.1", "random k=1 lr=0.05", "random k=1 lr=0.1", "random k=2 lr=0.05",
        "random k=2 lr=0.1",
    ]  # fmt: skip
    for row in found.rows:
        config = row.runs[0].config
        assert config.training.lr == row.swept["training.lr"]
        assert config.method.keys.get("k") == row.swept.get("method.k")
    table = found.table()["random k=2 lr=0.1"]
    assert (table["method"], table["swept"]) == ("random", {"method.k": 2, "training.lr": 0.1})
    assert found.swept == Comparison(tmp_path / "study").swept == ["method.k", "training.lr"]


def test_a_sweep_takes_runs_that_are_there_with_the_same_value(tmp_path: Path) -> None:
    out = tmp_path / "study"
    homophily.compare(SMALL, methods=["local", "random"], out=out)
    before = written(out)
    homophily.compare(SMALL, methods=["local", "random"], sweep={"method.k": [1, 3]}, out=out)
    assert sorted(written(out)) == ["local-0", "random-0", "random-k=1-0"]
    assert {name: written(out)[name] for name in before} == before
    homophily.compare(SMALL, methods=["random"], sweep={"method.k": [2]}, out=out)
    assert [row.name for row in Comparison(out).rows] == ["local", "random k=1", "random k=2", "random k=3"]
    assert [row.name for row in homophily.compare(out).rows] == [row.name for row in Comparison(out).rows]


def test_a_swept_key_of_a_method_object_replaces_its_setting(tmp_path: Path) -> None:
    some = {"few": Random(k=1), "local": "local"}
    found = homophily.compare(SMALL, methods=some, sweep={"method.k": [2, 3]}, out=tmp_path / "study")
    assert list(found.runs) == ["few k=2", "few k=3", "local"]
    assert [run.summary["models_sent_per_peer"] for (run,) in found.runs.values()] == [4, 6, 0]


def test_long_values_have_short_folders(tmp_path: Path) -> None:
    angles = [[0, 180, 10], [0, 180, 20]]
    sweep = {"data.angles": angles, "model.hidden": [[8, 8, 8, 8, 8, 8, 8, 8]], "training.weight_decay": [1e-5]}
    found = homophily.compare({**SMALL, "peers": 6}, methods=["local"], sweep=sweep, out=tmp_path / "study")
    names = [run.path.name for (run,) in found.runs.values()]
    assert len(set(names)) == 2
    assert max(map(len, names)) < 80
    assert [row.swept["data.angles"] for row in found.rows] == angles


def test_swept_data_sets_and_shifts_may_have_keys_of_their_own(tmp_path: Path) -> None:
    found = homophily.compare(SMALL, methods=["local"], sweep={"data.shift": ["rotation", "iid"]}, out=tmp_path / "s")
    assert list(found.runs) == ["local shift=rotation", "local shift=iid"]
    again = homophily.compare(
        SMALL, methods=["local"], seeds=[1], sweep={"data.shift": ["iid", "dirichlet"]}, out=tmp_path / "s"
    )
    assert list(again.runs) == ["local shift=iid", "local shift=dirichlet"]
    found = homophily.compare(SMALL, methods=["local"], sweep={"peers": [4, 8], "rounds": [1, 2]}, out=tmp_path / "p")
    assert [len(run.scores["accuracy"]) for (run,) in found.runs.values()] == [4, 4, 8, 8]
    homophily.compare(SMALL, methods=["local"], sweep={"peers": [6], "rounds": [3]}, out=tmp_path / "p")
