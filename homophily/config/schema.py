"""The tables of a config: every key with its type, default, bounds and meaning.

A method, model, topology, data set or shift has keys of its own in the table that names it;
``homophily.simulation.configuration`` checks them. docs/config.md is generated from both (``make reference``).
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

    allowed = {"anyOf": [{"type": "integer", "minimum": least}, {"const": word}]}
    return Annotated[Any, pydantic.AfterValidator(check), pydantic.WithJsonSchema(allowed)]


def _path_or_table(value: Any) -> Any:
    if value is None or isinstance(value, str | dict):
        return value
    raise ValueError("must be the path of a TOML file, or a table")


class Table(pydantic.BaseModel):
    """A closed table: its keys are its fields."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class OpenTable(Table):
    """A table that also holds the keys of the method, model, topology or data set that it names."""

    model_config = pydantic.ConfigDict(frozen=True, extra="allow")

    @property
    def keys(self) -> dict[str, Any]:
        """The keys that are not fields of the table."""
        return dict(self.model_extra or {})


class Data(OpenTable):
    """The data set, the shift between clusters of peers, and how many samples each peer gets."""

    name: str = Field(
        "digits", description="the data set: a registered name, a folder of .npz files, or `package.module:function`"
    )
    shift: str | None = Field(
        None,
        description="how the data of the clusters differ (the kind of heterogeneity): a registered name or "
        '`package.module:function`. Left out: the default of the data set, else `"rotation"`',
    )
    sizes: list[Annotated[int, Field(ge=1)]] | None = Field(
        None,
        description="peers in each cluster; they must add up to `peers`. Left out: in the proportions of the shift, "
        "else clusters of equal size",
    )
    normalise: Literal["standard", "half", "unit"] | None = Field(
        None,
        description='how inputs are scaled: `"standard"` to mean 0 and standard deviation 1 per channel, `"half"` from '
        '0..1 to -1..1, `"unit"` not at all. Left out: the default of the data set, else `"standard"`; your own data: '
        '`"unit"`',
    )
    scale: Annotated[
        Any,
        pydantic.AfterValidator(_path_or_table),
        pydantic.WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
    ] = Field(
        None,
        description="constants that all peers share, instead of `normalise`: the path of a TOML file that "
        "`homophily scale` writes, or a table with its keys: `mean` and `std` of inputs, `fill` for missing values, "
        "`classes`, `target_mean`, `target_std`. Left out: constants are computed from the data",
    )
    train: _amount(1, "all") = Field(  # type: ignore[valid-type]
        None,
        description='training samples per peer; `"all"`: the whole training set is divided. Left out: the default of '
        "the data set, else 20; your own data: all",
    )
    validation: int | None = Field(
        None,
        ge=0,
        description="validation samples per peer, for `training.patience`. Left out: 0; your own data: its validation "
        "set",
    )
    test: _amount(1, "all") = Field(  # type: ignore[valid-type]
        None,
        description='test samples per peer; `"all"`: the whole test set of its cluster. Left out: the default of the '
        "data set, else 100; your own data: its test set, else a fifth of its samples",
    )
    balanced: bool = Field(False, description="whether each peer gets all classes equally often")


class Model(OpenTable):
    """The network that every peer trains."""

    name: str = Field("mlp", description="the network: a registered name or `package.module:name`")
    personal: list[str] = Field(
        [], description="name patterns of layers and buffers that are never merged and never sent (personal layers)"
    )


class Training(Table):
    """Local training: what each peer does with its own samples in a round."""

    optimizer: Literal["sgd", "adam"] = Field(
        "sgd", description="the optimizer; its state is reset at the start of every round"
    )
    loss: str = Field(
        "auto",
        description='`"cross-entropy"`, `"mse"` or `package.module:name`; `"auto"`: cross-entropy for classes, mse for '
        "regression",
    )
    lr: float = Field(0.05, gt=0, le=1e30, allow_inf_nan=False, description="learning rate in the first round")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD; Adam ignores it")
    weight_decay: float = Field(
        0.0, ge=0, le=1e6, allow_inf_nan=False, description="weight decay (L2), added to the gradient"
    )
    decay: float = Field(0.99, gt=0, le=1, description="factor by which the learning rate changes from round to round")
    batch: int = Field(10, ge=1, le=_MANY, description="samples per batch")
    epochs: int = Field(3, ge=1, le=_MANY, description="local epochs per round")
    patience: int = Field(
        0,
        ge=0,
        le=_MANY,
        description="early stopping: a peer stops after this many rounds without a lower validation loss, and keeps "
        "its best model; 0: off. Needs `data.validation`",
    )


class Method(OpenTable):
    """How a peer selects the peers it merges with."""

    name: str = Field("kin", description="the method: a registered name or `package.module:name`")


class Topology(OpenTable):
    """The communication graph: which peers reach each other in one hop."""

    name: str = Field(
        "full",
        description="the graph: a registered name, `package.module:name`, or a `.csv` or `.graphml` file of edges",
    )


class Config(Table):
    """All settings of one run.

    Build one with ``homophily.run``'s nested keys or a TOML file. ``run.config`` is the config of a run with every
    default filled in. It is frozen: to change a key, pass nested keys to the next run.
    """

    seed: int = Field(0, ge=0, lt=1 << 63, description="seed of every random draw")
    peers: int | None = Field(
        None,
        ge=1,
        le=10**7,
        description="peers in the federation. Left out: the default of the data set, else 60; your own data: as many "
        "as it has",
    )
    rounds: int = Field(60, ge=1, le=_MANY, description="rounds of training and merging")
    score: Literal["after-merge", "after-training"] = Field(
        "after-merge", description="whether a round tests the merged models or the trained models before the merge"
    )
    merge: str = Field(
        "uniform",
        description="the aggregation rule (merge) of a peer's model and its partners' models: a registered name or "
        "`package.module:name`",
    )
    topology: Topology = Topology()
    engine: Literal["auto", "stacked", "vectorised", "one-by-one"] = Field(
        "auto",
        description='how peers are trained: `"stacked"` layer by layer for all peers at once, `"vectorised"` with '
        '`torch.vmap`, `"one-by-one"` in a loop; `"auto"`: the fastest that supports the network',
    )
    precision: Literal["full", "fast"] = Field(
        "full", description='`"fast"` allows TF32 matrix products on a GPU, `"full"` does not'
    )
    init: Literal["common", "independent"] = Field(
        "common", description="whether all peers start from the same weights, or each from its own"
    )
    contacts: _amount(1, "all") = Field(  # type: ignore[valid-type]
        "all",
        description='the most peers that one peer knows, drawn at random from those within reach; `"all"`: everyone '
        "within reach",
    )
    evaluate: int = Field(1, ge=1, le=_MANY, description="models are tested every this many rounds, and after the last")
    checkpoint: int = Field(
        10, ge=1, le=_MANY, description="a checkpoint is saved every this many rounds, and after the last"
    )
    extra_metrics: list[str] = Field([], description="your own scores, each as `package.module:name`")
    data: Data = Data()
    model: Model = Model()
    training: Training = Training()
    method: Method = Method()

    def toml(self) -> dict[str, Any]:
        """The config as nested tables that TOML can hold, without the keys that were left out."""
        return self.model_dump(exclude_none=True)


TABLES: dict[str, type[Table]] = {
    "data": Data, "model": Model, "training": Training, "method": Method, "topology": Topology,
}  # fmt: skip
