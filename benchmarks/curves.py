"""Draws the methods of a comparison round by round: accuracy, and the share of merges within the true cluster.

homophily compare methods=local,random,panm,dac,kin,oracle seeds=0,1,2 --out runs/demo
python benchmarks/curves.py runs/demo docs/demo.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from homophily import Comparison, Run
from homophily.report.plots import COLOURS, pyplot

PANELS = {
    "accuracy": ("accuracy, %", 1.0),
    "same_cluster_merges": ("same-cluster merges, %", 100.0),
}  # title and factor


def curve(runs: list[Run], field: str) -> tuple[np.ndarray, np.ndarray]:
    """Rounds, and for each seed the values of a field; rounds in which a seed has no value are left out."""
    lines = zip(*(run.metrics() for run in runs), strict=True)
    kept = [line for line in lines if all(seed.get(field) is not None for seed in line)]
    return np.array([line[0]["round"] for line in kept]), np.array([[seed[field] for seed in line] for line in kept])


def draw(found: dict[str, list[Run]], path: Path) -> None:
    """A line is the mean over seeds; its band goes from the lowest to the highest seed."""
    plt = pyplot()
    figure, axes = plt.subplots(1, len(PANELS), figsize=(9.5, 3.6), layout="constrained")
    for axis, (field, (title, factor)) in zip(axes, PANELS.items(), strict=True):
        for (method, runs), colour in zip(found.items(), COLOURS, strict=False):
            rounds, values = curve(runs, field)
            if not len(rounds):
                continue
            style = {"linestyle": (0, (4, 3)), "zorder": 3} if method == "oracle" else {}
            axis.plot(rounds, factor * values.mean(1), color=colour, lw=1.6, label=method, **style)
            axis.fill_between(
                rounds, factor * values.min(1), factor * values.max(1), color=colour, alpha=0.15, linewidth=0
            )
        axis.set(title=title, xlabel="round", ylim=(0, 103))
        axis.grid(axis="y", color="#dddddd", lw=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, loc="outside right center")
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    draw(Comparison(source).runs, target)
