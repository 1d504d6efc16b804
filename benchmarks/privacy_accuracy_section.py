"""The section on accuracy of results/privacy.md, which benchmarks/privacy_page.py writes."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from typing import Any

from result_tables import Record, matching, named, table, values

CELL = ("method", "data", "network", "samples", "epsilon")  # what tells cells of the table apart
FAMILIES = re.compile(r"found \d+ families").match


def accuracy(found: list[Record]) -> tuple[str, str]:
    """The section of the results in ``found``, and its summary."""
    epsilons = ordered(values(found, "epsilon"))
    head = ["data", "network", "samples", "method", *map(named, epsilons)]
    rows, names = [], ("data", "network", "samples", "method")
    for case in dict.fromkeys(tuple(record[name] for name in names) for record in found):
        some = matching(found, **dict(zip(names, case, strict=True)))
        rows.append([*map(str, case), *(percent(matching(some, epsilon=epsilon)) for epsilon in epsilons)])
    one = found[0]
    refused = (
        f"\n- Refused: {', '.join(str(one[name]) for name in names)}, {named(one['epsilon'])}: {one['refused']}"
        for one in found
        if "refused" in one
    )
    notes = f"{kin_against(found)}{hardware(found)}{''.join(dict.fromkeys(refused))}"
    text = f"""## Accuracy

`python benchmarks/privacy_accuracy.py runs/privacy`: {one["peers"]} peers in four clusters (rotations),
{one["rounds"]} rounds of one epoch in batches of a quarter
of the samples, {seeds(found)} (`--seed`). Mean accuracy over peers in
percent; with several seeds, mean and standard deviation over seeds; "none" is training without privacy, "-" was not
measured.
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
    places: dict[tuple[str, int], list[Record]] = {}
    for one in found:
        if "machine" in one:
            versions = [f"{key} {one[key]}" for key in ("homophily", "torch", "numpy", "python") if key in one]
            where = ", ".join([one["machine"], *versions, *([one["date"]] if "date" in one else [])])
            places.setdefault((where, one["seed"]), []).append(one)
    lines: dict[str, list[Record]] = {}
    for (where, _), runs in places.items():
        lines.setdefault(f"{methods(runs, found)}: {where}", []).extend(runs)
    return "".join(f"\n- Hardware, {seeds(runs)}: {line}." for line, runs in lines.items())


def methods(runs: list[Record], found: list[Record]) -> str:
    """The methods of some runs, and at which epsilon, where the others have more."""
    by_epsilons: dict[str, list[str]] = {}
    for method in values(runs, "method"):
        some = ordered(values(matching(runs, method=method), "epsilon"))
        everything = some == ordered(values(matching(found, method=method), "epsilon"))
        at = ", ".join(f"{epsilon:g}" for epsilon in some if epsilon is not None)
        parts = [*([f"at epsilon {at}"] if at else []), *(["without privacy"] if None in some else [])]
        by_epsilons.setdefault("" if everything else f" {' and '.join(parts)}", []).append(method)
    return "; ".join(", ".join(names) + at for at, names in by_epsilons.items())


def means(found: list[Record]) -> dict[tuple[Any, ...], float]:
    """The mean accuracy over seeds of each cell of the table, where no run was refused or diverged."""
    scores: dict[tuple[Any, ...], list[float | None]] = {}
    for one in found:
        scores.setdefault(tuple(one[name] for name in CELL), []).append(one.get("accuracy"))
    return {cell: statistics.fmean(map(float, each)) for cell, each in scores.items() if None not in each}


def differences(found: list[Record], other: str) -> dict[tuple[Any, ...], float]:
    """Private kin minus another method, by data, network, samples and epsilon."""
    scores = means(found)
    return {
        case: score - scores[other, *case]
        for (method, *rest), score in scores.items()
        if method == "kin" and (case := tuple(rest))[-1] is not None and (other, *case) in scores
    }


def kin_by_epsilon(found: list[Record]) -> str:
    """The mean difference of private kin from the oracle and from random peers, at each epsilon that was measured."""
    against = {other: differences(found, other) for other in ("oracle", "random")}
    parts = []
    for epsilon in ordered(values(found, "epsilon")):
        cells = [case for case in against["oracle"] if case[-1] == epsilon and case in against["random"]]
        if cells:
            average = {other: statistics.fmean(by[case] for case in cells) for other, by in against.items()}
            ends = (f"{abs(mean):.1f} {'above' if mean > 0 else 'below'} {other}" for other, mean in average.items())
            parts.append(f"epsilon {epsilon:g}: {' and '.join(ends)} ({len(cells)} cell{'s' * (len(cells) > 1)})")
    return f"\n- **Private kin.** Mean difference in points: {'; '.join(parts)}." if parts else ""


def kin_against(found: list[Record]) -> str:
    """How far private kin is from the oracle, and where it is worse than random peers; "" if it was not measured."""
    oracle = differences(found, "oracle")
    if not oracle:
        return ""
    near, worst = sum(difference >= -2 for difference in oracle.values()), min(oracle, key=lambda case: oracle[case])
    below = [described(case) for case, difference in differences(found, "random").items() if difference < 0]
    listed = f": {'; '.join(below)}" if below else ""
    return (
        f"\n- With privacy, `kin` is at most 2 points below oracle in {near} of {len(oracle)} cells; the largest gap "
        f"is {-oracle[worst]:.1f} points ({described(worst)}). It is below random in {len(below)}{listed}. "
        f"{without_families(found)}"
        "Oracle spends all of epsilon on training; `kin` spends up to half of it on the fingerprint, so its models "
        "have more noise."
    )


def described(case: tuple[Any, ...]) -> str:
    data, network, samples, epsilon = case
    return f"{data}, {network}, {samples} samples, epsilon {epsilon:g}"


def without_families(found: list[Record]) -> str:
    """Where private kin found no families, in how many runs, and what it found instead."""
    notes: dict[tuple[Any, ...], list[str]] = {}
    for one in found:
        if one["epsilon"] is not None and "note" in one:
            notes.setdefault(tuple(one[name] for name in CELL[1:]), []).append(one["note"])
    cases = []
    for case, each in notes.items():
        others = ["no difference" if "no difference" in note else "a continuum" for note in each if not FAMILIES(note)]
        if others:
            counts = ", ".join(f"{what} in {others.count(what)}" for what in sorted(set(others), reverse=True))
            cases.append(f"{described(case)} ({counts} of {len(each)} seed{'s' * (len(each) > 1)})")
    return f"It found no families in {'; '.join(cases)}. " if cases else ""


def percent(found: list[Record]) -> str:
    """Mean and, with several seeds, standard deviation."""
    if not found:
        return "-"
    if any("refused" in record for record in found):
        return "refused"
    scores = [record["accuracy"] for record in found]
    if None in scores:
        return "diverged"
    spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
    return f"{statistics.fmean(scores):.1f}{spread}"


def seeds(found: list[Record]) -> str:
    """The seeds of each network, or of all if they are the same."""
    by_seeds: dict[str, list[str]] = {}
    for network in values(found, "network"):
        numbers = sorted(values(matching(found, network=network), "seed"))
        text = f"seed{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
        by_seeds.setdefault(text, []).append(network)
    if len(by_seeds) == 1:
        return next(iter(by_seeds))
    return "; ".join(f"{' and '.join(networks)}: {text}" for text, networks in by_seeds.items())


def summary_of(found: list[Record]) -> str:
    parts = []
    for samples in values(found, "samples"):
        some = matching(found, data="mnist", network="linear head", samples=samples)
        scores = {method: percent(matching(some, method=method, epsilon=4.0)) for method in values(found, "method")}
        cells = [f"{method} {score}" for method, score in scores.items() if score != "-"]
        bare = percent(matching(some, method="oracle", epsilon=None))
        parts.append(f"with {samples} samples per peer {', '.join(cells)} % (oracle without privacy: {bare} %)")
    return f"MNIST at epsilon 4 with a linear head: {'; '.join(parts)}.{kin_by_epsilon(found)}"
