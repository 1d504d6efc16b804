"""Console output: progress bars on a terminal, and tables at the end. Without a terminal there are no bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from homophily.data import AgreedConstants
from homophily.errors import UserError
from homophily.experiments.callbacks import Callback, RunHandle
from homophily.experiments.discovery import Discovery
from homophily.methods.kin import power
from homophily.methods.kin.method import ADVICE, TOO_FEW
from homophily.report.tables import print_pairs, print_table
from homophily.runs.comparison import Comparison, short_names
from homophily.runs.headline import Headline
from homophily.runs.reader import Run

_DIVERGED = "diverged"  # shown instead of an unknown mean
_SHOWN_VALUES = 8  # of a list of constants
_FAIR = {"worst_tenth": "worst tenth", "std_over_peers": "std over peers"}
_LAST_COLUMNS = ("same-cluster merges", "models sent")
_COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[score]}"),
    TimeRemainingColumn(),
)


def _terminal() -> Console | None:
    """Return the console on stderr if it is a terminal, else None."""
    console = Console(stderr=True)
    return console if console.is_terminal else None


class ProgressBar(Callback):
    """A progress bar over the rounds of one run."""

    def __init__(self, bar: Progress, label: str) -> None:
        self._bar, self._task = bar, bar.add_task(label, total=None, score="")

    def on_round(self, run: RunHandle, metrics: dict[str, Any]) -> None:
        value = metrics.get(metrics.get("headline", ""))
        if value is not None:
            self._bar.update(self._task, score=f"{metrics['headline']} {value:.4g}")
        self._bar.update(self._task, completed=run.round, total=run.config.rounds)


@contextmanager
def progress() -> Iterator[list[Callback]]:
    """Yield callbacks that show a progress bar over the rounds of one run; an empty list without a terminal."""
    with comparing() as bars:
        yield list(bars("", 0)) if bars else []


@contextmanager
def comparing() -> Iterator[Callable[[str, int], Sequence[Callback]] | None]:
    """Yield a function that makes a progress bar for a method and seed; None without a terminal."""
    console = _terminal()
    if console is None:
        yield None
        return
    with Progress(*_COLUMNS, console=console, transient=True) as bar:
        yield lambda method, seed: [ProgressBar(bar, f"{method}, seed {seed}" if method else "rounds")]


def summary(run: Run) -> None:
    """Print the summary of a run as a table."""
    found = run.summary
    title = f"{run.config.method.name}, {found['rounds']} rounds, {found['seconds']:.1f} s"
    headline = run.headline
    by_cluster = found[f"{headline.name}_by_cluster"]
    clusters = [(f"cluster {name}", headline.text(value)) for name, value in by_cluster.items()]
    rows = [
        *clusters,
        ("mean over peers", headline.text(found[headline.name]) if _all_scored([run]) else _DIVERGED),
        ("same-cluster merges", _percent(found["same_cluster_merges"])),
        ("models sent per peer", _number(found["models_sent_per_peer"], 0)),
    ]
    console = Console()
    print_table(console, ["", headline.label], rows, title=title, sections=[len(clusters)])
    for note in found["notes"]:
        console.print(f"note: {escape(note)}", soft_wrap=True, highlight=False)
    console.print(f"run folder: {escape(str(run.path))}", soft_wrap=True, highlight=False)


def _notes(method: str, runs: Sequence[Run]) -> list[str]:
    """Return the notes of a method's runs: first those of single seeds, with the seed, then those of all seeds."""
    notes = {run.config.seed: run.summary["notes"] for run in runs}
    shared = [note for note in runs[0].summary["notes"] if all(note in found for found in notes.values())]
    own = [f"{method}, seed {seed}: {n}" for seed, found in notes.items() for n in found if n not in shared]
    return [*own, *(f"{method}: {note}" for note in shared)]


def comparison(result: Comparison, fair: bool = False, picture: Path | None = None) -> None:
    """Print all methods as one table, mean ± standard deviation over seeds.

    fair: with the worst tenth of the peers; picture: the figure of a sweep, if there is one.
    """
    console, rows = Console(), result.rows
    if rows:
        headings, lines = _comparison_table(result, fair)
        headline, seeds = rows[0].runs[0].headline, sorted({len(row.runs) for row in rows})
        shown = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
        print_table(console, headings, lines, title=f"{headline.label}, {shown} seed{'s' * (seeds[-1] > 1)}")
    notes = [note for row in rows for note in _notes(row.name, row.runs)]
    notes += [f"{name} is left out: {why}" for name, why in result.left_out.items()]
    notes += [f"{path.name} has not finished" for path in result.unfinished]
    for note in notes:
        console.print(f"note: {escape(note)}", soft_wrap=True, highlight=False)
    console.print(f"run folder: {escape(str(result.path))}", soft_wrap=True, highlight=False)
    if picture is not None:
        console.print(f"figure: {escape(str(picture))}", soft_wrap=True, highlight=False)


def _comparison_table(result: Comparison, fair: bool) -> tuple[list[str], list[list[str]]]:
    """The headings and cells of a comparison's table."""
    table, rows = result.table(fair), result.rows
    headline = rows[0].runs[0].headline
    value = headline.name
    clusters = list(table[rows[0].name][f"{value}_by_cluster"])
    several = clusters if len(clusters) > 1 else []
    uneven = len({len(row.runs) for row in rows}) > 1
    lines = []
    for row in rows:
        cells = table[row.name]
        by_cluster = [(cells[f"{value}_by_cluster"].get(name) or {}).get("mean") for name in several]
        mean = _mean(cells[value], headline) if _all_scored(row.runs) else _DIVERGED
        spread = [(cells[key] or {}).get("mean") for key in _FAIR] if fair else []
        same, sent = cells["same_cluster_merges"], cells["models_sent_per_peer"]
        lines.append(
            [
                row.method,
                *(str(row.swept.get(key, "-")) for key in result.swept),
                *([str(len(row.runs))] if uneven else []),
                *map(headline.text, by_cluster),
                mean,
                *map(headline.text, spread),
                _percent(same and same["mean"]),
                _number(sent["mean"], 0),
            ]
        )
    swept = list(short_names(result.swept).values())
    counted, fairness = ["seeds"] * uneven, list(_FAIR.values()) if fair else []
    return ["method", *swept, *counted, *map(str, several), "mean", *fairness, *_LAST_COLUMNS], lines


def constants(found: AgreedConstants, path: Path) -> None:
    """The constants that were written to a file; of a long list only the first values."""
    console = Console()
    print_pairs(console, {key: _values(value) for key, value in found.table.items()})
    console.print(f"file: {escape(str(path))}", soft_wrap=True, highlight=False)


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
        say(f"{peers} peers, {TOO_FEW}")
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
    for number, members in enumerate(families or []):
        say(f"  family {number}: {len(members)} peers: {_ranges(members)}")
    if answer["precision"] is not None or answer["recall"] is not None:
        shares = [_number(answer[key], 3) for key in ("precision", "recall")]
        say(f"compared with the true clusters: precision {shares[0]}, recall {shares[1]}")
    if answer["left_out"]:
        say(f"left out, without a usable fingerprint: peers {_ranges(answer['left_out'])}")
    say(f"{answer['bytes_per_peer'] / 1e6:.2f} MB sent per peer, {answer['seconds']:.2f} s")
    if picture is not None:
        say(f"picture: {escape(str(picture))}")


def _unseen(found: Discovery) -> str:
    """Return which differences are too small to be found, with how many samples; "" if unknown."""
    if found.smallest_difference is None:
        return ""
    counts = found.prints.count[found.prints.count > 0]
    least, most = int(counts.min()), int(counts.max())
    samples = f"{least} samples" if least == most else f"{least} to {most} samples"
    unseen = power.in_words(found.smallest_difference)
    return f": {unseen} would not have been seen with {samples} per peer"


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


def _all_scored(runs: Sequence[Run]) -> bool:
    """Whether no peer of any run has diverged."""
    return not any(run.summary["diverged"] for run in runs)


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"


def _mean(cell: dict[str, float] | None, headline: Headline) -> str:
    if cell is None:
        return "-"
    return headline.text(cell["mean"]) + (f" ± {headline.text(cell['std'])}" if "std" in cell else "")
