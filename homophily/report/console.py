"""Console output of single results: the summary of a run, kin's result, constants, lists of names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from homophily.data import AgreedConstants
from homophily.errors import UserError
from homophily.experiments.audit import Audit
from homophily.experiments.discovery import Discovery, PrivateRelease
from homophily.experiments.planning import Plan
from homophily.fingerprints.private import BYTES
from homophily.methods.kin import power
from homophily.methods.kin.method import ADVICE, NOBODY, TOO_FEW
from homophily.report.tables import print_pairs, print_table
from homophily.runs.reader import Run

DIVERGED = "diverged"  # shown instead of an unknown mean
_SHOWN_VALUES = 8  # of a list of constants
_NAMED = 20  # peers of a family that are listed by name


def summary(run: Run, scores: bool = True) -> None:
    """Print the summary of a run as a table. scores: also the scores on its samples."""
    found = run.summary
    title = f"{run.config.method.name}, {found['rounds']} rounds, {found['seconds']:.1f} s"
    headline = run.headline
    by_cluster = found[f"{headline.name}_by_cluster"]
    clusters = [(f"cluster {name}", headline.text(value)) for name, value in by_cluster.items()]
    mean = ("mean over peers", headline.text(found[headline.name]) if all_scored([run]) else DIVERGED)
    rows = [
        *([*clusters, mean] if scores else []),
        ("same-cluster merges", percent(found["same_cluster_merges"])),
        ("models sent per peer", number(found["models_sent_per_peer"], 0)),
    ]
    if "models_left_out" in found:
        rows.append(("left out by merge_guard", number(found["models_left_out"], 0)))
    if privacy := found.get("privacy"):
        spent, promised = f"{privacy['epsilon_spent']:.2f}", f"{privacy['epsilon_promised']:g} per {privacy['unit']}"
        rows.append(("epsilon spent", f"{spent} of {promised}"))
    console = Console()
    head, sections = (["", headline.label], [len(clusters)]) if scores else (["", ""], [])
    print_table(console, head, rows, title=title, sections=sections)
    for note in found["notes"]:
        console.print(f"note: {escape(note)}", soft_wrap=True, highlight=False)
    console.print(f"run folder: {escape(str(run.path))}", soft_wrap=True, highlight=False)


def constants(found: AgreedConstants, path: Path) -> None:
    """The constants that were written to a file; of a long list only the first values."""
    console = Console()
    print_pairs(console, {key: _values(value) for key, value in found.table.items()})
    console.print(f"file: {escape(str(path))}", soft_wrap=True, highlight=False)


def planned(found: Plan) -> None:
    """Print what a run would take, by rank and by part of a round."""
    console = Console()
    ranks = f"{found.ranks:,} rank{'s' * (found.ranks > 1)}"
    title = f"{found.peers:,} peers on {ranks}, {found.parameters:,} parameters each, {found.device}"
    memory = [(name, f"{size / 2**30:,.3f} GiB") for name, size in found.memory_per_rank.items()]
    seconds = [(name, f"{took:,.3f} s") for name, took in found.seconds_per_round.items()]
    rows = [*memory, ("memory per rank", f"{found.memory / 2**30:,.3f} GiB")]
    rows += [*seconds, ("seconds per round", f"{found.seconds:,.3f} s")]
    rows += [("fingerprints, once", f"{found.fingerprint_seconds:,.3f} s")] if found.fingerprint_seconds else []
    print_table(console, ["", "estimate"], rows, title=title, sections=[len(memory) + 1])
    kind = "extrapolated from" if found.extrapolated else "by"
    note = f"bottleneck: {found.bottleneck}; {kind} a measurement of {found.measured_peers:,} peers on this machine"
    console.print(note, soft_wrap=True, highlight=False)


def audited(found: Audit) -> None:
    """Print what attacks on a run's releases show, beside its account."""
    console = Console()
    rows = [
        (
            attack.what,
            f"{attack.releases:,}",
            f"{attack.correct:,} of {attack.guesses:,}",
            f"{attack.epsilon_lower:.2f}",
            "no noise" if attack.epsilon_account is None else f"{attack.epsilon_account:.2f}",
        )
        for attack in found.attacks
    ]
    title = f"{found.canaries:,} canaries, delta {found.delta:g}, unit {found.unit}, confidence {found.confidence:.0%}"
    print_table(console, ["", "releases", "right guesses", "epsilon is at least", "account"], rows, title=title)
    verdict = {
        None: "the run has no [privacy], so it promises nothing",
        True: "no attack contradicts the account",
        False: "FAILED: an attack shows a larger epsilon than the account of what was released",
    }[found.passed]
    console.print(escape(f"{verdict}\nwritten to {found.run}/audit.json"), soft_wrap=True, highlight=False)


def _values(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    some = ", ".join(one if isinstance(one, str) else f"{one:.6g}" for one in value[:_SHOWN_VALUES])
    return some if len(value) <= _SHOWN_VALUES else f"{some}, ... ({len(value)} values)"


def picture(draw: Callable[[Path], None], path: Path) -> Path | None:
    """Draw a picture and return the path; without matplotlib, print a note to stderr and return None."""
    try:
        draw(path)
    except UserError as reason:
        Console(stderr=True).print(f"note: {escape(str(reason))}", soft_wrap=True, highlight=False)
        return None
    return path


def acquaintance(found: Discovery, picture: Path | None) -> None:
    """Print kin's result: the families, or, if no difference was found, the smallest that would have been found."""
    console, answer = Console(), found.summary()
    say = partial(console.print, soft_wrap=True, highlight=False)
    families, values = answer["families"], answer["singular_values"]
    peers = len(found.prints.count)
    if not answer["enough_samples"]:
        say(NOBODY if peers == 1 else f"{peers} peers, {TOO_FEW}")
    elif not answer["conclusive"]:
        say(f"{peers} peers, no difference found{_unseen(found)}")
        say(ADVICE)
    elif families is None:
        say(f"{peers} peers, no separate families: peers differ gradually (a continuum)")
    else:
        say(f"{peers} peers, {len(families)} families")
    if answer["enough_samples"]:
        shown = ", ".join(f"{value:.1f}" for value in values[: answer["rank"] + 3])
        say(f"singular values {shown}, ...; {answer['rank']} above the noise edge {answer['edge']:.1f}")
    for index, members in enumerate(families or []):
        say(f"  family {index}: {len(members)} peers: {escape(_called(members, found.names))}")
    if answer["precision"] is not None or answer["recall"] is not None:
        shares = [number(answer[key], 3) for key in ("precision", "recall")]
        say(f"compared with the true clusters: precision {shares[0]}, recall {shares[1]}")
    if answer["left_out"]:
        say(f"left out, without a usable fingerprint: peers {_ranges(answer['left_out'])}")
    if found.private is not None:
        for line in _privacy(found.private):
            say(line)
    sent = answer["bytes_per_peer"]
    size = f"{sent / 1e6:.2f} MB" if sent >= 10_000 else f"{sent:,.0f} bytes"
    say(f"{size} sent per peer, {answer['seconds']:.2f} s")
    if picture is not None:
        say(f"picture: {escape(str(picture))}")


def _privacy(release: PrivateRelease) -> list[str]:
    """Return what private fingerprints promise, and the samples with which they would do."""
    promise = f"epsilon {release.epsilon:g}, delta {release.delta:g}"
    lines = [f"private fingerprints of {BYTES} bytes: {promise}; noise {release.noise:.2f} times the sensitivity"]
    known = [f"{n} at epsilon {epsilon}" for epsilon, n in release.samples_needed.items() if n is not None]
    if known:
        lines.append(f"samples per peer that would do for the weakest difference found: {', '.join(known)}")
    unseen = f"{release.smallest_spread:.3f} clipping norms"
    return [*lines, f"differences in a direction in which the peers' means spread by less than {unseen} are not seen"]


def _unseen(found: Discovery) -> str:
    """Return which differences are too small to be found, with how many samples; "" if unknown."""
    if found.smallest_difference is None:
        return ""
    counts = found.prints.count[found.prints.count > 0]
    least, most = int(counts.min()), int(counts.max())
    samples = f"{least} samples" if least == most else f"{least} to {most} samples"
    unseen = power.in_words(found.smallest_difference)
    return f": {unseen} would not have been seen with {samples} per peer"


def _called(peers: list[int], names: Sequence[str | None] | None) -> str:
    """Return the names of peers; their numbers if they have none, or are too many for a line."""
    called = [names[peer] for peer in peers] if names is not None and len(peers) <= _NAMED else []
    known = [name for name in called if name is not None]
    return ", ".join(known) if peers and len(known) == len(peers) else _ranges(peers)


def _ranges(peers: list[int]) -> str:
    """Return peer numbers as ranges, such as "3, 5-9, 12"."""
    parts: list[list[int]] = []
    for peer in peers:
        if parts and peer == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], peer]
        else:
            parts.append([peer])
    return ", ".join("-".join(map(str, part)) for part in parts)


def chances(cni: list[float], pens: float) -> None:
    """Print the probability that all k neighbours are of the own cluster, by round."""
    rows = [[str(round), f"{chance:.6f}", f"{pens:.6f}"] for round, chance in enumerate(cni, start=1)]
    headings = ["round", "CNI (PANM)", "PENS"]
    title = "probability that all k neighbours are of the own cluster"
    print_table(Console(), headings, rows, title=title, first="right")


def names(kind: str, lines: dict[str, str]) -> None:
    """Print a list of names with one line about each."""
    console = Console()
    console.print(f"[bold]{kind}[/]")
    width = max(map(len, lines), default=0)
    for name, line in lines.items():
        console.print(f"  {name:<{width}}  {escape(line)}", soft_wrap=True, highlight=False)


def all_scored(runs: Sequence[Run]) -> bool:
    """Whether no peer of any run has diverged."""
    return not any(run.summary["diverged"] for run in runs)


def number(value: float | None, digits: int = 1) -> str:
    """A number for a table, or - if it is not known."""
    return "-" if value is None else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    """A share for a table, or - if it is not known."""
    return "-" if share is None else f"{100 * share:.0f}%"
