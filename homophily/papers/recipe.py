"""A recipe: how a table or figure of a paper is made here, what the paper prints, and what it claims."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Annotated, Any, Literal

import pydantic

from homophily.config.schema import Config
from homophily.errors import UserError
from homophily.simulation.configuration import make, overlaid

_RECIPES = files("homophily.papers") / "recipes"
Key = Annotated[str, pydantic.StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
Printed = float | tuple[float, float]  # a mean, or with its deviation
_COMMON = {"precision": "fast"}  # TF32, which PyTorch's convolutions have of themselves on a GPU


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class RecipeColumn(_Part):
    """What the cells of a column have in common. score: a key of a run's summary, dots go deeper.

    score and unit: the recipe's, where left out.
    """

    label: str
    config: dict[str, Any] = {}
    score: str | None = None
    unit: str | None = None


class Row(_Part):
    """Usually a method. ours: the paper does not have it."""

    label: str
    config: dict[str, Any] = {}
    ours: bool = False


class Cell(_Part):
    """Keys that only one cell has."""

    config: dict[str, Any]


class Claim(_Part):
    """Something the paper says, as a check on the numbers. ours: we say it. quick: it holds in the quick form too."""

    text: str
    check: str
    ours: bool = False
    quick: bool = False


class Quick(_Part):
    """A small version: some rows and columns, keys over all others."""

    rows: list[Key]
    columns: list[Key]
    config: dict[str, Any] = {}
    seeds: int = 1


class Figure(_Part):
    """How a figure is drawn. x: what its columns differ in, in words."""

    draw: Literal["curves", "heatmap", "dots", "topology", "histogram", "sensitivity"]
    x: str = ""


class Recipe(_Part):
    """All of it. Cells are named ROW.COLUMN."""

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
    left_out: dict[Key, list[Key]] = {}  # cells that the paper does not have: column, rows
    printed: dict[Key, dict[Key, Printed]] = {}
    claims: list[Claim] = []
    quick: Quick
    figure: Figure | None = None

    def config(self, row: str, column: str, seed: int, quick: bool) -> Config:
        """The config of a cell's run."""
        layers: list[Mapping[str, Any]] = [self.columns[column].config, self.rows[row].config]
        if column in self.cells.get(row, {}):
            layers.append(self.cells[row][column].config)
        if quick:
            layers.append(self.quick.config)
        values: dict[str, Any] = {**_COMMON, **self.base}
        for layer in layers:
            values = overlaid(values, layer)
        return make({**values, "seed": seed})

    def score_of(self, column: str) -> str:
        return self.columns[column].score or self.score

    def unit_of(self, column: str) -> str:
        return self.columns[column].unit or self.unit


def names() -> list[str]:
    """Of all recipes."""
    return sorted(entry.name.removesuffix(".toml") for entry in _RECIPES.iterdir() if entry.name.endswith(".toml"))


def load(name: str) -> Recipe:
    """The recipe called ``name``."""
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
    """Every row and column that is spoken of is there."""
    spoken = [(row, column) for row, cells in recipe.cells.items() for column in cells]
    spoken += [(row, column) for row, cells in recipe.printed.items() for column in cells]
    spoken += [(row, column) for column, rows in recipe.left_out.items() for row in rows]
    rows = [*recipe.quick.rows, *(row for row, _ in spoken)]
    columns = [*recipe.quick.columns, *(column for _, column in spoken)]
    for found, there, what in ((rows, recipe.rows, "row"), (columns, recipe.columns, "column")):
        for key in found:
            if key not in there:
                raise UserError(f"recipe {name}: there is no {what} {key!r}")
