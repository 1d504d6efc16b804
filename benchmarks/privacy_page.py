"""Writes results/privacy.md and its figure from the files in results/privacy. Needs matplotlib.

    python benchmarks/privacy_page.py [FILE ...]

benchmarks/kin_private.py and benchmarks/privacy_accuracy.py write these files; after a new measurement, run
this again. FILE: results of benchmarks/privacy_accuracy.py that were written elsewhere. They are taken over into
results/privacy/accuracy.jsonl first, in place of those of the same runs.
"""

from __future__ import annotations

import argparse
import statistics
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from privacy_accuracy import records_in, replace_in
from privacy_accuracy_section import accuracy
from result_tables import Record, matching, named, table, values

ROOT = Path(__file__).resolve().parents[1] / "results"

TEXT = "#808080"  # readable on white and on black, as are the colours of the lines
LINES = {50: ("#c2601c", "o"), 100: ("#2f8f5b", "s"), 200: ("#3a82d0", "^"), 600: ("#a458c0", "D")}

HEAD = """# Privacy

This page shows what differential privacy costs: which families `kin` finds with private fingerprints, and how
accurate private
training is. [docs/privacy.md](../docs/privacy.md) explains the promise. `python benchmarks/privacy_page.py`
writes the page from the files in
`results/privacy`. Everywhere delta is 1e-5 and the protected unit is one sample.

- **Families.** {families}
- **False alarms.** {calibration}
- **Continua.** {continua}
- **Accuracy.** {accuracy}
- **Hospitals.** {hospitals}

The constants of private `kin` were chosen on digits, but trial runs on MNIST and Fashion-MNIST influenced the
choice too. So the
families and false alarms below are not measured on data that was unknown when the constants were chosen.
"""


def records(name: str) -> list[Record]:
    """The records of one result file."""
    return records_in(ROOT / "privacy" / f"{name}.jsonl")


def of_families(found: list[Record]) -> str:
    """Mean precision and recall over the federations with families, and the ranks if some have none."""
    seen = [record for record in found if record["families"] is not None]
    ranks = "/".join(str(record["rank"]) for record in found)
    if not seen:
        return f"no families (rank {ranks})"
    means = ", ".join(f"{statistics.fmean(one[key] for one in seen):.2f}" for key in ("precision", "recall"))
    return means if len(seen) == len(found) else f"{means} in {len(seen)} of {len(found)} (rank {ranks})"


def family_rows(found: list[Record], names: Sequence[str], epsilons: Sequence[float]) -> Iterator[list[str]]:
    for case in dict.fromkeys(tuple(record[name] for name in names) for record in found):
        some = matching(found, **dict(zip(names, case, strict=True)))
        yield [*map(str, case), *(of_families(matching(some, epsilon=epsilon)) for epsilon in epsilons)]


def draw(found: list[Record], path: Path) -> None:
    """Precision and recall against epsilon, a line for each number of samples; no families count as 0."""
    cases = [(data, shift) for data in values(found, "data") for shift in values(found, "shift")]
    style = {"svg.fonttype": "none", "svg.hashsalt": "privacy", "font.size": 9, "text.color": TEXT}
    style |= dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), TEXT)
    with matplotlib.rc_context(style):
        figure, axes = pyplot.subplots(2, len(cases), figsize=(10, 4.6), sharex=True, sharey=True, layout="constrained")
        for column, (data, shift) in enumerate(cases):
            for row, key in enumerate(("precision", "recall")):
                panel = axes[row][column]
                for samples, (colour, marker) in LINES.items():
                    some = matching(found, data=data, shift=shift, samples=samples)
                    epsilons = values(some, "epsilon")
                    heights = [
                        statistics.fmean(one[key] or 0.0 for one in matching(some, epsilon=epsilon))
                        for epsilon in epsilons
                    ]
                    panel.plot(epsilons, heights, color=colour, marker=marker, markersize=4, label=f"{samples} samples")
                panel.set(xscale="log", xticks=epsilons, xticklabels=[f"{e:g}" for e in epsilons], ylim=(-0.05, 1.05))
                panel.minorticks_off()
                panel.spines[["top", "right"]].set_visible(False)
                panel.grid(color=TEXT, alpha=0.25, linewidth=0.6)
                if row == 0:
                    panel.set_title(f"{data}\n{shift}", fontsize=9)
                if column == 0:
                    panel.set_ylabel(key)
        figure.supxlabel("epsilon", fontsize=9)
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(LINES), frameon=False)
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})
        pyplot.close(figure)
    path.write_text("\n".join(line.rstrip() for line in path.read_text(encoding="utf-8").splitlines()) + "\n")


def families() -> tuple[str, str]:
    found = records("families")
    draw(found, ROOT / "privacy.svg")
    epsilons, seeds = values(found, "epsilon"), len(values(found, "seed"))
    head = ["data", "shift", "samples", *(f"epsilon {epsilon:g}" for epsilon in epsilons)]
    rows = family_rows(found, ["data", "shift", "samples"], epsilons)
    perfect = [
        f"epsilon {epsilon:g} needs {least} samples per peer"
        for epsilon in epsilons
        if (least := fewest(found, epsilon)) is not None
    ]
    text = f"""## Families

`python benchmarks/kin_private.py families`: {found[0]["peers"]} peers in four clusters, {seeds} seeds. A cell
has the mean precision and recall of
the families. Ranks are listed by seed if a federation has no families: rank 0 is "no difference found", above
it a continuum. In the figure,
a federation without families counts as 0.

![Precision and recall rise with epsilon and with samples; with 600 samples they are near 1](privacy.svg)

{table(head, rows)}
"""
    summary = (
        "For families with a mean precision and recall of at least 0.9 in all four settings and every federation, "
    )
    return text, f"{summary}{', '.join(perfect)}."


def fewest(found: list[Record], epsilon: float) -> int | None:
    """The fewest samples with which, in every setting, all federations have families that are right on the whole."""
    for samples in sorted(values(found, "samples")):
        some = matching(found, epsilon=epsilon, samples=samples)
        by_setting = [matching(some, data=d, shift=s) for d in values(some, "data") for s in values(some, "shift")]
        if all(
            statistics.fmean(one[key] or 0.0 for one in setting) >= 0.9
            and all(one["families"] is not None for one in setting)
            for setting in by_setting
            for key in ("precision", "recall")
        ):
            return int(samples)
    return None


def calibration() -> tuple[str, str]:
    found = records("calibration")
    rows, most = [], 0
    for data in values(found, "data"):
        for epsilon in values(found, "epsilon"):
            some = matching(found, data=data, epsilon=epsilon)
            unequal = [one for one in some if one["least_samples"] < one["most_samples"]]
            counts = [
                (sum(o["rank_above_0"] for o in them), sum(o["federations"] for o in them)) for them in (some, unequal)
            ]
            most = max(most, counts[0][0])
            cases = ", ".join(f"{one['peers']} x {sizes(one)}: {one['rank_above_0']}" for one in some)
            rows.append([data, f"{epsilon:g}", *(f"{false} of {of:,}" for false, of in counts), cases])
    total = sum(one["federations"] for one in matching(found, data=found[0]["data"], epsilon=found[0]["epsilon"]))
    head = ["data", "epsilon", "rank above 0", "of these with unequal sizes", "by peers and samples"]
    text = f"""## False alarms

`python benchmarks/kin_private.py calibration`: all peers have one distribution, so every difference that is
found is a false alarm. Samples are
drawn with replacement from 20,000 images. "50 to 600" means unequal sizes, evenly spread.

{table(head, rows)}

`python benchmarks/kin_private.py unequal`: the same with unequal sizes only, and with seeds that no
other measurement has.

{table(["data", "epsilon", "rank above 0", "by peers and samples"], unequal_rows())}
"""
    summary = f"At every epsilon, a difference was found in at most {most} of {total:,} federations without any"
    return text, f"{summary}; a third of them have unequal sizes."


def unequal_rows() -> Iterator[list[str]]:
    found = records("unequal")
    for data in values(found, "data"):
        for epsilon in values(found, "epsilon"):
            some = matching(found, data=data, epsilon=epsilon)
            false, of = (sum(one[key] for one in some) for key in ("rank_above_0", "federations"))
            cases = ", ".join(f"{one['peers']} x {sizes(one)}: {one['rank_above_0']}" for one in some)
            yield [data, f"{epsilon:g}", f"{false} of {of:,}", cases]


def continua() -> tuple[str, str]:
    found = records("continua")
    epsilons, data = values(found, "epsilon"), values(found, "data")
    cases = dict.fromkeys((one["truth"], one["case"], sizes(one)) for one in found)
    rows, spread_out = [], []
    for truth, case, samples in cases:
        some = [one for one in matching(found, truth=truth, case=case) if sizes(one) == samples]
        rows.append([truth, case, samples, *(answers(matching(some, epsilon=epsilon)) for epsilon in epsilons)])
    for epsilon in epsilons:
        some = [one for one in matching(found, truth="families", epsilon=epsilon) if " to " in sizes(one)]
        spread_out.append(f"{of_families(some)} at epsilon {epsilon:g}")
    text = f"""## Continua

`python benchmarks/kin_private.py continua`: {found[0]["peers"]} peers, {" and ".join(data)}, seeds
{found[0]["seed"]} to {found[-1]["seed"]} of each. A cell has the number of
federations that are said to have one distribution / families / a continuum. "50 to 600" means unequal sizes,
evenly spread. If the difference is too small for
the noise, "one distribution" is the right answer.

{table(["truth", "case", "samples", *(f"epsilon {epsilon:g}" for epsilon in epsilons)], rows)}

Mean precision and recall of the families with unequal sizes: {"; ".join(spread_out)}.
"""
    wrong = []
    for truth, other in (("continuum", "families"), ("families", "continuum")):
        some = matching(found, truth=truth)
        taken = [one for one in some if said(one) == other]
        wrong.append(f"{len(taken)} of {len(some)}")
    summary = f"Private `kin` took continua for families in {wrong[0]} federations, and families for a continuum in"
    return text, f"{summary} {wrong[1]}, with equal and unequal sizes."


def said(one: Record) -> str:
    return "one distribution" if one["rank"] == 0 else "continuum" if one["families"] is None else "families"


def answers(found: list[Record]) -> str:
    given = [said(one) for one in found]
    return " / ".join(str(given.count(what)) for what in ("one distribution", "families", "continuum"))


def sizes(one: Record) -> str:
    low, high = one["least_samples"], one["most_samples"]
    return f"{low}" if low == high else f"{low} to {high}"


def clinics() -> tuple[str, str]:
    found, trained = records("hospitals"), records("clinics")
    epsilons = values(found, "epsilon")
    head = ["patients per clinic", "clinics", *(f"epsilon {epsilon:g}" for epsilon in epsilons)]
    needed = [
        [
            str(samples),
            str(peers),
            *(spread([one["samples_needed"].get(e) for one in some]) for e in ("1", "2", "4", "8")),
        ]
        for samples, peers in dict.fromkeys((record["samples"], record["peers"]) for record in found)
        if (some := matching(found, samples=samples, epsilon=epsilons[-1]))
    ]
    methods = values(trained, "method")
    rows = [
        [
            str(samples),
            named(epsilon),
            *(plus_minus(matching(trained, samples=samples, epsilon=epsilon, method=m)) for m in methods),
        ]
        for samples in values(trained, "samples")
        for epsilon in values(trained, "epsilon")
    ]
    text = f"""## Hospitals

The patients of four [hospitals](../docs/hospitals.md) are divided into clinics with 20, 40 or 60 training
patients each.
`python benchmarks/kin_private.py hospitals`, {len(values(found, "seed"))} seeds, families as above; epsilon
1000 is nearly without noise:

{table(head, family_rows(found, ["samples", "peers"], epsilons))}

Private `kin` finds few differences here, because the clinics are too small: the noise has the size of several
patients, and there are only 11 to 29 clinics over which it
averages out. At epsilon 1000, `kin` sees how much the clinics differ, and computes how many patients per clinic
would show the weakest of these differences,
with as many clinics (least and most over the seeds; "-": no difference was seen at epsilon 1000 either):

{table(["patients per clinic", "clinics", "needed at epsilon 1", "epsilon 2", "epsilon 4", "epsilon 8"], needed)}

The formula is approximate: with 60 patients at epsilon 4, where 53 to 56 are computed, a difference was seen in
one federation of three. To divide the
clinics into families takes more. In a run,
fingerprints may cost half of epsilon (`privacy.share`), so epsilon 4 of a run is epsilon 2 here.

`python benchmarks/kin_private.py clinics`: accuracy in percent of a linear network, 40 rounds of one epoch in
batches of a quarter of the patients, learning
rate 0.5, not tuned; mean and standard deviation over {len(values(trained, "seed"))} seeds:

{table(["patients per clinic", "privacy", *methods], rows)}
"""
    at_4 = matching(found, epsilon=4.0)
    seen, (least, most) = sum(record["families"] is not None for record in at_4), extremes(found, "4")
    summary = f"At epsilon 4, heart-disease clinics are divided into families in {seen} of {len(at_4)} federations."
    return text, f"{summary} They have 20 to 60 patients; to see that they differ takes {least} to {most}."


def extremes(found: list[Record], epsilon: str) -> tuple[int, int]:
    seen = [one["samples_needed"][epsilon] for one in found if one["epsilon"] == 1000.0 and one["samples_needed"]]
    return min(seen), max(seen)


def spread(found: list[int | None]) -> str:
    """The least and the most of some numbers, of which some may be unknown."""
    known = sorted(one for one in found if one is not None)
    if not known:
        return "-"
    some = f"{known[0]}" if known[0] == known[-1] else f"{known[0]} to {known[-1]}"
    return some if len(known) == len(found) else f"{some} (in {len(known)} of {len(found)})"


def plus_minus(found: list[Record]) -> str:
    scores = [record["accuracy"] for record in found]
    return f"{statistics.fmean(scores):.1f} ± {statistics.stdev(scores):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    for file in parser.parse_args().files:
        if not (new := records_in(file)):
            parser.error(f"{file} has no results")
        replace_in(ROOT / "privacy" / "accuracy.jsonl", new)
    parts = {
        "families": families(),
        "calibration": calibration(),
        "continua": continua(),
        "accuracy": accuracy(records("accuracy")),
        "hospitals": clinics(),
    }
    head = HEAD.format(**{name: summary for name, (_, summary) in parts.items()})
    page = "\n".join([head, *(text for text, _ in parts.values())])
    (ROOT / "privacy.md").write_text(wrapped(page), encoding="utf-8")


def wrapped(page: str) -> str:
    """The page with lines of prose of similar lengths."""
    lines: list[str] = []
    for line in page.splitlines():
        prose = line and lines and lines[-1] and not line.startswith(("|", "#", "!", "- "))
        if prose and not lines[-1].startswith(("|", "#", "!")):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return "\n".join(line if line.startswith("|") else fill(line) for line in lines) + "\n"


def fill(line: str) -> str:
    return textwrap.fill(line, 150, subsequent_indent="  " * line.startswith("- "), break_on_hyphens=False)


if __name__ == "__main__":
    main()
