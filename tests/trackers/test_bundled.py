"""Each bundled tracker holds a run's metrics once, its config and its results, also after a resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import homophily
from homophily.config.schema import TrackerTable
from homophily.trackers.run_log import RunLog, log_run
from tests.callbacks import InterruptAt
from tests.patience import PATIENCE
from tests.trackers.reading import (
    KINDS,
    approximately,
    mlflow_client,
    mlflow_runs,
    points,
    scalars,
    wandb_records,
)

SMALL: dict[str, Any] = {
    "peers": 4,
    "rounds": 4,
    "checkpoint": 2,
    "method": {"name": "random", "k": 2},
    "data": {"train": 6, "test": 10, "angles": [0, 180]},
}


def logged(run: homophily.Run, name: str) -> list[tuple[int, float]]:
    return [(line["round"], line[name]) for line in run.metrics()]


def last_entry(run: Path) -> dict[str, Any]:
    *_, line = (run / "trackers.jsonl").read_text(encoding="utf-8").splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_tracker_has_every_round_once(kind: str, tmp_path: Path) -> None:
    run = homophily.run({**SMALL, "tracker": kind}, out=tmp_path / "run")
    for name in ("accuracy", "loss", "same_cluster_merges", "models_sent_per_peer"):
        assert points(kind, run.path, name) == approximately(logged(run, name)), name
    cluster = "0_degree_sign" if kind in ("tensorboard", "mlflow") else "0°"
    by_cluster = [(line["round"], line["accuracy_by_cluster"]["0°"]) for line in run.metrics()]
    assert points(kind, run.path, f"accuracy_by_cluster/{cluster}") == approximately(by_cluster)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_continues_in_the_tracker(kind: str, tmp_path: Path) -> None:
    """It is interrupted in round 4, after the checkpoint of round 2; the tracker has round 3."""
    with pytest.raises(KeyboardInterrupt):
        homophily.run({**SMALL, "tracker": kind}, callbacks=[InterruptAt(4)], out=tmp_path / "run")
    before = last_entry(tmp_path / "run")
    assert before["round"] == 3 or kind in ("parquet", "wandb")  # whose files are not written in every round
    run = homophily.resume(tmp_path / "run", {"rounds": 5})
    after = last_entry(tmp_path / "run")
    assert (after["identity"], after["round"], after["finished"]) == (before["identity"], 5, True)
    assert points(kind, run.path, "accuracy") == approximately(logged(run, "accuracy"))
    assert [step for step, _ in points(kind, run.path, "loss")] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_killed_continues_without_gaps_and_doubles(kind: str, tmp_path: Path) -> None:
    """After round 110 W&B has written two blocks, and holds the rest in its own memory."""
    words = [sys.executable, "-m", "tests.trackers.killed", kind, str(tmp_path / "run"), "110"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])  # and W&B starts a service of its own
    killed = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    run = homophily.resume(tmp_path / "run")
    for name in ("accuracy", "loss"):
        assert points(kind, run.path, name) == approximately(logged(run, name))
    assert [step for step, _ in points(kind, run.path, "loss")] == list(range(1, 121))
    assert last_entry(run.path)["round"] == 120
    assert log_run(run, TrackerTable(name=kind)) == 0


@pytest.mark.parametrize("kind", ["csv", "mlflow", "tensorboard"])
def test_a_round_that_was_logged_but_not_noted_is_in_the_tracker_once(kind: str, tmp_path: Path) -> None:
    """The process was killed after it had logged round 3, and before it had noted that."""
    with pytest.raises(KeyboardInterrupt):
        homophily.run({**SMALL, "tracker": kind}, callbacks=[InterruptAt(4)], out=tmp_path / "run")
    noted = tmp_path / "run" / "trackers.jsonl"
    entry = {**json.loads(noted.read_text(encoding="utf-8").splitlines()[0]), "round": 2}
    noted.write_text(json.dumps(entry) + "\n", encoding="utf-8")
    run = homophily.resume(tmp_path / "run")
    for name in ("accuracy", "loss", "models_sent_per_peer"):
        assert points(kind, run.path, name) == approximately(logged(run, name))


def test_tensorboard_has_the_config_and_the_results(tmp_path: Path) -> None:
    run = homophily.run({**SMALL, "tracker": "tensorboard"}, out=tmp_path / "run")
    found = scalars(run.path / "tensorboard")
    (result,) = found.Scalars("summary/accuracy")
    assert (result.step, result.value) == (4, pytest.approx(run.summary["accuracy"]))
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    contents = found.PluginTagToContent("hparams")
    about = HParamsPluginData.FromString(contents["_hparams_/session_start_info"])
    assert about.session_start_info.hparams["method.k"].number_value == 2
    assert about.session_start_info.hparams["data.name"].string_value == "digits"


def test_mlflow_has_the_config_and_the_results(tmp_path: Path) -> None:
    run = homophily.run({**SMALL, "tracker": "mlflow"}, out=tmp_path / "run")
    (found,) = mlflow_runs(run.path / "mlflow")
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "run"
    assert {key: found.data.params[key] for key in ("method.name", "method.k", "rounds")} == {
        "method.name": "random", "method.k": "2", "rounds": "4",
    }  # fmt: skip
    assert found.data.metrics["summary/accuracy"] == run.summary["accuracy"]
    assert found.data.tags["homophily.headline"] == "accuracy"


def test_mlflow_logs_to_the_store_and_experiment_of_its_keys(tmp_path: Path) -> None:
    store = tmp_path / "store"
    tracker = {"name": "mlflow", "uri": str(store), "experiment": "first tries"}
    run = homophily.run({**SMALL, "tracker": tracker}, out=tmp_path / "run")
    assert not (run.path / "mlflow").exists()
    (found,) = mlflow_runs(store)
    assert mlflow_client(store).get_experiment(found.info.experiment_id).name == "first tries"


def test_wandb_has_the_config_and_the_results(tmp_path: Path) -> None:
    run = homophily.run({**SMALL, "tracker": {"name": "wandb", "project": "mine"}}, out=tmp_path / "run")
    records = list(wandb_records(run.path))
    (about,) = (record.run for record in records if record.WhichOneof("record_type") == "run")
    assert (about.project, about.display_name) == ("mine", "run")
    config = {item.key: json.loads(item.value_json) for item in about.config.update}
    assert (config["method.name"], config["method.k"]) == ("random", 2)
    results = {
        item.key or "/".join(item.nested_key): json.loads(item.value_json)
        for record in records
        if record.WhichOneof("record_type") == "summary"
        for item in record.summary.update
    }
    assert results["summary/accuracy"] == run.summary["accuracy"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_has_the_config_and_the_results(kind: str, tmp_path: Path) -> None:
    run = homophily.run({**SMALL, "tracker": {"name": kind, "folder": str(tmp_path / "tables")}}, out=tmp_path / "run")
    read = {"csv": pd.read_csv, "parquet": pd.read_parquet}[kind]
    (row,) = read(tmp_path / "tables" / "run" / f"summary.{kind}").to_dict("records")
    assert (row["run"], row["method.name"], row["method.k"]) == ("run", "random", 2)
    assert row["summary/accuracy"] == run.summary["accuracy"]


@pytest.mark.parametrize("kind", ["csv", "parquet", "tensorboard"])
def test_runs_of_the_same_name_do_not_mix(kind: str, tmp_path: Path) -> None:
    tracker = {"name": kind, "folder": str(tmp_path / "all")}
    for above in ("a", "b"):
        homophily.run({**SMALL, "rounds": 1, "tracker": tracker}, out=tmp_path / above / "run")
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["run", "run-2"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_gets_new_columns_and_gaps(kind: str, tmp_path: Path) -> None:
    """Rounds that are not scored have no accuracy; it first comes in round 2."""
    config = {**SMALL, "rounds": 5, "evaluate": 2, "tracker": kind}
    run = homophily.run(config, out=tmp_path / "run")
    assert [step for step, _ in points(kind, run.path, "accuracy")] == [2, 4, 5]
    assert [step for step, _ in points(kind, run.path, "models_sent_per_peer")] == [1, 2, 3, 4, 5]


def test_rows_that_were_not_complete_are_written_again(tmp_path: Path) -> None:
    """The process was killed while it wrote round 3."""
    with pytest.raises(KeyboardInterrupt):
        homophily.run({**SMALL, "tracker": "csv"}, callbacks=[InterruptAt(3)], out=tmp_path / "run")
    table = tmp_path / "run" / "csv" / "metrics.csv"
    table.write_text(table.read_text(encoding="utf-8") + "3,0.1,2", encoding="utf-8")
    run = homophily.resume(tmp_path / "run")
    assert points("csv", run.path, "accuracy") == logged(run, "accuracy")


def test_rounds_that_are_not_yet_in_a_parquet_file_are_logged_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homophily.trackers.tables._PAUSES", 1e6)
    with pytest.raises(KeyboardInterrupt):
        homophily.run({**SMALL, "tracker": "parquet"}, callbacks=[InterruptAt(4)], out=tmp_path / "run")
    assert [step for step, _ in points("parquet", tmp_path / "run", "accuracy")] == [1]
    stopped = homophily.Run(tmp_path / "run")
    assert log_run(stopped, TrackerTable(name="parquet")) == len(stopped.metrics()) - 1
    assert points("parquet", stopped.path, "accuracy") == logged(stopped, "accuracy")
    run = homophily.resume(tmp_path / "run")
    assert points("parquet", run.path, "accuracy") == logged(run, "accuracy")


@pytest.mark.parametrize("kind", ["csv", "parquet", "tensorboard"])
def test_a_tracker_that_was_flushed_has_all_rounds_and_no_file_open(kind: str, tmp_path: Path) -> None:
    run = homophily.run(SMALL, out=tmp_path / "run")
    log = RunLog(TrackerTable(name=kind))
    log.open(run.path, run.config)
    log.log(run.metrics())
    log.flush()
    assert not [path for path in open_files() if path.is_relative_to(tmp_path)]
    assert points(kind, run.path, "accuracy") == approximately(logged(run, "accuracy"))


def open_files() -> Iterator[Path]:
    """What this process has open."""
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread has closed it meanwhile
            yield path.readlink()


def test_a_line_that_was_not_complete_is_not_read(tmp_path: Path) -> None:
    """The process was killed while it noted round 2."""
    with pytest.raises(KeyboardInterrupt):
        homophily.run({**SMALL, "tracker": ["csv", "mlflow"]}, callbacks=[InterruptAt(2)], out=tmp_path / "run")
    with (tmp_path / "run" / "trackers.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"name": "csv", "keys"')
    run = homophily.resume(tmp_path / "run")
    for kind in ("csv", "mlflow"):
        assert points(kind, run.path, "accuracy") == approximately(logged(run, "accuracy"))


def test_a_damaged_record_of_trackers_is_named(tmp_path: Path) -> None:
    run = homophily.run({**SMALL, "tracker": "csv"}, out=tmp_path / "run")
    (run.path / "trackers.jsonl").write_text("[]\n", encoding="utf-8")
    with pytest.raises(homophily.UserError, match=r"trackers\.jsonl is damaged"):
        log_run(run, TrackerTable(name="csv"))


@pytest.mark.parametrize("kind", ["mlflow", "wandb", "csv"])
def test_every_run_of_a_comparison_is_logged_in_one_group(kind: str, tmp_path: Path) -> None:
    config = {**SMALL, "method": {}, "tracker": kind}
    found = homophily.compare(config, methods=["local", "random"], seeds=[0, 1], out=tmp_path / "several")
    runs = [run for several in found.runs.values() for run in several]
    assert len(runs) == 4
    if kind == "csv":
        rows = pd.concat(pd.read_csv(run.path / "csv" / "summary.csv") for run in runs)
        assert set(rows["group"]) == {"several"}
        assert rows["summary/accuracy"].tolist() == [run.summary["accuracy"] for run in runs]
        return
    if kind == "wandb":
        records = [record for run in runs for record in wandb_records(run.path)]
        begun = [record.run for record in records if record.WhichOneof("record_type") == "run"]
        assert [(one.run_group, one.display_name) for one in begun] == [("several", run.path.name) for run in runs]
        assert len({one.run_id for one in begun}) == 4
        return
    stored = {one.info.run_name: one for one in mlflow_runs(found.path / "mlflow")}
    assert set(stored) == {run.path.name for run in runs}
    assert {one.data.tags["homophily.comparison"] for one in stored.values()} == {"several"}
    for run in runs:
        assert stored[run.path.name].data.metrics["summary/accuracy"] == run.summary["accuracy"]
    assert all(a.info.experiment_id == b.info.experiment_id for a, b in pairwise(stored.values()))
