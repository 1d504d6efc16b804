"""The tables of a config: every key with its type, default, bounds and meaning.

A method, model, topology, data set or shift has keys of its own in the table that names it;
``homophily.simulation.configuration`` checks them. docs/config.md is generated from both (``make reference``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from homophily.config.privacy import Privacy
from homophily.config.table import OpenTable, Table

_LIMIT = 10**9  # the largest value of an integer key


def _amount(least: int, word: str) -> Any:
    """Return the type of a key that is a whole number of at least ``least``, or the string ``word``."""

    def check(value: Any) -> Any:
        if value == word or value is None or (type(value) is int and value >= least):
            return value
        raise ValueError(f'must be a whole number of at least {least} or "{word}"')

    allowed = {"anyOf": [{"type": "integer", "minimum": least}, {"const": word}]}
    return Annotated[Any, pydantic.AfterValidator(check), pydantic.WithJsonSchema(allowed)]


def _by_peer(kind: type, most: float) -> Any:
    """Return the type of a key with one value per peer, as a list or as a table by names: above 0, at most ``most``."""
    least = "number above 0" if kind is float else "whole number of at least 1"

    def fits(one: Any) -> bool:
        return type(one) in (int, kind) and 0 < one <= most

    def check(value: Any) -> Any:
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [None]
        if value is None or all(map(fits, values)):
            return value
        raise ValueError(f"must be a list, one {least} per peer, or a table of these by the name of a peer or cluster")

    json = "number" if kind is float else "integer"
    allowed = {"anyOf": [{"type": "array", "items": {"type": json}}, {"type": "object"}]}
    return Annotated[Any, pydantic.AfterValidator(check), pydantic.WithJsonSchema(allowed)]


def _path_or_table(value: Any) -> Any:
    if value is None or isinstance(value, str | dict):
        return value
    raise ValueError("must be the path of a TOML file, or a table")


class Data(OpenTable):
    """The data set, the shift between clusters of peers, and the number of samples per peer."""

    name: str = Field(
        "digits",
        description="the data set: a registered name, a `.csv` or `.parquet` file, a folder of `.npz` files, or "
        "`package.module:function`",
    )
    task: Literal["classification", "tokens", "multi-label", "regression"] | None = Field(
        None,
        description="the kind of the targets ([tasks.md](tasks.md)). Left out: inferred from them: whole numbers are "
        "classes, of a sample or of each of its positions (tokens); booleans are labels (multi-label); floats are a "
        "regression",
    )
    shift: str | None = Field(
        None,
        description="the shift: how the data of clusters differ (the kind of heterogeneity). A registered name or "
        '`package.module:function`. Left out: the default of the data set, else `"rotation"`',
    )
    sizes: list[Annotated[int, Field(ge=1)]] | None = Field(
        None,
        description="number of peers in each cluster; the sum must be `peers`. Left out: the ratio of the shift, if "
        "it has one, else equal numbers",
    )
    normalise: Literal["standard", "half", "unit"] | None = Field(
        None,
        description='how inputs are scaled. `"standard"`: to mean 0 and standard deviation 1 per channel; `"half"`: '
        'from 0..1 to -1..1; `"unit"`: not scaled. Left out: the default of the data set, else `"standard"`; for your '
        'own data `"unit"`',
    )
    scale: Annotated[
        Any,
        pydantic.AfterValidator(_path_or_table),
        pydantic.WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
    ] = Field(
        None,
        description="constants that all peers use, instead of `normalise`: the path of a TOML file, as "
        "`homophily scale` writes it, or a table with the same keys: `mean` and `std` of inputs, `fill` for missing "
        "values, `classes`, `class_names`, `target_mean`, `target_std`. Left out: constants are computed from the data",
    )
    train: _amount(1, "all") = Field(  # type: ignore[valid-type]
        None,
        description='training samples per peer; `"all"`: the whole training set is divided among peers. Left out: the '
        "default of the data set, else 20; for your own data all",
    )
    validation: int | None = Field(
        None,
        ge=0,
        description="validation samples per peer, for `training.patience`, `method.losses` and `merge_guard`. Left "
        "out: 0; for your own data all of `validation_x`",
    )
    test: _amount(1, "all") = Field(  # type: ignore[valid-type]
        None,
        description='test samples per peer; `"all"`: the whole test set of its cluster. Left out: the default of the '
        "data set, else 100; for your own data all of `test_x`, else a fifth of `x`",
    )
    length: int | None = Field(
        None,
        ge=1,
        le=_LIMIT,
        description="length to which your own samples are padded at the end, if they are sequences of different "
        "lengths. Left out: that of the longest sample of all peers; real peers must give it",
    )
    pad: float | None = Field(
        None,
        allow_inf_nan=False,
        description="value of the padding. Left out: 0. Classes of positions are padded with -100, which losses ignore",
    )
    transform: str | list[str] | None = Field(
        None,
        description="transforms (augmentations) of training inputs, drawn anew for every batch: registered names or "
        "`package.module:name`, one or a list. Left out: none",
    )
    balanced: bool = Field(False, description="whether each peer gets the same number of samples of each class")


class Lora(Table):
    """Low-rank adapters (LoRA) of linear layers; everything else of the network is frozen."""

    rank: int = Field(8, ge=1, le=_LIMIT, description="rank of the adapters")
    targets: list[str] = Field([], description="name patterns of the linear layers that get adapters")
    alpha: float = Field(
        16.0, gt=0, le=1e30, allow_inf_nan=False, description="adapters are multiplied by `alpha` / `rank`"
    )
    train: list[str] = Field(
        [], description="name patterns of layers that are trained in full, such as a new classifier"
    )
    merge: Literal["factors", "freeze-a", "product"] = Field(
        "factors",
        description='what is averaged in a merge. `"factors"`: A and B; `"freeze-a"`: only B is trained, A keeps its '
        'common initial value; `"product"`: the products B A, of which the best approximation of this rank is kept',
    )


class Model(OpenTable):
    """The network that every peer trains."""

    name: str = Field("mlp", description="the network: a registered name or `package.module:name`")
    personal: list[str] = Field(
        [], description="name patterns of layers and buffers that are never merged and never sent (personal layers)"
    )
    frozen: list[str] = Field(
        [],
        description="name patterns of layers that are not trained; they are the same for all peers, are never sent, "
        "and run in evaluation mode",
    )
    cache_features: bool = Field(
        True,
        description="whether the outputs of frozen layers are computed once per sample and kept, if only the layers "
        "after them are trained and this changes no result by more than rounding",
    )
    lora: Lora | None = Field(
        None, description="low-rank adapters (LoRA): see [the keys of LoRA](#modellora). Left out: none"
    )


class Objective(OpenTable):
    """The local objective: what a peer minimises in training, and which layers train in which epochs."""

    name: str = Field("loss", description="the objective: a registered name or `package.module:name`")


class Training(Table):
    """Local training of each peer on its own samples, in every round."""

    optimizer: str = Field(
        "sgd",
        description='the optimizer: `"sgd"`, `"adam"`, `"adamw"`, a class of `torch.optim` such as `"RMSprop"`, or '
        "`package.module:name`; its state is reset at the start of every round",
    )
    optimizer_options: dict[str, Any] = Field(
        {}, description="arguments of the class that `optimizer` names, except `params` and `lr`"
    )
    loss: str = Field(
        "auto",
        description='the loss: `"cross-entropy"`, `"binary-cross-entropy"`, `"mse"` or `package.module:name`; '
        '`"auto"`: that of the task ([tasks.md](tasks.md)). It is a mean over the positions, labels or outputs of a '
        "sample, then over samples",
    )
    objective: Objective = Objective()
    lr: float = Field(
        0.05, gt=0, le=1e30, allow_inf_nan=False, description="the learning rate, before `schedule` and `warmup`"
    )
    lr_by_peer: _by_peer(float, 1e30) = Field(  # type: ignore[valid-type]
        None,
        description="learning rates that replace `lr`: a list with one per peer, or a table by the name of a peer or a "
        "cluster; a peer without a name has its number, from 0. Left out: `lr` for all",
    )
    momentum: float = Field(0.9, ge=0, lt=1, description='momentum of `"sgd"`; other optimizers ignore it')
    nesterov: bool = Field(False, description='whether `"sgd"` uses Nesterov momentum')
    weight_decay: float = Field(
        0.0,
        ge=0,
        le=1e6,
        allow_inf_nan=False,
        description='weight decay: an L2 term added to the gradient; with `"adamw"` decoupled from it',
    )
    clip: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="the largest norm of a peer's gradient over all trained parameters; a longer gradient is scaled to "
        "this norm. Left out: not clipped",
    )
    schedule: Literal["exponential", "cosine", "constant"] = Field(
        "exponential",
        description='how the learning rate changes from round to round. `"exponential"`: it is multiplied by `decay` '
        'after every round; `"cosine"`: it falls along a half cosine over `rounds`; `"constant"`: it stays',
    )
    decay: float = Field(
        0.99, gt=0, le=1, description='factor of the learning rate per round, with `schedule = "exponential"`'
    )
    warmup: int = Field(
        0,
        ge=0,
        le=_LIMIT,
        description="rounds at the start in which the learning rate rises linearly to its full value",
    )
    batch: int = Field(10, ge=1, le=_LIMIT, description="samples per batch")
    epochs: int = Field(3, ge=1, le=_LIMIT, description="local epochs per round")
    epochs_by_peer: _by_peer(int, _LIMIT) = Field(  # type: ignore[valid-type]
        None,
        description="epochs that replace `epochs`: a list or a table, like `lr_by_peer`. Left out: `epochs` for all",
    )
    patience: int = Field(
        0,
        ge=0,
        le=_LIMIT,
        description="early stopping: a peer stops after this many rounds without a lower validation loss, and keeps "
        "its best model; 0: off. Needs `data.validation`",
    )
    stop_on: Literal["loss", "headline"] = Field(
        "loss",
        description='what `patience` watches on the validation samples: `"loss"`, or `"headline"`, the headline metric',
    )


class Method(OpenTable):
    """The method: how a peer selects the peers that it merges with."""

    name: str = Field("kin", description="the method: a registered name or `package.module:name`")


class Topology(OpenTable):
    """The topology (communication graph): which peers can reach each other in one hop."""

    name: str = Field(
        "full",
        description="the graph: a registered name, `package.module:name`, or a `.csv` or `.graphml` file of edges",
    )


class Headline(OpenTable):
    """The headline metric, which scores models on test samples and leads tables and comparisons."""

    name: str | None = Field(
        None,
        description='the metric: `"accuracy"`, `"perplexity"`, `"f1"`, `"auroc"`, `"mse"`, `"mae"`, `"loss"`, '
        "`package.module:name`, or the name of an extra metric given in Python. Left out: that of the task "
        "([tasks.md](tasks.md))",
    )
    better: Literal["higher", "lower"] | None = Field(
        None, description="whether a higher or a lower value is better; needed for a function of your own"
    )


class TrackerTable(OpenTable):
    """An experiment tracker, or a file, in which a run is logged round by round."""

    name: str = Field(description="the tracker: a registered name or `package.module:name`")


class Config(Table):
    """All settings of one run.

    ``homophily.run`` makes it from nested keys or a TOML file. ``run.config`` is the config of a run with every default
    filled in. It is immutable: to change a key, pass nested keys to the next run.
    """

    seed: int = Field(0, ge=0, lt=1 << 63, description="seed of all random draws")
    peers: int | None = Field(
        None,
        ge=1,
        le=10**7,
        description="number of peers. Left out: the default of the data set, else 60; for your own data the number of "
        "peers in it",
    )
    rounds: int = Field(60, ge=1, le=_LIMIT, description="number of rounds; in each, peers train and then merge")
    score: Literal["after-merge", "after-training"] = Field(
        "after-merge",
        description="which models are scored on the test samples: those after the merge, or those after local "
        "training, before the merge",
    )
    merge: str = Field(
        "uniform",
        description="the aggregation rule (merge), which combines a peer's model with its partners' models: a "
        "registered name or `package.module:name`",
    )
    merge_guard: float | None = Field(
        None,
        ge=1,
        allow_inf_nan=False,
        description="a model whose loss on the peer's own validation samples is more than this many times that of its "
        "own model is left out of the merge, and counted. Costs one forward pass over the validation samples for each "
        "model to merge. Needs `data.validation`. Left out: every model is merged",
    )
    topology: Topology = Topology()
    engine: Literal["auto", "stacked", "vectorised", "one-by-one"] = Field(
        "auto",
        description='how peers are trained: `"stacked"` layer by layer for all peers at once, `"vectorised"` with '
        '`torch.vmap`, `"one-by-one"` in a loop; `"auto"`: the fastest that supports the network',
    )
    precision: Literal["full", "fast", "bf16"] = Field(
        "full",
        description='precision of matrix products. `"full"`: that of float32; `"fast"`: that of TF32 on a GPU, which '
        'is faster; `"bf16"`: the network computes in bfloat16 where that is safe (torch.autocast), and its parameters '
        "stay float32",
    )
    compile: Literal["auto", "always", "never"] = Field(
        "auto",
        description="whether the engine `vectorised` compiles its training step for a GPU (torch.compile, which can "
        'take minutes). `"auto"`: if the run is long, and a measurement shows that it is faster',
    )
    init: Literal["common", "independent"] = Field(
        "common",
        description='initial weights. `"common"`: the same for all peers; `"independent"`: each peer draws its own',
    )
    contacts: _amount(1, "all") = Field(  # type: ignore[valid-type]
        "all",
        description="the largest number of peers that a peer knows, drawn at random from those within reach (in a "
        'partial topology, within the hops of the method); `"all"`: all peers within reach',
    )
    evaluate: int = Field(
        1, ge=1, le=_LIMIT, description="models are scored every this many rounds, and after the last"
    )
    checkpoint: int = Field(
        10, ge=1, le=_LIMIT, description="a checkpoint is saved every this many rounds, and after the last"
    )
    record: bool = Field(
        True,
        description="whether scores of each peer, merges, similarities and the method's diagnostics are recorded by "
        "round, in the folder `history` of the run",
    )
    extra_metrics: list[str] = Field(
        [],
        description="more metrics beside the headline metric: your own, each as `package.module:name`, or names as in "
        "`headline.name`",
    )
    tracker: list[TrackerTable] | None = Field(
        None,
        description="where the run is logged round by round ([trackers.md](trackers.md)): a name such as "
        '`"tensorboard"`, a table with a `name` and [keys of a tracker](#keys-of-a-tracker), or a list of these. '
        "Left out: only in the run folder",
    )
    headline: Headline = Headline()
    data: Data = Data()
    model: Model = Model()
    training: Training = Training()
    method: Method = Method()
    privacy: Privacy | None = Field(
        None,
        description="differential privacy of what peers release: see [the keys of privacy](#privacy). Left out: none",
    )

    def toml(self) -> dict[str, Any]:
        """The config as nested tables that TOML can hold, without the keys that were left out."""
        return self.model_dump(exclude_none=True)


TABLES: dict[str, type[Table]] = {
    "data": Data, "model": Model, "training": Training, "method": Method, "topology": Topology, "headline": Headline,
    "privacy": Privacy,
}  # fmt: skip
