"""Draws docs/speed.png from the table of results/engines.md: how many times faster than a plain loop on a GPU.

python benchmarks/chart.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

ROOT = Path(__file__).resolve().parents[1]
COLOURS = {"stacked": "#4477aa", "vectorised": "#66ccee", "one-by-one": "#bbbbbb"}


def read(path: Path) -> dict[str, dict[str, float]]:
    """Read the first table of the page: by row name, how many times faster each engine is."""
    lines = path.read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| ---"))
    found: dict[str, dict[str, float]] = {}
    before = ""
    for line in lines[first + 1 :]:
        if not line.startswith("|"):
            break
        what, engine, _, faster, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        what = what.replace("the same", before)
        before = before if "fast" in what else what.rpartition(", ")[0]
        if engine in COLOURS:
            found.setdefault(what, {})[engine] = float(faster.rstrip("×"))
    return found


def draw(found: dict[str, dict[str, float]], path: Path) -> None:
    figure, axes = pyplot.subplots(figsize=(9, 3.6), layout="constrained")
    names = list(found)[::-1]
    for number, name in enumerate(names):
        for place, (engine, times) in enumerate(found[name].items()):
            at = number + 0.27 * ((len(found[name]) - 1) / 2 - place)
            axes.barh(at, times, 0.25, color=COLOURS[engine], label=engine if number == len(names) - 1 else None)
            axes.annotate(f"{times:.3g}×", (times, at), xytext=(3, 0), textcoords="offset points", va="center", size=8)
    axes.set(xscale="log", yticks=range(len(names)), yticklabels=names, xlabel="times faster than a plain PyTorch loop")
    axes.set_xlim(0.5, 2 * max(times for engines in found.values() for times in engines.values()))
    axes.axvline(1, color="#333333", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(COLOURS))
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    draw(read(ROOT / "results" / "engines.md"), ROOT / "docs" / "speed.png")
