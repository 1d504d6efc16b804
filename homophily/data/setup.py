"""From the [data] table to everyone's data: a bundled set under a shift, or the user's own per-peer arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homophily.data.constants import AgreedConstants, AgreedScale, constants_of
from homophily.data.partition import share_out
from homophily.data.shifts import shifts
from homophily.data.sources import sources
from homophily.data.types import FederatedData, PartitionPlan, Source
from homophily.data.user_data import PeerData, read_file, read_folder, share_own
from homophily.errors import UserError
from homophily.plugins.parameters import accepted, checked, must_take, refuse_unknown, taken
from homophily.plugins.registry import GIVEN, import_object

_SHARING = ("shift", "sizes", "normalise", "train", "validation", "test", "balanced")
_DEFAULTS = {"peers": 60, "shift": "rotation", "normalise": "standard", "train": 20, "validation": 0, "test": 100}


@dataclass(frozen=True)
class PreparedData:
    """Everyone's data, and the settings that made it with nothing left out."""

    shares: FederatedData
    settings: dict[str, Any]  # of the [data] table


def prepared_data(
    name: str,
    keys: Mapping[str, Any],
    settings: Mapping[str, Any],
    peers: int | None,
    seed: int,
    arrays: Sequence[PeerData] | None = None,
) -> PreparedData:
    """The data called ``name``. keys: of the source and the shift; settings: how it is partitioned (None: left out)."""
    given = {key: value for key, value in settings.items() if value is not None}
    if "scale" in given and "normalise" in given:
        raise UserError(
            f"data.normalise = {given['normalise']!r}: data.scale is given too, and replaces it; leave one of them out"
        )
    if "scale" in given:
        given["scale"] = AgreedScale.read(given["scale"])
    if arrays is not None:
        return _own(arrays, given, keys, peers, seed)
    if ":" in name:
        function = import_object(name, "data")
        return _made(name, function, keys, given, peers, seed)
    if name in sources:
        return _made(name, sources.get(name), keys, given, peers, seed)
    if name == GIVEN:
        raise UserError("data.name: this run's data was given in Python; hand it over again as data=...")
    if name and Path(name).is_dir():
        return _own(read_folder(name), given, keys, peers, seed)
    if name and Path(name).is_file():
        raise UserError(f"data.name = {name!r}: is a file; own data is a folder with a .npz file for each peer")
    if "/" in name or name.startswith("."):
        raise UserError(f"data.name = {name!r}: there is no such folder")
    raise UserError(f"{sources.unknown(name)}; nor is there a folder of that name")


def sample_constants(
    name: str, keys: Mapping[str, Any], settings: Mapping[str, Any], peers: int | None, seed: int
) -> AgreedConstants:
    """The constants for ``data.scale`` from a sample: the data called ``name``, or one peer's .npz file.

    The other arguments are those of ``prepared_data``; ``normalise`` has no effect.
    """
    if settings.get("scale") is not None:
        raise UserError("data.scale: leave it out, because this command computes the constants from the data")
    arrays = [read_file(Path(name))] if name.endswith(".npz") and name not in sources else None
    data = prepared_data(name, keys, {**settings, "normalise": "standard"}, peers, seed, arrays)
    return constants_of(data.shares)


def _made(
    name: str,
    function: Callable[..., Any],
    keys: Mapping[str, Any],
    given: Mapping[str, Any],
    peers: int | None,
    seed: int,
) -> PreparedData:
    """Data that a function makes: a Source to be shared out, or a list of PeerData."""
    names = accepted(function, ["seed"])
    mine = {key: value for key, value in keys.items() if names is None or key in names}
    asked = checked("data", f"data set {name!r}", function, mine, ["seed"])
    made = function(**asked, **taken(function, {"seed": seed}))
    rest = {key: value for key, value in keys.items() if key not in mine}
    if isinstance(made, Source):
        return _shifted(made, {**asked}, rest, given, peers, seed)
    if isinstance(made, Sequence) and made and all(isinstance(peer, PeerData) for peer in made):
        return _own(made, given, rest, peers, seed, asked)
    raise UserError(f"data.name = {name!r}: must return a Source or a list of PeerData, not {type(made).__name__}")


def _shifted(
    source: Source,
    source_keys: dict[str, Any],
    shift_keys: Mapping[str, Any],
    given: Mapping[str, Any],
    peers: int | None,
    seed: int,
) -> PreparedData:
    refuse_unknown("defaults", source.defaults, ["peers", *_SHARING], f"data set {source.name!r} may have")
    answers = {**_DEFAULTS, **source.defaults, **given}
    count = peers if peers is not None else answers["peers"]
    if not isinstance(count, int) or count < 1:
        raise UserError(f"data set {source.name!r}: defaults.peers must be a whole number of at least 1, not {count!r}")
    shift = shifts.get(answers["shift"])
    passed = ("source", "peers", "seed")
    names = accepted(shift, passed)
    if names is not None:
        owner = f"data set {source.name!r} under shift {answers['shift']!r}"
        refuse_unknown("data", shift_keys, ["name", *_SHARING, "scale", *source_keys, *names], f"{owner} has")
    asked = checked("data", f"shift {answers['shift']!r}", shift, shift_keys, passed)
    must_take(shift, passed, f"data.shift = {answers['shift']!r}", asked)
    plan = shift(source, count, seed, **asked)
    if not isinstance(plan, PartitionPlan):
        raise UserError(f"data.shift = {answers['shift']!r}: must return a PartitionPlan, not {type(plan).__name__}")
    sharing: dict[str, Any] = {key: answers.get(key) for key in _SHARING if key != "shift"}
    sharing["balanced"] = bool(sharing["balanced"])
    normalise, scaling = _scaling(given, answers["normalise"])
    shares = share_out(plan, peers=count, seed=seed, **{**sharing, "normalise": normalise})
    return PreparedData(shares, {**source_keys, **asked, **sharing, **scaling, "shift": answers["shift"]})


def _scaling(given: Mapping[str, Any], normalise: str) -> tuple[str | AgreedScale, dict[str, Any]]:
    """How inputs are scaled, and the settings that say so. normalise: if no constants are agreed."""
    agreed = given.get("scale")
    if agreed is None:
        return normalise, {"normalise": normalise}
    return agreed, {"normalise": None, "scale": agreed.constants.table}


def _own(
    arrays: Sequence[PeerData],
    given: Mapping[str, Any],
    keys: Mapping[str, Any],
    peers: int | None,
    seed: int,
    made_with: Mapping[str, Any] | None = None,
) -> PreparedData:
    """Per-peer arrays as they are: the data says whose it is."""
    refuse_unknown("data", keys, ["name", "train", "validation", "test", "normalise", "scale"], "own data has")
    if given.get("shift", "natural") != "natural":
        raise UserError(
            f"data.shift = {given['shift']!r}: own data is already divided among peers; leave data.shift out"
        )
    for key in ("sizes", "balanced"):
        if given.get(key):
            raise UserError(f"data.{key}: own data is already divided among peers; leave it out")
    if peers is not None and peers != len(arrays):
        raise UserError(f"peers = {peers}: the data is of {len(arrays)} peers")
    sharing = {key: given.get(key) for key in ("train", "validation", "test")}
    normalise, scaling = _scaling(given, given.get("normalise", "unit"))
    shares = share_own(list(arrays), **sharing, seed=seed, normalise=normalise)
    return PreparedData(shares, {**(made_with or {}), **sharing, **scaling, "shift": "natural"})
