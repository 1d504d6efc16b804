"""``homophily scale`` writes the constants on which all peers agree."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from homophily.runs.reader import Run

Command = Callable[..., tuple[int, str, str]]


def test_a_run_with_the_written_file_equals_a_run_that_standardises(command: Command, here: Path) -> None:
    words = ("run", "peers=8", "rounds=1", "data.test=20", "method=local")
    assert command("scale", "data=digits", "--out", "agreed.toml")[0] == 0
    for name, more in (("agreed", "data.scale=agreed.toml"), ("standard", "data.normalise=standard")):
        assert command(*words, more, "--out", name)[0] == 0
    first, second = ((here / name / "models.safetensors").read_bytes() for name in ("agreed", "standard"))
    assert first == second
    assert Run(here / "agreed").config.data.scale == tomllib.loads((here / "agreed.toml").read_text())


def test_it_prints_what_it_wrote(command: Command, here: Path) -> None:
    code, out, err = command("scale", "data=digits")
    assert (code, err) == (0, "")
    printed = [line.split() for line in out.splitlines()]
    assert [words[0] for words in printed] == ["mean", "std", "classes", "file:"]
    assert printed[-1] == ["file:", "scale.toml"]
    assert (here / "scale.toml").read_text().startswith("# Constants on which all peers agree (data.scale)")


def test_json_is_the_table_and_the_file(command: Command, here: Path) -> None:
    (here / "site").mkdir()
    for i in range(2):
        x = np.random.default_rng(i).normal(i, 1.0, size=(30, 12)).astype(np.float32)
        np.savez(here / "site" / f"{i}.npz", x=x, y=x[:, :2])
    code, out, _ = command("scale", "data=site", "--out", "site.toml", "--json")
    assert code == 0
    found = json.loads(out)
    assert found.pop("file") == "site.toml"
    assert found == tomllib.loads((here / "site.toml").read_text())
    assert {key: len(values) for key, values in found.items()} == {
        "mean": 12, "std": 12, "target_mean": 2, "target_std": 2,
    }  # fmt: skip
    _, out, _ = command("scale", "data=site", "--out", "again.toml")
    assert out.splitlines()[0].endswith(" ... (12 values)")


def test_it_takes_a_config_and_ignores_its_normalise(command: Command, here: Path) -> None:
    (here / "run.toml").write_text('rounds = 3\n[data]\nname = "digits"\nnormalise = "unit"\n')
    assert command("scale", "run.toml", "data.train=10")[0] == 0
    assert tomllib.loads((here / "scale.toml").read_text())["classes"] == 10


def test_mistakes_are_reported(command: Command, here: Path) -> None:
    (here / "old.toml").write_text("")
    for words, message in (
        (("data=digits", "--out", "old.toml"), "old.toml already exists: move it away"),
        (("data.scale=old.toml",), "data.scale: leave it out, because this command computes the constants"),
        (("data=nobody.npz",), "nobody.npz: there is no such file"),
    ):
        code, out, err = command("scale", *words)
        assert (code, out) == (2, "")
        assert message in err
    assert (here / "old.toml").read_text() == ""
