"""kin, measured: who it says is alike, how often it errs, and what its models are worth.

    python benchmarks/kin.py grouping       precision and recall before training
    python benchmarks/kin.py papers         the same in the settings of the papers' tables
    python benchmarks/kin.py baselines      the same against PACFL and gradient cosines
    python benchmarks/kin.py calibration    how often it sees kinds of data where there are none
    python benchmarks/kin.py families       families taken for continua, and the other way round
    python benchmarks/kin.py power          samples needed, by formula, and whether they were enough
    python benchmarks/kin.py accuracy       training: --set twelve, twenty or none

Each prints a markdown table row by row; --out writes it to a file as well. --budget SECONDS stops in time, and --jobs
works in several processes (each with one thread, all on the same GPU where there is one).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import kin_accuracy
import kin_baselines
import kin_calibration
import kin_families
import kin_grouping
import kin_papers
import kin_power
from kin_settings import SHIFTS
from kin_work import write

STUDIES = {
    "grouping": (kin_grouping, 0, 5, 100),  # first seed, how many, and peers where there is one number of them
    "papers": (kin_papers, 0, 3, None),
    "baselines": (kin_baselines, 0, 5, 100),
    "calibration": (kin_calibration, 0, 100, None),
    "families": (kin_families, 1000, 10, None),  # no seed that anything was set by
    "power": (kin_power, 0, 5, 100),
    "accuracy": (kin_accuracy, 0, 5, 100),
}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--data", nargs="+", help="data sets; left out: the study's own")
    parser.add_argument("--network", nargs="+", help="of kin_settings.NETWORKS; left out: the data set's own")
    parser.add_argument("--samples", nargs="+", type=int, help="a peer; left out: the study's own")
    parser.add_argument("--shift", nargs="+", choices=list(SHIFTS), help="left out: all")
    parser.add_argument("--peers", type=int, help="left out: the study's own")
    parser.add_argument("--first", type=int, help="the first seed")
    parser.add_argument("--seeds", type=int, dest="count", help="how many; left out: the study's own")
    parser.add_argument("--set", choices=list(kin_accuracy.SETS), default="twelve", help="accuracy: which rows")
    parser.add_argument("--rounds", type=int, help="accuracy: left out: the row's own")
    parser.add_argument("--store", type=Path, default=Path("results/kin"), help="accuracy: where runs are added up")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(words)
    module, first, count, peers = STUDIES[options.study]
    options.peers = peers if options.peers is None else options.peers
    first = first if options.first is None else options.first
    options.seeds = range(first, first + (count if options.count is None else options.count))
    seeds = f"seeds {options.seeds[0]} to {options.seeds[-1]}"
    write(f"{options.study}, {seeds}", module.study(options), options)


if __name__ == "__main__":
    main()
