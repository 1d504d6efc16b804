"""The command line: its tables and its JSON output."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import homophily
from homophily.methods import methods
from homophily.simulation.configuration import load
from homophily.simulation.setup import prepare
from homophily.simulation.user_objects import UserObjects
from tests.processes import completed

Printed = tuple[int, str, str]  # exit code, stdout, stderr
Command = Callable[..., Printed]

SMALL = ("peers=8", "rounds=2", "data.test=20", "method.k=3")
PROMISED = (
    "accuracy", "accuracy_over_clusters", "accuracy_by_cluster", "loss", "neighbour_precision", "neighbour_recall",
    "same_cluster_merges", "models_sent_per_peer", "bytes_sent_per_peer", "peak_models_per_peer_round", "rounds",
    "seconds", "run",
)  # fmt: skip


def last_object(printed: Printed) -> dict[str, Any]:
    """The JSON object on the last line of stdout; stderr must be empty."""
    code, out, err = printed
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


# As a real process


def test_a_real_process_runs_an_own_method_beside_it_and_prints_one_object(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import homophily.methods.baselines as b\nclass Mine(b.Random):\n    '''Mine.'''\n"
    )
    done = completed("run", *SMALL, "method=mine:Mine", "--json", folder=tmp_path, OMP_NUM_THREADS="1")
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    summary = json.loads(line)
    assert set(PROMISED) <= set(summary)
    assert summary["run"] == "runs/mine-Mine-digits-0"
    assert (tmp_path / summary["run"] / "config.toml").is_file()


def test_a_real_process_ends_a_mistake_with_exit_code_2_and_no_traceback(tmp_path: Path) -> None:
    done = completed("run", "method.k=60", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: method.k = 60: must be from 1 to peers - 1, which is 59\n"
    assert not list(tmp_path.iterdir())


# run


def test_run_json_has_all_documented_fields(command: Command) -> None:
    summary = last_object(command("run", *SMALL, "method=random", "--json"))
    assert set(PROMISED) <= set(summary)
    assert 0 < summary["accuracy"] <= 100
    assert list(summary["accuracy_by_cluster"]) == ["0°", "90°", "180°", "270°"]
    over = sum(summary["accuracy_by_cluster"].values()) / 4
    assert summary["accuracy_over_clusters"] == pytest.approx(over)
    assert summary["rounds"] == 2
    assert summary["models_sent_per_peer"] == 2 * 3
    assert summary["bytes_sent_per_peer"] == 2 * 3 * 4 * (64 * 32 + 32 + 32 * 10 + 10)
    assert summary["peak_models_per_peer_round"] == 3
    assert 0 <= summary["same_cluster_merges"] <= 1
    assert summary == json.loads((Path(summary["run"]) / "summary.json").read_text())


def test_run_json_is_null_for_values_a_method_does_not_have(command: Command) -> None:
    summary = last_object(command("run", "peers=8", "rounds=1", "method=local", "--json"))
    assert summary["models_sent_per_peer"] == 0
    assert [summary[key] for key in ("neighbour_precision", "neighbour_recall", "same_cluster_merges")] == [None] * 3
    summary = last_object(command("run", "peers=8", "rounds=1", "data.shift=dirichlet", "--json"))
    assert [summary[key] for key in ("neighbour_precision", "neighbour_recall", "same_cluster_merges")] == [None] * 3
    assert summary["accuracy_by_cluster"] == {"all": pytest.approx(summary["accuracy"])}


def test_run_json_of_a_regression_has_mse_in_place_of_accuracy(command: Command) -> None:
    summary = last_object(command("run", "data=linear", "data.samples=600", *SMALL, "model=linear", "--json"))
    assert not any(key.startswith("accuracy") for key in summary)
    assert set(PROMISED) <= {key.replace("mse", "accuracy") for key in summary}
    assert summary["mse"] == pytest.approx(summary["loss"])


def test_run_prints_a_table_for_people(command: Command) -> None:
    code, out, err = command("run", *SMALL)
    assert (code, err) == (0, "")
    summary = json.loads(Path("runs/kin-digits-0/summary.json").read_text())
    assert out.startswith("kin, 2 rounds")
    for name, value in summary["accuracy_by_cluster"].items():
        assert f"cluster {name} {value:>10.1f}".split() in [line.split() for line in out.splitlines()]
    assert f"mean over peers {summary['accuracy']:.1f}".split() in [line.split() for line in out.splitlines()]
    assert f"same-cluster merges {100 * summary['same_cluster_merges']:.0f}%" in " ".join(out.split())
    assert "models sent per peer 6" in " ".join(out.split())
    assert "run folder: runs/kin-digits-0" in out


def test_the_table_of_a_regression_names_the_error(command: Command) -> None:
    code, out, _ = command("run", "data=linear", "data.samples=600", *SMALL, "model=linear")
    assert code == 0
    assert "mean squared error" in out
    assert "cluster concept 0" in out


def test_runs_without_out_get_new_folders(command: Command) -> None:
    first, second = (last_object(command("run", *SMALL, "--json"))["run"] for _ in range(2))
    assert (first, second) == ("runs/kin-digits-0", "runs/kin-digits-0-2")
    assert last_object(command("run", *SMALL, "--json", "--out", "mine/deep"))["run"] == "mine/deep"
    assert homophily.Run("mine/deep").scores == homophily.Run(first).scores == homophily.Run(second).scores


def test_resume_extends_a_finished_run(command: Command) -> None:
    last_object(command("run", *SMALL, "--out", "short", "--json"))
    extended = last_object(command("run", "--resume", "short", "rounds=4", "--json"))
    assert extended["rounds"] == 4
    assert extended["run"] == "short"
    assert len(homophily.Run("short").metrics()) == 4
    code, out, _ = command("run", "--resume", "short")
    assert code == 0
    assert out.startswith("kin, 4 rounds")


# --version


def test_the_version_is_printed(command: Command) -> None:
    assert command("--version") == (0, f"{homophily.__version__}\n", "")


# compare


def test_compare_json_has_mean_and_deviation_of_each_method(command: Command) -> None:
    words = ("methods=local,random", "seeds=0,1", "--json", "--out", "both")
    found = last_object(command("compare", *SMALL, *words))
    assert found["run"] == "both"
    assert list(found["methods"]) == ["local", "random"]
    for method, table in found["methods"].items():
        runs = [homophily.Run(f"both/{method}-{seed}") for seed in (0, 1)]
        values = torch.tensor([run.summary["accuracy"] for run in runs], dtype=torch.float64)
        assert table["accuracy"] == pytest.approx({"mean": float(values.mean()), "std": float(values.std())})
        by_cluster = [run.summary["accuracy_by_cluster"]["90°"] for run in runs]
        assert table["accuracy_by_cluster"]["90°"]["mean"] == pytest.approx(sum(by_cluster) / 2)
        assert [run.config.seed for run in runs] == [0, 1]
        assert {run.config.method.name for run in runs} == {method}
    assert found["methods"]["local"]["same_cluster_merges"] is None
    assert json.loads(Path("both/compare.json").read_text()) == found["methods"]


def test_compare_gives_all_methods_the_same_federation(command: Command) -> None:
    last_object(command("compare", *SMALL, "methods=local,random", "--out", "both", "--json"))
    alone, together = (load(Path(f"both/{method}-0/config.toml")) for method in ("local", "random"))
    assert alone.data == together.data
    assert alone.training == together.training
    first, second = (prepare(config, UserObjects(), torch.device("cpu"))[0] for config in (alone, together))
    assert torch.equal(first.task.data.train.x, second.task.data.train.x)
    assert torch.equal(first.start.rows, second.start.rows)


def test_compare_passes_keys_to_the_methods_that_have_them(command: Command) -> None:
    words = ("methods=local,random,oracle", "method.k=2", "method.oracle.k=1", "--json", "--out", "three")
    found = last_object(command("compare", "peers=8", "rounds=1", *words))["methods"]
    assert [found[name]["models_sent_per_peer"]["mean"] for name in found] == [0, 2, 1]
    assert found["oracle"]["same_cluster_merges"] == {"mean": 1.0}


def test_compare_prints_a_table_for_people(command: Command) -> None:
    code, out, err = command("compare", *SMALL, "methods=local,oracle", "seeds=0,1")
    assert (code, err) == (0, "")
    table = json.loads(Path("runs/compare-digits/compare.json").read_text())
    assert "accuracy, %, 2 seeds" in out
    assert ["method", "0°", "90°", "180°", "270°", "mean", "same-cluster", "merges", "models", "sent"] in [
        line.split() for line in out.splitlines()
    ]
    (local,) = (line.split() for line in out.splitlines() if line.split()[:1] == ["local"])
    (oracle,) = (line.split() for line in out.splitlines() if line.split()[:1] == ["oracle"])
    mean = table["oracle"]["accuracy"]
    assert oracle[5:8] == [f"{mean['mean']:.1f}", "±", f"{mean['std']:.1f}"]
    assert oracle[8] == "100%"
    assert local[8:] == ["-", "0"]
    assert "run folder: runs/compare-digits" in out


@pytest.mark.parametrize("columns", ["80", "60", "40", None])
def test_a_comparison_shows_every_number_at_any_width(
    columns: str | None, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    words = ("data.angles=[0,20,40,60,80,100,120,140]", "methods=local,fix-topology", "method.k=3", "seeds=0,1")
    code, out, _ = command("compare", "peers=8", "rounds=1", "data.train=5", "data.test=20", *words)
    assert code == 0
    table, words_shown = json.loads(Path("runs/compare-digits/compare.json").read_text()), out.split()
    for row in table.values():
        for cell in [row["accuracy"], *row["accuracy_by_cluster"].values()]:
            assert f"{cell['mean']:.1f}" in words_shown
    shown = [line for line in out.splitlines() if not line.startswith(("note:", "run folder:"))]
    assert columns is None or max(map(len, shown)) <= int(columns)


def test_a_folder_shows_its_comparison_and_out_runs_what_is_missing(command: Command) -> None:
    words = ("methods=local,random", "seeds=0,1", "--out", "study")
    code, first, _ = command("compare", *SMALL, *words)
    assert code == 0
    assert command("compare", "study") == (0, first, "")
    assert command("compare", "--out", "study") == (0, first, "")
    os.remove("study/random-1/summary.json")
    code, out, _ = command("compare", "study")
    assert (code, "note: random-1 has not finished\n" in out) == (0, True)
    assert not Path("study/random-1/summary.json").exists()
    assert command("compare", "--out", "study") == (0, first, "")
    found = last_object(command("compare", "study", "seeds=2", "--fairness", "--json"))
    assert list(found["methods"]) == ["local", "random"]
    assert set(found["methods"]["local"]["worst_tenth"]) == {"mean"}
    assert sorted(path.parent.name for path in Path("study").glob("*/summary.json"))[2] == "local-2"


def test_a_sweep_has_columns_of_its_keys_and_a_figure(command: Command) -> None:
    code, out, _ = command(
        "compare", *SMALL, "methods=local,random", "sweep.method.k=1,2", "sweep.rounds=1,2", "--out", "study"
    )
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines[2][:4] == ["method", "k", "rounds", "0°"]
    assert [line[:3] for line in lines if line[:1] in (["local"], ["random"])] == [
        ["local", "-", "1"], ["local", "-", "2"], ["random", "1", "1"], ["random", "1", "2"], ["random", "2", "1"],
        ["random", "2", "2"],
    ]  # fmt: skip
    assert out.endswith("run folder: study\nfigure: study/sweep.png\n")
    assert Path("study/sweep.png").read_bytes().startswith(b"\x89PNG")


# list and export


REGISTERED = {
    "methods": ["fix-topology", "local", "oracle", "random"],
    "metrics": ["cosine-gradients", "cosine-weights", "l2", "loss", "panm"],
    "merges": ["uniform"],
    "topologies": ["full"],
    "data": ["cifar-10", "cifar-100", "digits", "fashion-mnist", "heart-disease", "linear", "mnist"],
    "shifts": ["concept", "dirichlet", "domain", "iid", "label-groups", "label-swap", "natural", "rotation"],
    "transforms": ["crop", "flip"],
    "models": ["cifar-cnn", "cnn", "dac-cnn", "linear", "mlp", "mobilenet-v2", "resnet-18"],
    "objectives": ["fedprox", "fedrep", "loss"],
    "headlines": ["accuracy", "auroc", "f1", "loss", "mae", "mse", "perplexity"],
    "trackers": ["csv", "mlflow", "parquet", "tensorboard", "wandb"],
}


def test_kin_prints_what_it_found_and_what_it_could_not_find(command: Command) -> None:
    code, out, _ = command("kin", "--out", "who")
    assert code == 0
    assert out.startswith("60 peers, 4 families\n")
    answer = json.loads(Path("who/kin.json").read_text())
    assert (answer["enough_samples"], answer["conclusive"]) == (True, True)
    code, out, _ = command("kin", "data.shift=iid", "peers=20", "--out", "same")
    assert out.startswith("20 peers, no difference found: two equal groups that differ by less than ")
    assert "one kind of data" not in out
    answer = last_object(command("kin", "data.train=2", "peers=20", "--json"))
    assert (answer["enough_samples"], answer["conclusive"], answer["smallest_difference"]) == (False, False, None)


@pytest.mark.parametrize("kind", REGISTERED)
def test_list_has_a_line_about_each_name(kind: str, command: Command) -> None:
    code, out, err = command("list", kind)
    assert (code, err) == (0, "")
    title, *lines = out.splitlines()
    assert title == kind
    found = dict(line.split(maxsplit=1) for line in lines)
    assert list(found) == sorted(found)
    assert set(REGISTERED[kind]) <= set(found)
    assert all(about.endswith((".", "?", ")")) for about in found.values())


def test_list_alone_lists_everything(command: Command) -> None:
    code, out, _ = command("list")
    assert code == 0
    assert [line for line in out.splitlines() if not line.startswith(" ")] == list(REGISTERED)


def test_export_gives_a_state_dict_that_scores_as_the_run_did(command: Command) -> None:
    last_object(command("run", *SMALL, "--out", "run", "--json"))
    code, out, err = command("export", "run", "model.safetensors", "--peer", "3")
    assert (code, out.strip(), err) == (0, "model.safetensors", "")
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    network.load_state_dict(load_file("model.safetensors"))
    run = homophily.Run("run")
    data = prepare(run.config, UserObjects(), torch.device("cpu"))[0].task.data
    x, y = data.test.peer(3)
    with torch.no_grad():
        outputs = network(x)
    assert 100 * float((outputs.argmax(1) == y).double().mean()) == pytest.approx(run.scores["accuracy"][3])
    assert float(nn.functional.cross_entropy(outputs, y)) == pytest.approx(run.scores["loss"][3], rel=1e-5)
    assert torch.allclose(run.model(3)(x), outputs)
    assert not torch.allclose(run.model(4)(x), outputs)


def test_written_files_are_readable_by_other_users(command: Command) -> None:
    before = os.umask(0o022)
    try:
        last_object(command("run", *SMALL, "--out", "run", "--json"))
    finally:
        os.umask(before)
    files = [path for path in Path("run").rglob("*") if path.is_file()]
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in files} == {path.name: "0o644" for path in files}
    assert {"models.safetensors", "state.safetensors", "config.toml"} <= {path.name for path in files}


def test_compare_all_lists_the_methods_that_cannot_be_used(command: Command) -> None:
    code, out, _ = command("compare", "peers=10", "rounds=1", "data.shift=dirichlet", "data.train=20", "methods=all")
    assert code == 0
    table = json.loads(Path("runs/compare-digits/compare.json").read_text())
    assert set(table) == set(methods) - {"oracle"}
    assert "oracle is left out" in out


@pytest.mark.parametrize("word", ["data.train=100000", "method.k=30", "topology=torus"])
def test_comparing_all_still_reports_mistakes(word: str, command: Command) -> None:
    code, out, err = command("compare", "peers=8", "rounds=1", word)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert not Path("runs").exists()


def test_clusters_drawn_by_the_seed_can_be_compared(command: Command) -> None:
    words = ("data.shift=label-groups", "data.groups=pairs", "seeds=0,1", "methods=random", "peers=10", "rounds=1")
    assert command("compare", *words)[0] == 0
    table = json.loads(Path("runs/compare-digits/compare.json").read_text())
    assert all("std" in cell for cell in table["random"]["accuracy_by_cluster"].values())


def test_log_writes_what_a_tracker_does_not_have(command: Command, tmp_path: Path) -> None:
    assert command("run", *SMALL, "tracker=csv", "--out", "mine")[0] == 0
    assert command("log", "mine", "--to", "csv")[:2] == (0, "mine: 0 rounds logged to csv\n")
    assert command("log", "mine", "--to", "csv", "folder=tables")[:2] == (0, "mine: 2 rounds logged to csv\n")
    stored, logged = Path("mine/csv"), Path("tables/mine")
    for name in ("metrics.csv", "summary.csv"):
        assert (logged / name).read_text(encoding="utf-8") == (stored / name).read_text(encoding="utf-8")
    code, _, err = command("log", "mine", "--to", "cvs")
    assert code == 2
    assert "unknown tracker 'cvs' (did you mean 'csv'?)" in err


def test_log_takes_all_runs_of_a_comparison(command: Command, tmp_path: Path) -> None:
    assert command("compare", "methods=local,random", "peers=8", "rounds=2", "data.test=20", "--out", "two")[0] == 0
    code, out, _ = command("log", "two", "--to", "csv", "folder=tables")
    assert (code, sorted(out.splitlines())) == (
        0, ["two/local-0: 2 rounds logged to csv", "two/random-0: 2 rounds logged to csv"],
    )  # fmt: skip
    assert sorted(path.name for path in Path("tables/two").iterdir()) == ["local-0", "random-0"]


def test_settings_without_effect_are_named_before_the_first_round(command: Command) -> None:
    code, _, err = command("run", *SMALL, "training.warmup=2", "training.stop_on=headline")
    never = "the learning rate never reaches its full value"
    assert (code, err.splitlines()) == (0, [
        f"note: training.warmup = 2 and rounds = 2: {never}",
        "note: training.stop_on = 'headline' has no effect without training.patience",
    ])  # fmt: skip
    with pytest.warns(homophily.ConfigWarning, match=never):
        homophily.run({"peers": 4, "rounds": 2, "training": {"warmup": 2}})


def test_a_table_of_new_runs_says_what_else_the_folder_has(command: Command) -> None:
    assert command("compare", *SMALL[:3], "methods=local", "seeds=0,1", "--out", "study")[0] == 0
    more = "the folder has 2 more runs (local; seeds 0, 1); all are shown by: homophily compare study"
    assert f"note: {more}\n" in command("compare", "study", "seeds=2")[1]
    assert "note:" not in command("compare", "study")[1]
