"""Turns the [data] table of a config into every peer's data: a data set under a shift, or the user's own arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from homophily.data.constants import AgreedConstants, AgreedScale, constants_of
from homophily.data.generated import Generator
from homophily.data.npz import read_file, read_folder
from homophily.data.packing import packed
from homophily.data.padding import aligned
from homophily.data.partition import partition_source
from homophily.data.peer_data import PeerData
from homophily.data.shifts import shifts
from homophily.data.sources import sources
from homophily.data.tables import reader_of, readers
from homophily.data.task_kinds import CLASSIFICATION
from homophily.data.types import FederatedData, PartitionPlan, Roster, Source
from homophily.data.user_data import partition_user_data
from homophily.errors import UserError
from homophily.plugins.parameters import accepted, checked, keys_of, must_take, refuse_unknown, taken
from homophily.plugins.registry import GIVEN, import_object

_PARTITION_KEYS = ("shift", "sizes", "normalise", "train", "validation", "test", "balanced")
_OWN_KEYS = ("name", "task", "train", "validation", "test", "normalise", "scale", "length", "pad")  # of divided data
_DEFAULTS = {"peers": 60, "shift": "rotation", "normalise": "standard", "train": 20, "validation": 0, "test": 100}

Part = Callable[[int], slice]  # from the number of peers of the federation: the peers that a process has


@dataclass(frozen=True)
class PreparedData:
    """The peers' data, and the complete settings that it was made with, defaults included."""

    shares: FederatedData  # of all peers, or, if it is drawn for each peer by itself, of those asked for
    settings: dict[str, Any]  # of the [data] table
    roster: Roster  # all peers

    @classmethod
    def of_all(cls, shares: FederatedData, settings: Mapping[str, Any]) -> PreparedData:
        """The data of all peers, and its settings but the task."""
        return cls(shares, {**settings, "task": shares.kind.name}, shares.roster)

    def part(self, peers: slice) -> FederatedData:
        """Return the data of some consecutive peers, which must be those asked for, or all."""
        everyone = self.shares.peers == self.roster.peers
        return self.shares.part(peers) if everyone and peers != slice(0, self.roster.peers) else self.shares


def prepared_data(
    name: str,
    keys: Mapping[str, Any],
    settings: Mapping[str, Any],
    peers: int | None,
    seed: int,
    arrays: Sequence[PeerData] | None = None,
    mine: Part = lambda peers: slice(0, peers),
) -> PreparedData:
    """Return every peer's data.

    name: of a data set, a table file or a folder; keys: those of the data set and the shift, or of the table file;
    settings: the other keys of the [data] table, None if left out; arrays: the user's own data, which is used instead
    of ``name``; mine: the peers whose data is made, if each peer's is drawn by itself.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    if "scale" in given and "normalise" in given:
        raise UserError(
            f"data.normalise = {given['normalise']!r}: data.scale is given too, and replaces it; leave one of them out"
        )
    if "scale" in given:
        given["scale"] = AgreedScale.read(given["scale"])
    if arrays is not None:
        return _from_arrays(arrays, given, keys, peers, seed)
    if ":" in name:
        function = import_object(name, "data")
        return _from_function(name, function, keys, given, peers, seed)
    if name in sources:
        return _from_function(name, sources.get(name), keys, given, peers, seed, mine)
    if name == GIVEN:
        raise UserError("data.name: this run's data was given in Python; hand it over again as data=...")
    if name and Path(name).is_dir():
        return _from_arrays(read_folder(name), given, keys, peers, seed)
    if reader_of(name) is not None:
        return _from_table(name, given, keys, peers, seed)
    if name and Path(name).is_file():
        raise UserError(
            f"data.name = {name!r} is a file; your own data must be a .csv or .parquet file with a column that names "
            "the peer, or a folder with one .npz file per peer"
        )
    if "/" in name or name.startswith("."):
        raise UserError(f"data.name = {name!r}: there is no such folder")
    raise UserError(f"{sources.unknown(name)}; there is no folder or table (.csv, .parquet) of that name either")


def sample_constants(
    name: str, keys: Mapping[str, Any], settings: Mapping[str, Any], peers: int | None, seed: int
) -> AgreedConstants:
    """Return the constants for ``data.scale`` from a sample: the data called ``name``, or one peer's file.

    The other arguments are those of ``prepared_data``; ``normalise`` has no effect.
    """
    if settings.get("scale") is not None:
        raise UserError("data.scale: leave it out, because this command computes the constants from the data")
    arrays = None if name in sources else peers_in_file(Path(name), keys)
    if arrays is not None:
        keys = {}
    data = prepared_data(name, keys, {**settings, "normalise": "standard"}, peers, seed, arrays)
    return constants_of(data.shares)


def peers_in_file(path: Path, keys: Mapping[str, Any]) -> list[PeerData] | None:
    """Return the data of the peers in a file, of which there may be one; None: it is not a .npz or table file.

    keys: those of a table file.
    """
    if path.suffix == ".npz":
        return [read_file(path)]
    read = reader_of(path.name)
    return None if read is None else read(path, **_table_keys(str(path), read, keys))


def _table_keys(name: str, read: Callable[..., Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return all keys of a table file, checked."""
    names = [*_OWN_KEYS, *(accepted(read, readers.passed) or ())]
    refuse_unknown("data", keys, names, keys_of(f"the table {name!r}", names))
    return checked("data", f"table {name!r}", read, keys, readers.passed)


def _from_table(
    name: str, given: Mapping[str, Any], keys: Mapping[str, Any], peers: int | None, seed: int
) -> PreparedData:
    """Return the data of a table file with a column that names the peer."""
    read = reader_of(name)
    assert read is not None
    if not Path(name).exists():
        raise UserError(f"{name}: there is no such file")
    asked = _table_keys(name, read, keys)
    if asked["peer"] is None:
        raise UserError(f"data.peer is missing: it names the column of {name} that says to which peer a row belongs")
    return _from_arrays(read(name, **asked), given, {}, peers, seed, asked)


def _from_function(
    name: str,
    function: Callable[..., Any],
    keys: Mapping[str, Any],
    given: Mapping[str, Any],
    peers: int | None,
    seed: int,
    mine: Part = lambda peers: slice(0, peers),
) -> PreparedData:
    """Return the data that a function makes: a Source, which is partitioned, a Generator, or a list of PeerData."""
    names = accepted(function, ["seed"])
    own_keys = {key: value for key, value in keys.items() if names is None or key in names}
    asked = checked("data", f"data set {name!r}", function, own_keys, ["seed"])
    made = function(**asked, **taken(function, {"seed": seed}))
    other_keys = {key: value for key, value in keys.items() if key not in own_keys}
    if isinstance(made, Source):
        return _partitioned(made, {**asked}, other_keys, given, peers, seed)
    if isinstance(made, Generator):
        return _generated(made, {**asked}, other_keys, given, peers, mine)
    if isinstance(made, Sequence) and made and all(isinstance(peer, PeerData) for peer in made):
        return _from_arrays(made, given, other_keys, peers, seed, asked)
    raise UserError(f"data.name = {name!r}: must return a Source or a list of PeerData, not {type(made).__name__}")


def _partitioned(
    source: Source,
    source_keys: dict[str, Any],
    shift_keys: Mapping[str, Any],
    given: Mapping[str, Any],
    peers: int | None,
    seed: int,
) -> PreparedData:
    """Return the data of a source under its shift, partitioned among peers."""
    for key in ("length", "pad"):
        if key in given:
            raise UserError(
                f"data.{key}: only your own data is padded, and {source.name!r} is a data set; leave it out"
            )
    if given.get("task") is not None:
        source = replace(source, task=given["task"])
    defaults = ["peers", *_PARTITION_KEYS]
    refuse_unknown("defaults", source.defaults, defaults, f"data set {source.name!r} may have {', '.join(defaults)}")
    merged = {**_DEFAULTS, **source.defaults, **given}
    count = peers if peers is not None else merged["peers"]
    if not isinstance(count, int) or count < 1:
        raise UserError(f"data set {source.name!r}: defaults.peers must be a whole number of at least 1, not {count!r}")
    shift = shifts.get(merged["shift"])
    passed = ("source", "peers", "seed")
    names = accepted(shift, passed)
    if names is not None:
        owner = f"data set {source.name!r} under shift {merged['shift']!r}"
        allowed = ["name", "task", *_PARTITION_KEYS, "scale", *source_keys, *names]
        refuse_unknown("data", shift_keys, allowed, keys_of(owner, allowed))
    asked = checked("data", f"shift {merged['shift']!r}", shift, shift_keys, passed)
    must_take(shift, passed, f"data.shift = {merged['shift']!r}", asked)
    plan = shift(source, count, seed, **asked)
    if not isinstance(plan, PartitionPlan):
        raise UserError(f"data.shift = {merged['shift']!r}: must return a PartitionPlan, not {type(plan).__name__}")
    partition_settings: dict[str, Any] = {key: merged.get(key) for key in _PARTITION_KEYS if key != "shift"}
    partition_settings["balanced"] = bool(partition_settings["balanced"])
    normalise, scaling = _scaling(given, merged["normalise"])
    shares = partition_source(plan, peers=count, seed=seed, **{**partition_settings, "normalise": normalise})
    settings = {**source_keys, **asked, **partition_settings, **scaling, "shift": merged["shift"]}
    return PreparedData.of_all(shares, settings)


def _generated(
    made: Generator,
    keys: dict[str, Any],
    unknown: Mapping[str, Any],
    given: Mapping[str, Any],
    peers: int | None,
    mine: Part,
) -> PreparedData:
    """Return the data of a generator, which makes as many samples for each peer as the settings say."""
    amounts = ("train", "validation", "test")
    allowed = ["name", "task", *amounts, *keys]
    refuse_unknown("data", unknown, allowed, keys_of(f"data set {made.name!r}", allowed))
    for key in ("shift", "sizes", "balanced", "normalise", "scale", "length", "pad"):
        if given.get(key):
            raise UserError(f"data.{key}: the peers of {made.name!r} have data of their own; leave it out")
    if given.get("task") not in (None, CLASSIFICATION.name):
        raise UserError(f"data.task = {given['task']!r}: {made.name!r} has {CLASSIFICATION.name} targets; leave it out")
    settings: dict[str, Any] = {key: given.get(key, _DEFAULTS[key]) for key in amounts}
    for key, least in zip(amounts, (1, 0, 1), strict=True):
        if not isinstance(settings[key], int) or settings[key] < least:
            raise UserError(f"data.{key} = {settings[key]!r}: {made.name!r} needs a whole number of at least {least}")
    count = _DEFAULTS["peers"] if peers is None else peers
    assert isinstance(count, int)
    if count < made.clusters:
        raise UserError(f"data.clusters = {made.clusters}: must be at most peers, which is {count}")
    everyone = torch.arange(count)
    shares = made.of(everyone[mine(count)], count, [settings[key] for key in amounts])
    roster = Roster(count, made.cluster(everyone, count), shares.cluster_names)
    return PreparedData(shares, {**keys, **settings, "task": shares.kind.name}, roster)


def _scaling(given: Mapping[str, Any], normalise: str) -> tuple[str | AgreedScale, dict[str, Any]]:
    """How inputs are scaled, and the settings that say so. normalise: if no constants are agreed."""
    agreed = given.get("scale")
    if agreed is None:
        return normalise, {"normalise": normalise}
    return agreed, {"normalise": None, "scale": agreed.constants.table}


def _from_arrays(
    arrays: Sequence[PeerData],
    given: Mapping[str, Any],
    keys: Mapping[str, Any],
    peers: int | None,
    seed: int,
    made_with: Mapping[str, Any] | None = None,
) -> PreparedData:
    """Return the user's own data, which is already divided among peers."""
    allowed = [*_OWN_KEYS, *(made_with or ())]
    refuse_unknown("data", keys, allowed, keys_of("your own data", allowed))
    if given.get("shift", "natural") != "natural":
        raise UserError(
            f"data.shift = {given['shift']!r}: your own data is already divided among peers; leave data.shift out"
        )
    for key in ("sizes", "balanced"):
        if given.get(key):
            raise UserError(f"data.{key}: your own data is already divided among peers; leave it out")
    if peers is not None and peers != len(arrays):
        raise UserError(f"peers = {peers}: the data has {len(arrays)} peers")
    arrays, fields = packed(arrays, given.get("length"), given.get("pad", 0))
    length = None
    if fields is None:
        arrays, length = aligned(arrays, given.get("length"), given.get("pad", 0))
    partition_settings = {key: given.get(key) for key in ("train", "validation", "test")}
    normalise, scaling = _scaling(given, given.get("normalise", "unit"))
    if fields is not None and normalise != "unit":
        key = "normalise" if isinstance(normalise, str) else "scale"
        raise UserError(
            f"data.{key}: inputs with named fields ({', '.join(fields.names)}) are not scaled; leave it out"
        )
    shares = partition_user_data(
        list(arrays), **partition_settings, seed=seed, normalise=normalise, task=given.get("task")
    )
    settings = {**(made_with or {}), **partition_settings, **scaling, "shift": "natural", "length": length}
    return PreparedData.of_all(replace(shares, fields=fields), settings)
