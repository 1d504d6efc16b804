"""The constants of ``data.scale``, on which all peers agree: scale of inputs, missing values, classes, targets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pydantic
import tomli_w
import torch
from pydantic import Field
from torch import Tensor

from homophily.atomic_io import write_text
from homophily.config.overlay import read
from homophily.data.missing import imputed
from homophily.data.normalise import Scale
from homophily.data.preparation import Preparation, raw_kind
from homophily.data.task_kinds import REGRESSION, TaskKind
from homophily.data.types import FederatedData, Split
from homophily.errors import UserError
from homophily.plugins.parameters import parsed, refuse_unknown

_DIGITS = 9  # significant digits that determine a float32
_Number = Annotated[float, Field(ge=-1e30, le=1e30, allow_inf_nan=False)]


def _deviation(value: float) -> float:
    if value == 0 or 1e-30 <= value <= 1e30:
        return value
    raise ValueError("must be a finite standard deviation greater than 0, or 0 for a constant feature")


_Deviation = Annotated[float, pydantic.AfterValidator(_deviation)]


class AgreedConstants(pydantic.BaseModel):
    """The content of ``data.scale``. Lists have a value for each channel or feature (dimension 1 of the inputs)."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    mean: list[_Number] | None = None  # of the inputs; pixels are divided by 255 before
    std: list[_Deviation] | None = None  # of the inputs; 0: a constant, which becomes 0
    fill: list[_Number] | None = None  # for missing values, in the units of the inputs before scaling; None: the mean
    classes: int | None = Field(None, ge=2)
    class_names: list[str] | None = None  # the classes in order, if targets are strings
    target_mean: list[_Number] | None = None  # of the outputs of a regression
    target_std: list[_Deviation] | None = None

    @property
    def table(self) -> dict[str, Any]:
        """As a TOML table, without keys that are not given."""
        return self.model_dump(exclude_none=True)

    @property
    def digest(self) -> str:
        """A hash that differs if a constant differs."""
        table = {"fill": self.mean, **self.table}
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class AgreedScale:
    """Agreed constants, and the key and file that error messages name."""

    constants: AgreedConstants
    where: str = "data.scale"

    @classmethod
    def read(cls, given: str | Mapping[str, Any]) -> AgreedScale:
        """The constants of ``data.scale``: a table, or the path of a TOML file."""
        if not isinstance(given, str):
            return cls(_checked(given, "data.scale"))
        try:
            return cls(_checked(read(Path(given), "file"), ""), f"data.scale = {given!r}")
        except UserError as error:
            raise UserError(f"data.scale = {given!r}: {error}") from None

    def scale(self, reference: Tensor) -> Scale:
        """The scale of inputs like ``reference`` [n, C, ...]; without mean and std, values stay as they are."""
        mean, std = self.constants.mean, self.constants.std
        if mean is None or std is None:
            return Scale()
        if raw_kind(reference) == "tokens":
            raise UserError(f"{self.where}: mean and std are given, but whole numbers (tokens) are not scaled")
        self._check_length("mean", mean, reference)
        deviation = _shaped(std, reference)
        factor = torch.where(deviation == 0, 0.0, 1.0 / deviation)
        return Scale(_shaped(mean, reference).float(), factor.float())

    def prepare(self, splits: list[Split], scale: Scale) -> tuple[list[Split], Tensor | None]:
        """Scaled splits without missing values, and what fills these [N, C, ...]; None: inputs that are not floats."""
        x, peers = splits[0].x, len(splits[0].start)
        if not x.is_floating_point():
            return splits, None
        missing = any(bool(split.x.isnan().any()) for split in splits)
        given = self.constants.mean if self.constants.fill is None else self.constants.fill
        if given is None:
            if missing:
                raise UserError(f"{self.where}: the data has missing values (NaN), so fill or mean must be given")
            return splits, None
        self._check_length("fill", given, x)
        fill = scale(_shaped(given, x).float())
        if missing:
            splits = [Split(imputed(split.x, fill), split.y, split.start, split.count) for split in splits]
        return splits, fill.expand(peers, *fill.shape[1:])

    @property
    def class_names(self) -> tuple[list[str] | None, str]:
        """The agreed names of the classes (None: not given), and what error messages call them."""
        return self.constants.class_names, f"class_names of {self.where}"

    def classes(self, found: int | None, kind: TaskKind) -> int | None:
        """The agreed number of classes, if it is given. found: that of the data; None: its kind has no classes."""
        names = self.constants.class_names
        agreed = self.constants.classes if names is None else len(names)
        if agreed is None:
            return found
        if found is None:
            raise UserError(f"{self.where}: classes = {agreed}, but the data is a {kind.name} task")
        if found > agreed:
            raise UserError(f"{self.where}: classes = {agreed}, but the data has {found} classes")
        return agreed

    def targets(self, y: Tensor, kind: TaskKind) -> tuple[Tensor, Tensor] | None:
        """Mean and standard deviation [outputs] of targets like ``y`` [n, outputs]; None: they are not given."""
        mean, std = self.constants.target_mean, self.constants.target_std
        if mean is None or std is None:
            return None
        if kind is not REGRESSION:
            raise UserError(f"{self.where}: target_mean and target_std are given, but the data is a {kind.name} task")
        outputs = y.flatten(1).shape[1]
        if len(mean) != outputs:
            raise UserError(
                f"{self.where}: target_mean has {len(mean)} values, but must have {outputs}, one per output"
            )
        return torch.tensor(mean), torch.tensor(std)

    def _check_length(self, key: str, values: list[float], x: Tensor) -> None:
        if len(values) != x.shape[1]:
            wanted = f"one for each channel or feature of inputs of the shape {list(x.shape[1:])}"
            raise UserError(f"{self.where}: {key} has {len(values)} values, but must have {x.shape[1]}, {wanted}")


def _checked(table: Mapping[str, Any], key: str) -> AgreedConstants:
    refuse_unknown(key, table, list(AgreedConstants.model_fields))
    found: AgreedConstants = parsed(AgreedConstants, table, key)
    above = f"{key}." if key else ""
    for first, second in (("mean", "std"), ("target_mean", "target_std")):
        ours, theirs = getattr(found, first), getattr(found, second)
        if (ours is None) != (theirs is None):
            raise UserError(f"{above}{first} and {above}{second} must be given together")
        if ours is not None and len(ours) != len(theirs):
            raise UserError(f"{above}{second} has {len(theirs)} values, but {above}{first} has {len(ours)}")
    names = found.class_names
    if names is not None and (len(set(names)) < len(names) or len(names) < 2):
        raise UserError(f"{above}class_names must be at least two names, each once")
    if names is not None and found.classes not in (None, len(names)):
        raise UserError(f"{above}classes = {found.classes}, but {above}class_names has {len(names)} names")
    return found


def _shaped(values: list[float], x: Tensor) -> Tensor:
    """float64, to broadcast against samples [n, C, ...]."""
    return torch.tensor(values, dtype=torch.float64).view(1, -1, *(1 for _ in x.shape[2:]))


def scale_by(normalise: str | AgreedScale, reference: Tensor) -> Scale:
    """The scale of inputs: agreed by all peers, or computed from ``reference`` [n, C, ...]."""
    return normalise.scale(reference) if isinstance(normalise, AgreedScale) else Scale.of(normalise, reference)


def classes_by(normalise: str | AgreedScale, found: int | None, kind: TaskKind) -> int | None:
    """The number of classes: agreed by all peers, or ``found`` in the data (None: its kind has no classes)."""
    return normalise.classes(found, kind) if isinstance(normalise, AgreedScale) else found


def target_scale_by(normalise: str | AgreedScale, y: Tensor, kind: TaskKind) -> tuple[Tensor, Tensor] | None:
    """Mean and standard deviation [outputs] of targets: agreed by all peers, or those of ``y`` [n, ...].

    None: the targets are not those of a regression.
    """
    agreed = normalise.targets(y, kind) if isinstance(normalise, AgreedScale) else None
    if agreed is not None or kind is not REGRESSION:
        return agreed
    flat = y.flatten(1).double()
    return flat.mean(0).float(), flat.std(0, correction=0).float()


def own_constants(normalise: str | AgreedScale, kind: TaskKind, declared: int | None = None) -> tuple[str, ...]:
    """The keys of ``data.scale`` about targets that are computed from samples, since they are not agreed.

    declared: the number of classes, if it does not follow from the samples.
    """
    found = []
    agreed = normalise.constants if isinstance(normalise, AgreedScale) else AgreedConstants()
    if kind.has_classes and declared is None and agreed.classes is None and agreed.class_names is None:
        found.append("classes")
    if kind is REGRESSION and agreed.target_mean is None:
        found += ["target_mean", "target_std"]
    return tuple(found)


def constants_of(data: FederatedData) -> AgreedConstants:
    """The constants of a sample whose inputs were scaled by ``normalise = "standard"``."""
    prepared = data.preparation
    inputs = _input_constants(prepared) if prepared.scale.mean is not None else {}
    targets = {}
    if data.target_scale is not None:
        mean, std = data.target_scale
        targets = {"target_mean": _rounded(mean), "target_std": _rounded(std)}
    names = None if data.class_names is None else list(data.class_names)
    return AgreedConstants(**inputs, classes=data.classes, class_names=names, **targets)


def _input_constants(prepared: Preparation) -> dict[str, list[float]]:
    assert prepared.scale.mean is not None
    assert prepared.scale.factor is not None
    mean, factor = prepared.scale.mean.flatten().double(), prepared.scale.factor.flatten().double()
    never = mean.isnan().nonzero()[:, 0].tolist()
    if never:
        raise UserError(f"data: feature {never[0]} has no value in this sample: choose a sample that has some")
    values = {"mean": _rounded(mean), "std": _rounded(torch.where(factor == 0, 0.0, 1.0 / factor))}
    return values if prepared.fill is None else {**values, "fill": values["mean"]}


def _rounded(values: Tensor) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values.tolist()]


def write_constants(constants: AgreedConstants, path: Path, sample: str) -> None:
    """Write the file that ``data.scale`` names. sample: what the constants were computed from."""
    if path.exists():
        raise UserError(f"{path} already exists: move it away, or name another file with --out")
    heading = f"# Constants on which all peers agree (data.scale), computed by homophily scale from {sample}\n"
    write_text(path, heading + tomli_w.dumps(constants.table))
