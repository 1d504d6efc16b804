"""Every line in the table of readers of docs/your-data.md works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import homophily
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/your-data.md").read_text(encoding="utf-8")
LINES = re.findall(r"^\| .* \| `((?:data=|\{).*?)`.* \|$", PAGE.partition("## Readers")[2], re.MULTILINE)


@pytest.fixture
def objects(here: Path) -> dict[str, Any]:
    """What the lines use, with two peers."""
    x, y = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32), np.arange(20) % 2
    names = ["lyon", "bern"] * 10
    frame = pd.DataFrame({"hospital": names, "a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "label": y})
    frame.to_csv(here / "patients.csv", index=False)
    frame.to_parquet(here / "patients.parquet")
    (here / "folder").mkdir()
    for name in ("lyon", "bern"):
        np.savez(here / "folder" / f"{name}.npz", x=x, y=y)
    whole = TensorDataset(torch.as_tensor(x), torch.as_tensor(y))
    return {
        "homophily": homophily, "x": x, "y": y, "frame": frame, "lyon": whole, "bern": whole, "names": names,
        "function": lambda samples: tuple(map(torch.stack, zip(*samples, strict=True))),
    }  # fmt: skip


def test_the_table_was_found() -> None:
    assert len(LINES) == 9


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_table_gives_two_peers(line: str, objects: dict[str, Any]) -> None:
    hugging = "from_datasets" in line
    objects["dataset"] = datasets.Dataset.from_pandas(objects["frame"]) if hugging else objects["lyon"]
    config: dict[str, Any] = {"rounds": 1, "method": "local"}
    given = {} if line.startswith("{") else eval(f"dict({line})", objects)
    config |= eval(line, objects) if line.startswith("{") else {}
    run = homophily.run(config, model=nn.Linear(3, 2), **given)
    assert run.config.peers == 2
