"""A recipe: how a table or figure of a paper is reproduced, which values the paper prints, and what it claims."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal

import pydantic

from homophily.config.schema import Config
from homophily.errors import UserError
from homophily.simulation.configuration import make, overlaid

_RECIPES = files("homophily.papers") / "recipes"
Key = Annotated[str, pydantic.StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
Printed = float | tuple[float, float]  # a mean, or a mean and its standard deviation
PAPERS = {"panm": "PANM", "dpg": "DPG", "dac": "DAC", "similarity": "Similarity metrics"}
_COMMON = {"precision": "fast"}  # TF32, PyTorch's default for convolutions on a GPU


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class RecipeColumn(_Part):
    """A column of the table, with the config keys that its cells share.

    score: a key of a run's summary, with dots for nested keys. score and unit default to the recipe's.
    """

    label: str
    config: dict[str, Any] = {}
    score: str | None = None
    unit: str | None = None


class Row(_Part):
    """A row of the table, usually a method. ours: the row is not in the paper."""

    label: str
    config: dict[str, Any] = {}
    ours: bool = False


class Cell(_Part):
    """Config keys of a single cell."""

    config: dict[str, Any]


class Claim(_Part):
    """A claim of the paper, with a formula that checks it.

    ours: the claim is not in the paper. quick: it is checked in the quick version too.
    """

    text: str
    check: str
    ours: bool = False
    quick: bool = False


class Quick(_Part):
    """The quick version: some of the rows and columns, with config keys that override all others."""

    rows: list[Key]
    columns: list[Key]
    config: dict[str, Any] = {}
    seeds: int = 1


class Figure(_Part):
    """How a figure is drawn. x: the label of the x axis."""

    draw: Literal["curves", "heatmap", "dots", "topology", "histogram", "sensitivity"]
    x: str = ""

    @property
    def of_scores(self) -> bool:
        """Whether the scores of runs are enough to draw it."""
        return self.draw in ("dots", "sensitivity")


class Contradiction(_Part):
    """Two places of a paper that contradict each other.

    cell, value: the cell of the first place, as RESULT.ROW.COLUMN, and the value that the second place has for it.
    """

    first: str
    second: str
    cell: Annotated[str, pydantic.StringConstraints(pattern=r"^[a-z0-9-]+\.[a-z0-9_]+\.[a-z0-9_]+$")] | None = None
    value: float | None = None


class Variant(_Part):
    """Another reading of what a paper leaves open, fixed before it was run; it applies to all recipes of the paper.

    config: for all rows; methods: for the rows of a method, by its name.
    """

    choice: str
    reason: str
    date: str  # when it was fixed
    config: dict[str, Any] = {}
    methods: dict[str, dict[str, Any]] = {}

    def applied(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config ``values`` of a run with those of the variant."""
        own = self.methods.get(values.get("method", {}).get("name", ""), {})
        return overlaid(overlaid(dict(values), self.config), {"method": own} if own else {})


class Recipe(_Part):
    """How a table or figure is reproduced. Claims refer to cells as ROW.COLUMN."""

    title: str
    paper: Literal["panm", "dpg", "similarity", "dac"]
    kind: Literal["table", "figure"]
    unit: str
    score: str
    seeds: int
    choices: dict[str, str] = {}
    base: dict[str, Any]
    columns: dict[Key, RecipeColumn]
    rows: dict[Key, Row]
    cells: dict[Key, dict[Key, Cell]] = {}
    left_out: dict[Key, list[Key]] = {}  # cells that are not in the paper: rows by column
    printed: dict[Key, dict[Key, Printed]] = {}
    claims: list[Claim] = []
    quick: Quick
    figure: Figure | None = None

    def config(self, row: str, column: str, seed: int, quick: bool, variant: str | None = None) -> Config:
        """Return the config of a cell's run. variant: the name of a variant of the paper."""
        layers: list[Mapping[str, Any]] = [self.columns[column].config, self.rows[row].config]
        if column in self.cells.get(row, {}):
            layers.append(self.cells[row][column].config)
        if quick:
            layers.append(self.quick.config)
        values: dict[str, Any] = {**_COMMON, **self.base}
        for layer in layers:
            values = overlaid(values, layer)
        if variant is not None:
            values = self.variants[variant].applied(values)
        return make({**values, "seed": seed})

    @property
    def variants(self) -> dict[str, Variant]:
        """The variants of the recipe's paper, by name."""
        return variants().get(self.paper, {})

    def score_of(self, column: str) -> str:
        return self.columns[column].score or self.score

    def unit_of(self, column: str) -> str:
        return self.columns[column].unit or self.unit


@cache
def variants() -> dict[str, dict[str, Variant]]:
    """Return the variants by paper and name."""
    return pydantic.TypeAdapter(dict[str, dict[Key, Variant]]).validate_python(_stored("variants.toml"))


@cache
def contradictions() -> dict[str, list[Contradiction]]:
    """Return where the papers contradict themselves, by paper."""
    return pydantic.TypeAdapter(dict[str, list[Contradiction]]).validate_python(_stored("contradictions.toml"))


def _stored(file: str) -> dict[str, Any]:
    return tomllib.loads((files("homophily.papers") / file).read_text(encoding="utf-8"))


def names() -> list[str]:
    """Return the names of all recipes."""
    return sorted(entry.name.removesuffix(".toml") for entry in _RECIPES.iterdir() if entry.name.endswith(".toml"))


def load(name: str) -> Recipe:
    """Return the recipe called ``name``."""
    if name not in names():
        raise UserError(f"there is no recipe {name!r}; there are {', '.join(names())}")
    values = tomllib.loads((_RECIPES / f"{name}.toml").read_text(encoding="utf-8"))
    try:
        recipe = Recipe.model_validate(values)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"recipe {name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    _check(name, recipe)
    return recipe


def _check(name: str, recipe: Recipe) -> None:
    """Raise a UserError if the recipe refers to a row or column that it does not define."""
    mentioned = [(row, column) for row, cells in recipe.cells.items() for column in cells]
    mentioned += [(row, column) for row, cells in recipe.printed.items() for column in cells]
    mentioned += [(row, column) for column, rows in recipe.left_out.items() for row in rows]
    rows = [*recipe.quick.rows, *(row for row, _ in mentioned)]
    columns = [*recipe.quick.columns, *(column for _, column in mentioned)]
    for keys, defined, what in ((rows, recipe.rows, "row"), (columns, recipe.columns, "column")):
        for key in keys:
            if key not in defined:
                raise UserError(f"recipe {name}: there is no {what} {key!r}")
