"""Reads the folder of a comparison: which runs it has, and their table. It needs no simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from homophily.atomic_io import read_json, write_json
from homophily.config.overlay import flat
from homophily.errors import UserError
from homophily.plugins.registry import GIVEN
from homophily.runs.frame import joined_frame
from homophily.runs.reader import Run
from homophily.runs.statistics import averaged, fairness

if TYPE_CHECKING:
    import pandas as pd

_FILE, _OLD_FILE = "comparison.json", "asked.json"
_FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """A run of a comparison."""

    folder: str  # inside the comparison's
    method: str  # its name in tables
    seed: int
    swept: dict[str, Any] = field(default_factory=dict)  # the run's values of the swept keys that apply to its method

    @property
    def key(self) -> tuple[str, int, str]:
        """Runs with an equal key are the same run."""
        return self.method, self.seed, repr(sorted(self.swept.items()))


@dataclass(frozen=True)
class Contents:
    """What a comparison's folder holds: its file ``comparison.json``."""

    shared: dict[str, Any]  # dotted keys and values that all runs were asked to have
    methods: dict[str, dict[str, Any]]  # the [method] table that was asked for, by the method's name in tables
    swept: list[str]  # dotted keys in which runs differ
    runs: list[Entry]

    @classmethod
    def read(cls, folder: Path) -> Contents | None:
        """The contents of a folder; None if it is not the folder of a comparison."""
        path = folder / _FILE
        if path.is_file():
            found = read_json(path)
            try:
                if found["format"] != _FORMAT:
                    raise UserError(f"{path}: its format is {found['format']}, and this version reads {_FORMAT}")
                runs = [Entry(**one) for one in found["runs"]]
                return cls(found["shared"], found["methods"], found["swept"], runs)
            except (KeyError, TypeError) as error:
                raise UserError(f"{path} is damaged: {error}") from error
        return _old_contents(folder) if (folder / _OLD_FILE).is_file() else None

    def write(self, folder: Path) -> None:
        write_json(folder / _FILE, {"format": _FORMAT, **asdict(self)})


def _old_contents(folder: Path) -> Contents:
    """The contents of a folder that lists the configs of all its runs, without the methods' names in tables."""
    asked, runs, methods = read_json(folder / _OLD_FILE), [], {}
    found = {path.name: Run(path).config for path in sorted(folder.iterdir()) if (path / "config.toml").is_file()}
    by_seed = sorted(found.items(), key=lambda item: item[1].seed)
    for name, config in by_seed:
        given = config.method.name == GIVEN
        method = name.removesuffix(f"-{config.seed}") if given else config.method.name
        runs.append(Entry(name, method, config.seed))
        methods[method] = config.method.model_dump() if given else {"name": method}
    for config in asked:
        if config["method"]["name"] in methods:
            methods[config["method"]["name"]] = config["method"]
    shared = {key: value for key, value in flat(asked[0]).items() if is_shared(key)} if asked else {}
    for _, config in by_seed[:1]:
        shared |= {key: GIVEN for key, value in flat(config.toml()).items() if value == GIVEN and is_shared(key)}
    return Contents(shared, methods, [], runs)


def is_shared(key: str) -> bool:
    """Whether all runs of a comparison have the same value of a dotted key unless it is swept."""
    return key != "seed" and not key.startswith("method.")


@dataclass(frozen=True)
class Row:
    """A line of a comparison's table: the runs of a method with the same values of the swept keys, one per seed."""

    name: str
    method: str
    swept: dict[str, Any]
    runs: list[Run]


class Comparison:
    """Reads a comparison's folder: ``rows``, ``runs``, ``table()``, ``frame()``."""

    def __init__(self, path: Path | str, model: nn.Module | None = None) -> None:
        """path: the folder of a comparison; model: the network, if the runs began with a model object."""
        self.path = Path(path)
        found = Contents.read(self.path)
        if found is None:
            raise UserError(f"{self.path} is not a comparison: it has no {_FILE}")
        self._model = model
        self._entries, self._swept = ordered(found.runs), found.swept
        self.left_out: dict[str, str] = {}

    @property
    def methods(self) -> list[str]:
        """The names of the methods."""
        return list(dict.fromkeys(one.method for one in self._entries))

    @property
    def seeds(self) -> list[int]:
        """The seeds that some run has."""
        return list(dict.fromkeys(one.seed for one in self._entries))

    @property
    def swept(self) -> list[str]:
        """The config keys, besides the seed and the method, in which the runs differ."""
        return list(self._swept)

    @property
    def unfinished(self) -> list[Path]:
        """The folders of runs that have not begun or not finished; tables leave these runs out."""
        return [self.path / one.folder for one in self._entries if not self._finished(one)]

    @property
    def rows(self) -> list[Row]:
        """The finished runs, grouped by method and values of the swept keys."""
        return self._grouped("summary.json")

    @property
    def begun(self) -> list[Row]:
        """The runs that have begun, finished or not, grouped like ``rows``."""
        return self._grouped("config.toml")

    def _grouped(self, file: str) -> list[Row]:
        """The runs whose folders have this file."""
        short, found = short_names(self._swept), dict[str, Row]()
        for one in self._entries:
            if not (self.path / one.folder / file).is_file():
                continue
            swept = {key: one.swept[key] for key in self._swept if key in one.swept}
            name = " ".join([one.method, *(f"{short[key]}={value}" for key, value in swept.items())])
            row = found.setdefault(name, Row(name, one.method, swept, []))
            row.runs.append(Run(self.path / one.folder, self._model))
        return list(found.values())

    @property
    def runs(self) -> dict[str, list[Run]]:
        """The finished runs by the names of the rows: by method, and the values of swept keys."""
        return {row.name: row.runs for row in self.rows}

    def table(self, fair: bool = False) -> dict[str, dict[str, Any]]:
        """For each row, mean and standard deviation over seeds of all that a summary has: {"mean": ..., "std": ...}.

        None if the number of one seed is not known, as the accuracy of a run whose peers have diverged. With a sweep, a
        row also has its ``method`` and its values of the ``swept`` keys. fair: whether to add ``worst_tenth``, the mean
        score of the worst tenth of the peers, and ``std_over_peers``, the standard deviation of scores over peers.
        """
        out = {}
        for row in self.rows:
            summaries = [{**run.summary, **(fairness(run.headline, run.scores) if fair else {})} for run in row.runs]
            which = {"method": row.method, "swept": row.swept} if self._swept else {}
            out[row.name] = {**which, **averaged(summaries)}
        return out

    def frame(self) -> pd.DataFrame:
        """All metrics of all finished runs by round, as a pandas DataFrame.

        Its columns are method, seed, the swept keys, and those of ``Run.frame()``: round, peer, cluster, metric, value.
        A swept key that a method does not have is missing in its rows.
        """
        parts = []
        for row in self.rows:
            swept = {key: row.swept.get(key) for key in self._swept}
            parts += [({"method": row.method, "seed": run.config.seed, **swept}, run.frame()) for run in row.runs]
        return joined_frame(parts)

    def _finished(self, one: Entry) -> bool:
        return (self.path / one.folder / "summary.json").is_file()


def narrowed(whole: Comparison, entries: Sequence[Entry], left_out: Mapping[str, str]) -> Comparison:
    """A comparison with some of its runs, in their order. left_out: what cannot be compared, and why."""
    found = Comparison(whole.path, whole._model)
    found._entries, found.left_out = list(entries), dict(left_out)
    found._swept = [key for key in whole._swept if len({repr(one.swept.get(key)) for one in entries}) > 1]
    return found


def ordered(entries: Sequence[Entry]) -> list[Entry]:
    """By method in order of appearance, then by the values of swept keys, then by seed."""
    first: dict[str, int] = {}
    for one in entries:
        first.setdefault(one.method, len(first))

    def values(one: Entry) -> list[tuple[bool, Any]]:
        numbers = (int, float)
        return [
            (isinstance(v, numbers), v if isinstance(v, numbers) else repr(v)) for _, v in sorted(one.swept.items())
        ]

    return sorted(entries, key=lambda one: (first[one.method], values(one), one.seed))


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Short names of dotted keys: the last part of each, if no other key ends with it; a table's for its name."""
    last = {key: key.removesuffix(".name").rpartition(".")[2] for key in keys}
    ends = list(last.values())
    return {key: end if ends.count(end) == 1 else key for key, end in last.items()}
