"""How often kin mistakes families for a continuum, and the reverse. Seeds from 1000, which chose no setting.

Families: two and four rotations, swapped labels, label pairs, clusters of unequal size, and clusters with different
noise. Continua: class proportions from Dirichlet distributions, a different angle per peer, and peers that mix two
distributions in proportions spread evenly from 0 to 1.
With alpha = 0.1 many peers have one or two labels, and peers with the same labels are similar: grouping them is not
simply an error, so read that row with care. If a difference is too small to be found, "one distribution" is correct.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from kin_own import counts, dealt, half_renamed, half_turned, noisy, turned
from kin_settings import NETWORK_OF, NETWORKS, SHIFTS, config
from kin_work import Job, Row, Study

import homophily

HEAD = ("truth", "case", "data", "peers", "samples", "one distribution", "families", "continuum", "precision", "recall")
DATA = {"fashion-mnist": (100, (20, 50, 200)), "mnist": (100, (20, 50, 200)), "digits": (40, (20,))}  # peers, samples
FAMILIES: dict[str, Any] = {
    **{name: shift for name, shift in SHIFTS.items() if name != "one distribution"},
    "rotations, 2, unequal noise": partial(noisy, 2),
    "rotations, 4, unequal noise": partial(noisy, 4),
}
CONTINUA: dict[str, Any] = {
    **{f"Dirichlet {alpha}": {"shift": "dirichlet", "alpha": alpha} for alpha in (0.1, 0.3, 0.5, 1.0, 5.0)},
    "an angle of one's own": turned,
    "mixtures, upside down": half_turned,
    "mixtures, labels renamed": half_renamed,
}


def study(options: Any) -> Study:
    """Return the study, with one row per case, data set and number of samples."""
    rows = []
    for data in options.data or DATA:
        peers, some = DATA[data]
        for samples in options.samples or some:
            for truth, cases in (("families", FAMILIES), ("continuum", CONTINUA)):
                for name, case in cases.items():
                    jobs = [_job(case, data, peers, samples, seed, options.device) for seed in options.seeds]
                    rows.append(Row((truth, name, data, peers, samples), jobs))
    return Study(HEAD, rows, _cells, _errors)


def _job(case: Any, data: str, peers: int, samples: int, seed: int, device: str) -> Job:
    if isinstance(case, dict):
        return partial(_answer, config(data, NETWORK_OF[data], samples, case, seed, peers), None, device)
    asked = {"seed": seed, "model": NETWORKS[NETWORK_OF[data]], "data": {"normalise": "standard"}}
    return partial(_answer, asked, partial(dealt, data, counts(peers, samples, samples), seed, case), device)


def _answer(asked: dict[str, Any], own: Any, device: str) -> dict[str, Any]:
    answer = homophily.kin(asked, data=own and own(), device=device).summary()
    said = "one distribution" if answer["rank"] == 0 else "continuum" if answer["families"] is None else "families"
    return {"said": said, "precision": answer["precision"], "recall": answer["recall"]}


def _cells(answers: list[dict[str, Any]]) -> list[Any]:
    said = [sum(a["said"] == what for a in answers) for what in HEAD[5:8]]
    known = [a for a in answers if a["said"] == "families" and a["precision"] is not None]
    means = [f"{statistics.fmean(a[key] for a in known):.3f}" if known else "-" for key in ("precision", "recall")]
    return [*said, *means]


def _errors(found: list[tuple[Row, list[dict[str, Any]]]]) -> list[str]:
    """Return the error counts of both kinds over all rows."""
    out = []
    for truth, other, label in (
        ("continuum", "families", "Continua taken for families"),
        ("families", "continuum", "Families taken for a continuum"),
        ("families", "one distribution", "Families not seen at all"),
    ):
        answers = [a["said"] for row, mine in found if row.about[0] == truth for a in mine]
        out.append(f"- {label}: {answers.count(other)} of {len(answers)}.")
    return out
