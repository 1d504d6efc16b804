"""How well kin groups peers before training: ranks, families, precision and recall, over data sets and shifts."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from kin_settings import NETWORK_OF, chosen, config
from kin_work import Row, Study

import homophily

DATA = ("fashion-mnist", "mnist", "cifar-10")
HEAD = ("data", "network", "samples", "shift", "rank", "families found", "precision", "recall", "lowest of both", "s")


def study(options: Any) -> Study:
    """Return the study, with one row per data set, network, number of samples and shift."""
    rows = []
    for data in options.data or DATA:
        for network in options.network or [NETWORK_OF[data]]:
            for samples in options.samples or ((50, 200) if data == "cifar-10" else (20, 50, 200)):
                for name, shift in chosen(options.shift).items():
                    asked = [config(data, network, samples, shift, seed, options.peers) for seed in options.seeds]
                    jobs = [partial(_answer, one, options.device) for one in asked]
                    rows.append(Row((data, network, samples, name), jobs))
    return Study(HEAD, rows, cells)


def _answer(asked: dict[str, Any], device: str) -> dict[str, Any]:
    return homophily.kin(asked, device=device).summary()


def cells(answers: list[dict[str, Any]]) -> list[str]:
    """Ranks, families found, precision and recall over the answers of several seeds."""
    found = [a for a in answers if a["families"] is not None]
    means = [f"{statistics.fmean(a[key] for a in found):.3f}" if found else "-" for key in ("precision", "recall")]
    lowest = min((min(a["precision"], a["recall"]) for a in found), default=0.0)
    ranks = ", ".join(map(str, sorted({a["rank"] for a in answers})))
    seconds = statistics.median(a["seconds"] for a in answers)
    return [ranks, f"{len(found)} of {len(answers)}", *means, f"{lowest:.3f}", f"{seconds:.2f}"]
