"""What a report reads: run folders, comparisons and the state folders of real peers, finished or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from homophily.atomic_io import in_use
from homophily.errors import UserError
from homophily.plugins.registry import GIVEN
from homophily.report.sweep_figure import Panel, panels
from homophily.runs.comparison import Comparison, Contents
from homophily.runs.headline import Headline
from homophily.runs.history import History, Numbers
from homophily.runs.reader import Run

_LONGEST_NAME = 80


class Source:
    """A run's folder and what is known of its peers."""

    def __init__(self, run: Run) -> None:
        self.run, self.path = run, run.path

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        return self.run.metrics()

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """None: the run has not finished."""
        return self.run.summary if self.run.finished else None

    @cached_property
    def scores(self) -> dict[str, Any] | None:
        return self.run.scores if self.run.finished else None

    @cached_property
    def score(self) -> Headline:
        """The metric by which the run is judged."""
        return self.run.headline

    @property
    def config(self) -> Any:
        return self.run.config

    @property
    def seed(self) -> int:
        return int(self.config.seed)

    @property
    def rounds(self) -> int:
        """Completed rounds."""
        return int(self.metrics[-1]["round"]) if self.metrics else 0

    @cached_property
    def state(self) -> str:
        if self.run.finished:
            return "finished"
        return "running" if in_use(self.path) else "stopped"

    @property
    def progress(self) -> str:
        of_all = f"round {self.rounds} of {self.config.rounds}"
        return f"{self.rounds} rounds" if self.state == "finished" else of_all

    @cached_property
    def history(self) -> History | None:
        """What was recorded by round; None: nothing."""
        return self.run.history if self.run.recorded else None

    @cached_property
    def peers(self) -> int:
        if self.scores is not None:
            return len(self.scores["loss"])
        return int(self.config.peers or 0) if self.history is None else self.history.total

    @cached_property
    def clusters(self) -> list[str] | None:
        """The name of each peer's cluster; None: not known."""
        if self.scores is not None:
            return self.scores["cluster"]  # type: ignore[no-any-return]
        complete = self.history is not None and len(self.history.peers) == self.peers
        return self.history.clusters if self.history is not None and complete else None

    @cached_property
    def cluster_order(self) -> list[str]:
        """The names of the clusters in the order of the metrics."""
        field = f"{self.score.name}_by_cluster"
        return list(next((line[field] for line in self.metrics if line.get(field)), {}))

    @cached_property
    def names(self) -> list[str]:
        """The names of the peers; empty if they have none."""
        if self.scores is not None:
            return [shortened(name) for name in self.scores["peer"] or ()]
        known = {} if self.history is None else self.history.names
        return [shortened(known[peer]) for peer in range(self.peers)] if len(known) == self.peers else []

    @cached_property
    def peer_scores(self) -> Numbers | None:
        """[N] the score of each peer, final or last recorded; NaN: not known. None: no peer has one."""
        if self.scores is not None:
            return np.array([np.nan if v is None else v for v in self.scores[self.score.name]], dtype=np.float64)
        if self.history is None or not len(self.history.rounds):
            return None
        found = np.full(self.peers, np.nan)
        found[self.history.peers] = self.history.scores[self.score.name][-1]
        return found

    @property
    def scored_round(self) -> int:
        """The round of ``peer_scores``."""
        return self.rounds if self.scores is not None or self.history is None else int(self.history.rounds[-1])

    def name(self, peer: int) -> str:
        return self.names[peer] if self.names else f"peer {peer}"

    def column(self, field: str) -> tuple[list[int], list[float]]:
        """The rounds in which a field of the metrics is known, and its values."""
        known = [(line["round"], line[field]) for line in self.metrics if line.get(field) is not None]
        return [round for round, _ in known], [float(value) for _, value in known]

    @property
    def given_in_python(self) -> bool:
        """Whether the config names objects that only a Python program can give again."""
        return GIVEN in str(self.config.toml())


Groups = Mapping[str, Sequence[Source]]  # the runs of each method, in order of seeds


@dataclass(frozen=True)
class Compared:
    """The runs of a comparison, by row of its table."""

    groups: Groups
    methods: int
    panels: Sequence[Panel] = ()  # scores against swept keys

    @classmethod
    def read(cls, path: Path) -> Compared:
        """The runs of a comparison's folder that have begun."""
        found = Comparison(path)
        groups = {row.name: [Source(run) for run in row.runs] for row in found.begun}
        if not groups:
            raise UserError(f"{path} is a comparison in which no run has begun")
        return cls(groups, len(found.methods), panels(found))


def shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def is_run(path: Path) -> bool:
    return (path / "config.toml").is_file()


def is_peer(path: Path) -> bool:
    return is_run(path) and (path / "status.json").is_file()


def is_comparison(path: Path) -> bool:
    return Contents.read(path) is not None


def alike(sources: Sequence[Source]) -> dict[str, list[Source]]:
    """Runs that differ only in their seeds, together: by the method's name, or by a folder's if names occur twice."""
    grouped: dict[str, list[Source]] = {}
    for source in sources:
        grouped.setdefault(str({**source.config.toml(), "seed": None}), []).append(source)
    methods = [runs[0].config.method.name for runs in grouped.values()]
    return {
        method if methods.count(method) == 1 else shortened(str(runs[0].path)): sorted(runs, key=lambda one: one.seed)
        for method, runs in zip(methods, grouped.values(), strict=True)
    }
