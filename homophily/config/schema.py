"""The config's tables: every key with its type, default and bounds.

Keys of a method, model, topology, data set or shift belong to what the table names;
``homophily.simulation.configuration`` checks them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

_MANY = 10**9


def _amount(least: int, word: str) -> Any:
    """A whole number of at least ``least``, or a word."""

    def check(value: Any) -> Any:
        if value == word or value is None or (type(value) is int and value >= least):
            return value
        raise ValueError(f'must be a whole number of at least {least} or "{word}"')

    return Annotated[Any, pydantic.AfterValidator(check)]


class Table(pydantic.BaseModel):
    """A closed table: its keys are its fields."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class OpenTable(Table):
    """A table with the keys of what it names as well."""

    model_config = pydantic.ConfigDict(frozen=True, extra="allow")

    @property
    def keys(self) -> dict[str, Any]:
        """The keys beyond the table's own."""
        return dict(self.model_extra or {})


class Data(OpenTable):
    name: str = "digits"
    shift: str | None = None
    sizes: list[Annotated[int, Field(ge=1)]] | None = None
    normalise: Literal["standard", "half", "unit"] | None = None
    train: _amount(1, "all") = None  # type: ignore[valid-type]
    validation: int | None = Field(None, ge=0)
    test: _amount(1, "all") = None  # type: ignore[valid-type]
    balanced: bool = False


class Model(OpenTable):
    name: str = "mlp"
    personal: list[str] = []


class Training(Table):
    optimizer: Literal["sgd", "adam"] = "sgd"
    loss: str = "auto"
    lr: float = Field(0.05, gt=0, le=1e30, allow_inf_nan=False)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0, le=1e6, allow_inf_nan=False)
    decay: float = Field(0.99, gt=0, le=1)
    batch: int = Field(10, ge=1, le=_MANY)
    epochs: int = Field(3, ge=1, le=_MANY)
    patience: int = Field(0, ge=0, le=_MANY)


class Method(OpenTable):
    name: str = "kin"


class Topology(OpenTable):
    name: str = "full"


class Config(Table):
    seed: int = Field(0, ge=0, lt=1 << 63)
    peers: int | None = Field(None, ge=1, le=10**7)
    rounds: int = Field(60, ge=1, le=_MANY)
    score: Literal["after-merge", "after-training"] = "after-merge"
    merge: str = "uniform"
    topology: Topology = Topology()
    engine: Literal["auto", "stacked", "vectorised", "one-by-one"] = "auto"
    precision: Literal["full", "fast"] = "full"
    init: Literal["common", "independent"] = "common"
    contacts: _amount(1, "all") = "all"  # type: ignore[valid-type]
    evaluate: int = Field(1, ge=1, le=_MANY)
    checkpoint: int = Field(10, ge=1, le=_MANY)
    extra_metrics: list[str] = []
    data: Data = Data()
    model: Model = Model()
    training: Training = Training()
    method: Method = Method()

    def toml(self) -> dict[str, Any]:
        """As a TOML table, without what was left out."""
        return self.model_dump(exclude_none=True)


TABLES: dict[str, type[Table]] = {
    "data": Data, "model": Model, "training": Training, "method": Method, "topology": Topology,
}  # fmt: skip
