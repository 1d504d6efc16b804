"""Studies of kin: the families it finds, its error rates, and the accuracy of its models.

    python benchmarks/kin.py grouping       precision and recall before training
    python benchmarks/kin.py papers         the same in the settings of the papers' tables
    python benchmarks/kin.py baselines      compared with PACFL and gradient cosines
    python benchmarks/kin.py calibration    how often it finds a difference although there is none
    python benchmarks/kin.py families       how often it mistakes families for a continuum, and the reverse
    python benchmarks/kin.py power          samples needed by the formula, and whether they were enough
    python benchmarks/kin.py accuracy       training: --set twelve, twenty or none

Each study prints a Markdown table row by row; --out also writes it to a file. --budget stops after so many seconds, and
--jobs uses several processes (with one thread each, all on the same GPU if there is one).
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
    "grouping": (kin_grouping, 0, 5, 100),  # first seed, number of seeds, and peers if the number is fixed
    "papers": (kin_papers, 0, 3, None),
    "baselines": (kin_baselines, 0, 5, 100),
    "calibration": (kin_calibration, 0, 100, None),
    "families": (kin_families, 1000, 10, None),  # seeds that were not used to choose any setting
    "power": (kin_power, 0, 5, 100),
    "accuracy": (kin_accuracy, 0, 5, 100),
}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--data", nargs="+", help="data sets (default: the study's)")
    parser.add_argument("--network", nargs="+", help="names in kin_settings.NETWORKS (default: the data set's)")
    parser.add_argument("--samples", nargs="+", type=int, help="samples per peer (default: the study's)")
    parser.add_argument("--shift", nargs="+", choices=list(SHIFTS), help="default: all")
    parser.add_argument("--peers", type=int, help="default: the study's")
    parser.add_argument("--first", type=int, help="the first seed")
    parser.add_argument("--seeds", type=int, dest="count", help="number of seeds (default: the study's)")
    parser.add_argument("--set", choices=list(kin_accuracy.SETS), default="twelve", help="accuracy: which rows")
    parser.add_argument("--rounds", type=int, help="accuracy: default: the row's")
    parser.add_argument(
        "--store", type=Path, default=Path("results/kin"), help="accuracy: folder for the results of runs"
    )
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
