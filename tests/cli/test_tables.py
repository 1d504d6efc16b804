"""Tables on the command line: run, resume, kin, compare and scale read CSV and Parquet files."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from homophily.runs.reader import Run

Command = Callable[..., tuple[int, str, str]]
KEYS = ("data.peer=site", "data.target=label", "data.cluster=group")


@pytest.fixture
def table(here: Path) -> Path:
    """Six sites with 30 rows each; the label depends on another feature at odd sites."""
    rng, frames = np.random.default_rng(0), []
    for i in range(6):
        x = rng.normal(2.0, 3.0, size=(30, 2))
        label = np.where(x[:, i % 2] > 2.0, "yes", "no")
        frames.append(pd.DataFrame({"site": f"s{i}", "group": i % 2, "a": x[:, 0], "b": x[:, 1], "label": label}))
    whole = pd.concat(frames)
    whole.to_csv(here / "sites.csv", index=False)
    whole.to_parquet(here / "sites.parquet", index=False)
    return here


@pytest.mark.parametrize("file", ["sites.csv", "sites.parquet"])
def test_a_run_on_a_table_can_be_resumed_and_names_peers_and_classes(command: Command, table: Path, file: str) -> None:
    words = (f"data={file}", *KEYS, "model=linear", "method=oracle", "data.normalise=standard")
    code, _, err = command("run", *words, "rounds=2", "--out", "first")
    assert (code, err) == (0, "")
    run = Run(table / "first")
    assert run.scores["peer"] == [f"s{i}" for i in range(6)]
    assert run.about["class_names"] == ["no", "yes"]
    assert sorted(run.summary["accuracy_by_cluster"]) == ["0", "1"]
    assert run.config.data.keys == {"peer": "site", "target": "label", "cluster": "group"}
    assert command("run", "--resume", "first", "rounds=3")[0] == 0
    assert command("run", *words, "rounds=3", "--out", "whole")[0] == 0
    models = [(table / name / "models.safetensors").read_bytes() for name in ("first", "whole")]
    assert models[0] == models[1]


def test_kin_and_compare_take_a_table(command: Command, table: Path) -> None:
    code, out, _ = command("kin", "data=sites.parquet", *KEYS, "model=linear")
    assert code == 0
    assert "  family 0: 3 peers: s0, s2, s4\n" in out
    words = ("data=sites.csv", *KEYS, "model=linear", "rounds=1", "methods=local,random", "--json")
    code, out, _ = command("compare", *words)
    assert code == 0
    assert '"random"' in out.splitlines()[-1]


def test_scale_writes_class_names_that_a_run_uses(command: Command, table: Path) -> None:
    assert command("scale", "data=sites.csv", *KEYS[:2], "data.features=[a, b]", "--out", "agreed.toml")[0] == 2
    words = ("data.features=['a', 'b']", "--out", "agreed.toml")
    code, out, _ = command("scale", "data=sites.csv", "data.target=label", *words)
    assert code == 0
    assert "no, yes" in out
    agreed = tomllib.loads((table / "agreed.toml").read_text())
    assert (agreed["classes"], agreed["class_names"], len(agreed["mean"])) == (2, ["no", "yes"], 2)
    code, _, _ = command("run", "data=sites.csv", *KEYS, "data.scale=agreed.toml", "rounds=1", "--out", "run")
    assert code == 0
    assert Run(table / "run").config.data.scale["class_names"] == ["no", "yes"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("data=sites.csv",), "data.target is missing and has no default"),
        (("data=sites.csv", "data.target=label"), "data.peer is missing: it names the column of sites.csv that says"),
        (("data=sites.csv", *KEYS, "data.pear=1"), "unknown key data.pear (did you mean peer?): the keys of the"),
        (("data=sites.csv", *KEYS, "data.shift=rotation"), "data.shift = 'rotation': your own data is already divided"),
        (
            ("data=sites.csv", "data.peer=who", "data.target=label"),
            "peer: sites.csv has no column 'who'; its columns are",
        ),
        (("data=other.csv", *KEYS), "other.csv: there is no such file"),
        (("data=other.csv",), "other.csv: there is no such file"),
        (("data=digits", "data.peer=site"), "unknown key data.peer"),
        (("data=notes.txt",), "data.name = 'notes.txt' is a file; your own data must be a .csv or .parquet file"),
    ],
)
def test_mistakes_are_reported(command: Command, table: Path, words: tuple[str, ...], message: str) -> None:
    (table / "notes.txt").write_text("a")
    code, out, err = command("run", "rounds=1", *words)
    assert (code, out) == (2, "")
    assert message in err


def test_another_data_set_on_the_command_line_drops_the_keys_of_the_table(command: Command, table: Path) -> None:
    (table / "run.toml").write_text('rounds = 1\n[data]\nname = "sites.csv"\npeer = "site"\ntarget = "label"\n')
    assert command("run", "run.toml", "data.features=['a']")[0] == 0
    assert command("run", "run.toml", "data=digits", "peers=8")[0] == 0
