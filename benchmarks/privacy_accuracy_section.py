"""The section on accuracy of results/privacy.md, which benchmarks/privacy_page.py writes."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable

from result_tables import Record, matching, named, table, values


def accuracy(found: list[Record]) -> tuple[str, str]:
    """The section of the results in ``found``, and its summary."""
    epsilons = ordered(values(found, "epsilon"))
    head = ["data", "network", "samples", "method", *map(named, epsilons)]
    rows, names = [], ("data", "network", "samples", "method")
    for case in dict.fromkeys(tuple(record[name] for name in names) for record in found):
        some = matching(found, **dict(zip(names, case, strict=True)))
        rows.append([*map(str, case), *(percent(matching(some, epsilon=epsilon)) for epsilon in epsilons)])
    one = found[0]
    refused = [record for record in found if "refused" in record]
    refused_runs = "".join(
        f"\n- Refused: {', '.join(str(one[name]) for name in names)}, {named(one['epsilon'])}: {one['refused']}"
        for one in refused
    )
    notes = f"{kin_against(found)}{hardware(found)}{refused_runs}"
    text = f"""## Accuracy

`python benchmarks/privacy_accuracy.py runs/privacy`: {one["peers"]} peers in four clusters (rotations),
{one["rounds"]} rounds of one epoch in batches of a quarter
of the samples, seed {", ".join(map(str, values(found, "seed")))}. Mean accuracy over peers in
percent; "none" is training without privacy, "-" was not measured.
The small MLP has one hidden layer of 32 units. The linear head has 10,250 trained parameters on 1,024 random
features, which are frozen.

{table(head, rows)}

- The learning rate is 0.5 everywhere. It was not tuned, neither with privacy nor without. So "none" is not the
  best that these networks reach: the
  small MLP with 200 Fashion-MNIST images is worse without privacy than at epsilon 8, since clipping also limits
  steps that are too long.
- Failures: with 200 samples, the small MLP of a peer that trains alone is nearly useless at epsilon 1 (about 20
  %). Merging with random
  peers of other clusters helps only where noise dominates, and hurts otherwise.{notes}
"""
    return text.replace(" \n", "\n"), summary_of(found)


def ordered(epsilons: Iterable[float | None]) -> list[float | None]:
    """Ascending, without privacy last."""
    return sorted(epsilons, key=lambda epsilon: epsilon or float("inf"))


def hardware(found: list[Record]) -> str:
    """Which runs were computed where, when and with which versions, as far as their records say so."""
    places: dict[str, list[Record]] = {}
    for one in found:
        if "machine" in one:
            versions = [f"{key} {one[key]}" for key in ("homophily", "torch", "numpy", "python") if key in one]
            where = ", ".join([one["machine"], *versions, *([one["date"]] if "date" in one else [])])
            places.setdefault(where, []).append(one)
    out = ""
    for where, runs in places.items():
        by_epsilons: dict[str, list[str]] = {}
        for method in values(runs, "method"):
            some = ordered(values(matching(runs, method=method), "epsilon"))
            everything = some == ordered(values(matching(found, method=method), "epsilon"))
            at = ", ".join(f"{epsilon:g}" for epsilon in some if epsilon is not None)
            parts = [*([f"at epsilon {at}"] if at else []), *(["without privacy"] if None in some else [])]
            by_epsilons.setdefault("" if everything else f" {' and '.join(parts)}", []).append(method)
        out += f"\n- Hardware: {'; '.join(', '.join(m) + at for at, m in by_epsilons.items())}: {where}."
    return out


def kin_by_epsilon(found: list[Record]) -> str:
    """The mean difference of private kin from the oracle and from random peers, at each epsilon that was measured."""
    names, parts = ("data", "network", "samples", "seed"), []
    for epsilon in ordered(values(found, "epsilon")):
        if epsilon is None:
            continue
        scores = {
            (one["method"], *(one[name] for name in names)): one["accuracy"]
            for one in matching(found, epsilon=epsilon)
            if one.get("accuracy") is not None
        }
        others = ("oracle", "random")
        cells = [case for method, *case in scores if method == "kin" and all((o, *case) in scores for o in others)]
        if cells:
            means = [
                statistics.fmean(scores["kin", *case] - scores[other, *case] for case in cells) for other in others
            ]
            ends = (
                f"{abs(mean):.1f} {'above' if mean > 0 else 'below'} {o}" for mean, o in zip(means, others, strict=True)
            )
            parts.append(f"epsilon {epsilon:g}: {' and '.join(ends)} ({len(cells)} cell{'s' * (len(cells) > 1)})")
    return f"\n- **Private kin.** Mean difference in points: {'; '.join(parts)}." if parts else ""


def kin_against(found: list[Record]) -> str:
    """How far private kin is from the oracle, and where it is worse than random peers; "" if it was not measured."""
    names = ("data", "network", "samples", "epsilon", "seed")
    scores = {
        (one["method"], *(one[name] for name in names)): one["accuracy"]
        for one in found
        if one["epsilon"] is not None and one.get("accuracy") is not None
    }
    cases = [case for method, *case in scores if method == "kin"]
    gaps = [(scores[("oracle", *case)] - scores[("kin", *case)], case) for case in cases if ("oracle", *case) in scores]
    if not gaps:
        return ""
    near, (gap, worst) = sum(gap <= 2 for gap, _ in gaps), max(gaps, key=lambda one: one[0])
    where = f"{worst[0]}, {worst[1]}, {worst[2]} samples, epsilon {worst[3]:g}"
    below = [case for case in cases if scores["kin", *case] < scores.get(("random", *case), 0.0)]
    listed = "; ".join(f"{data}, {network}, {n} samples, epsilon {epsilon:g}" for data, network, n, epsilon, _ in below)
    return (
        f"\n- With privacy, `kin` is at most 2 points below oracle in {near} of {len(gaps)} cells; the largest gap is "
        f"{gap:.1f} points ({where}). It is below random in {len(below)}{f': {listed}' if below else ''}. "
        f"{without_families(found)}"
        "Oracle spends all of epsilon on training; `kin` spends up to half of it on the fingerprint, so its models "
        "have more noise."
    )


def without_families(found: list[Record]) -> str:
    """Where private kin found no families, and what it found instead."""
    cases = [
        f"{one['data']}, {one['network']}, {one['samples']} samples, epsilon {one['epsilon']:g} "
        f"({'no difference' if 'no difference' in one['note'] else 'a continuum'})"
        for one in found
        if one["epsilon"] is not None and "note" in one and not re.match(r"found \d+ families", one["note"])
    ]
    return f"It found no families in {'; '.join(cases)}. " if cases else ""


def percent(found: list[Record]) -> str:
    if not found:
        return "-"
    if any("refused" in record for record in found):
        return "refused"
    scores = [record["accuracy"] for record in found]
    return "diverged" if None in scores else f"{statistics.fmean(scores):.1f}"


def summary_of(found: list[Record]) -> str:
    parts = []
    for samples in values(found, "samples"):
        some = matching(found, data="mnist", network="linear head", samples=samples)
        scores = {method: percent(matching(some, method=method, epsilon=4.0)) for method in values(found, "method")}
        cells = [f"{method} {score}" for method, score in scores.items() if score != "-"]
        bare = percent(matching(some, method="oracle", epsilon=None))
        parts.append(f"with {samples} samples per peer {', '.join(cells)} % (oracle without privacy: {bare} %)")
    return f"MNIST at epsilon 4 with a linear head: {'; '.join(parts)}.{kin_by_epsilon(found)}"
