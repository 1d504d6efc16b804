"""Does kin find the clusters of the papers' tables? A row for each setting of a table that has a row for kin."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from kin_grouping import HEAD as GROUPING
from kin_grouping import cells
from kin_work import Row, Study

import homophily
from homophily.papers import recipe as recipes

HEAD = ("table", "setting", *GROUPING[4:])


def study(options: Any) -> Study:
    """A row for each setting. Tables often share one; it is shown with the first of them."""
    rows, seen = [], set()
    for name in recipes.names():
        recipe = recipes.load(name)
        if recipe.kind != "table" or "kin" not in recipe.rows:
            continue
        for column, about in recipe.columns.items():
            setting = json.dumps(_setting(name, column, 0), sort_keys=True)
            data = str(json.loads(setting)["data"]["name"])
            if setting in seen or (options.data and data not in options.data):
                continue
            seen.add(setting)
            jobs = [partial(_answer, name, column, seed, options.device) for seed in options.seeds]
            rows.append(Row((name, about.label), jobs))
    return Study(HEAD, rows, cells)


def _setting(name: str, column: str, seed: int) -> dict[str, Any]:
    """The part of a config that fingerprints depend on."""
    values = recipes.load(name).config("kin", column, seed, quick=False).model_dump(exclude_none=True)
    return {"seed": seed, "peers": values["peers"], "data": values["data"]}


def _answer(name: str, column: str, seed: int, device: str) -> dict[str, Any]:
    return homophily.kin(_setting(name, column, seed) | {"model": "linear"}, device=device).summary()
