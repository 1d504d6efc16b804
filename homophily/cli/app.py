"""The command line. A user's mistake ends with a one-line error message and exit code 2."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
import warnings
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape

from homophily.api import compare as compare_methods
from homophily.api import kin as compare_fingerprints
from homophily.api import resume as resume_run
from homophily.api import run as start_run
from homophily.atomic_io import locked, write_json
from homophily.cli import backups
from homophily.cli.audit import audit_run
from homophily.cli.exit_codes import ExitCode
from homophily.cli.export import export_model
from homophily.cli.live import follow_folder, live_page
from homophily.cli.plan import plan_run
from homophily.cli.printing import print_result, stoppable
from homophily.cli.ranks import one_speaks, refuse_ranks, watch_ranks
from homophily.cli.reproduce import reproduce
from homophily.cli.theory import show_theory
from homophily.cluster.faults import StoppedRank
from homophily.cluster.joining import is_first
from homophily.config.overlay import nested, split
from homophily.config.schema import TrackerTable
from homophily.data import sample_constants, shifts, sources, write_constants
from homophily.data.transforms import transforms
from homophily.errors import ConfigWarning, DivergedWarning, TrackerWarning, UserError
from homophily.federation.merging import merges
from homophily.federation.similarity import metrics
from homophily.federation.topology import topologies
from homophily.methods import methods
from homophily.models import models
from homophily.plugins.registry import Registry
from homophily.report import comparison_table, plots, progress
from homophily.report import console as show
from homophily.report.page import document, drawing
from homophily.report.sweep_figure import panels
from homophily.runs.comparison import Comparison, Contents
from homophily.runs.reader import Run
from homophily.runs.writer import RunWriter
from homophily.simulation.configuration import load
from homophily.trackers import trackers
from homophily.trackers.run_log import log_run
from homophily.training.objectives import objectives
from homophily.training.resources import threads
from homophily.training.score_metrics import score_metrics
from homophily.version import __version__

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)

Words = Annotated[list[str] | None, typer.Argument(metavar="[CONFIG.toml] [key=value ...]", show_default=False)]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the run (default: a new one under runs/).")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on the last line.")]

_HERE = Path(__file__).parent.parent
_KINDS: dict[str, Registry[Any]] = {
    "methods": methods, "metrics": metrics, "merges": merges, "topologies": topologies, "data": sources,
    "shifts": shifts, "transforms": transforms, "models": models, "objectives": objectives,
    "headlines": score_metrics, "trackers": trackers,
}  # fmt: skip


def _print_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Personalised peer-to-peer federated learning: peers find peers with similar data and merge models with them."""
    refuse_ranks(context.invoked_subcommand)


@app.command()
def run(
    words: Words = None,
    out: Out = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Continue the run in this folder.")] = None,
    live: Annotated[bool, typer.Option("--live", help="Show the run in a browser as it happens.")] = False,
    live_port: Annotated[
        int | None, typer.Option("--live-port", min=1, max=65535, help="The port of --live (default: a free one).")
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Simulate one federation: in each round, all peers train, meet, choose and merge."""
    config, assignments = split(words or [])
    hint = stoppable(lambda run: f"continue with: homophily run --resume {run}")
    watching = progress.one_run() if is_first() else nullcontext(())
    if live_port is not None and not live:
        raise UserError("--live-port is the port of --live: add --live")
    with hint, live_page(live and is_first(), live_port or 0) as page, watching as bar:
        if resume is not None:
            if config is not None or out is not None:
                raise UserError("--resume uses the config and folder of the run: leave out CONFIG.toml and --out")
            if device != "auto":
                raise UserError("--resume uses the device of the run: leave out --device")
            finished = resume_run(resume, nested(assignments), callbacks=[*page, *bar])
        else:
            finished = start_run(load(config, nested(assignments)), out=out, device=device, callbacks=[*page, *bar])
    if is_first():
        print_result(finished.summary, as_json, lambda: show.summary(finished))
    _fail_if_all_diverged(finished)


def _fail_if_all_diverged(run: Run) -> None:
    """Exit with code 1 if every peer has diverged, because such a run has no scores."""
    config = run.config
    if len(run.summary["diverged"]) == config.peers:
        if is_first():
            _complain(
                f"every peer has diverged, so there are no scores: training.lr = {config.training.lr:g} may be too high"
            )
        raise SystemExit(ExitCode.FAILED)


@app.command()
def compare(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[CONFIG.toml | FOLDER] [key=value ...]", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the runs, new or of a comparison (default: a new one under runs/)."),
    ] = None,
    fairness: Annotated[
        bool, typer.Option("--fairness", help="Add the worst tenth of the peers and the spread over peers.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Processes that play one run at a time each.")
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Run several methods on the same federations: methods=local,random,oracle seeds=0,1,2.

    FOLDER alone shows a comparison. With methods=, seeds= or sweep.KEY=, it takes more runs, and only those are run.
    --out FOLDER alone runs what is missing in it.
    """
    config, assignments = split(words or [])
    stored = None if assignments else _stored_comparison(config or out)
    if stored is not None and (config is None or workers is not None) and stored.unfinished:
        config, stored = stored.path, None  # run what is missing
    watching = progress.many_runs() if is_first() else nullcontext(None)
    with stoppable(lambda run: f"continue with the same command and --out {run.parent}"), watching as bars:
        comparison = stored or compare_methods(
            config, nested(assignments), out=out, device=device, callbacks=bars, workers=workers
        )
    if not is_first():
        return
    whole, picture = Comparison(comparison.path), None
    if panels(whole):
        picture = show.picture(partial(plots.sweep, whole), comparison.path / "sweep.png")
    table = {"methods": comparison.table(fairness), "run": str(comparison.path)}
    print_result(table, as_json, lambda: comparison_table.comparison(comparison, fairness, picture))


def _stored_comparison(folder: Path | None) -> Comparison | None:
    """The comparison in a folder; None if the path is not the folder of one."""
    return Comparison(folder) if folder is not None and Contents.read(folder) is not None else None


@app.command("kin")
def show_kin(words: Words = None, out: Out = None, device: Device = "auto", as_json: Json = False) -> None:
    """Find families of peers with similar data by kin's fingerprints, before any training."""
    config, assignments = split(words or [])
    chosen = load(config, nested(assignments))
    found = compare_fingerprints(chosen, device=device)
    folder = RunWriter.create(out, f"kin-{Path(chosen.data.name).name}-{chosen.seed}").path
    write_json(folder / "kin.json", found.summary())
    picture = show.picture(partial(plots.acquaintance, found), folder / "kin.png")
    print_result({**found.summary(), "run": str(folder)}, as_json, lambda: show.acquaintance(found, picture))


@app.command("scale")
def write_scale(
    words: Words = None,
    out: Annotated[Path, typer.Option("--out", help="The file to write.")] = Path("scale.toml"),
    as_json: Json = False,
) -> None:
    """Compute constants for data.scale, on which all peers agree, from a sample, and write them to a file."""
    config, assignments = split(words or [])
    chosen = load(config, nested(assignments))
    data = chosen.data
    settings = {key: getattr(data, key) for key in type(data).model_fields if key != "name"}
    with threads(1):  # as in a run: the constants must be the same bits
        found = sample_constants(data.name, data.keys, settings, chosen.peers, chosen.seed)
    write_constants(found, out, data.name)
    print_result({**found.table, "file": str(out)}, as_json, lambda: show.constants(found, out))


@app.command("list")
def list_names(kind: Annotated[str | None, typer.Argument(help=", ".join(_KINDS))] = None) -> None:
    """List the names that a config can use, with one line about each."""
    if kind is not None and kind not in _KINDS:
        raise UserError(f"there is no list of {kind!r}; there are {', '.join(_KINDS)}")
    for name in [kind] if kind else _KINDS:
        show.names(name, {item: _KINDS[name].about(item) for item in _KINDS[name]})


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER ...", help="Runs, comparisons or peers' states.")],
    out: Annotated[Path, typer.Option("--out", help="The HTML file to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Also write each figure as PNG and SVG, and each table, here.")
    ] = None,
) -> None:
    """Write one HTML file that shows runs, comparisons or real peers, finished or not."""
    views = document.views_of(folders)
    if figures is not None:
        drawing.draw_all(views, figures)
    document.write_page(views, out)
    print(out)


app.command("export")(export_model)
app.command("live")(follow_folder)
app.command("backup")(backups.back_up)
app.command("restore")(backups.restore)
app.command("plan")(plan_run)
app.command("reproduce")(reproduce)
app.command("audit")(audit_run)
app.command("theory")(show_theory)


@app.command("log")
def log_folder(
    folder: Annotated[Path, typer.Argument(help="A run or a comparison.")],
    to: Annotated[str, typer.Option("--to", help=f"{', '.join(trackers)}, or package.module:name.")],
    words: Annotated[list[str] | None, typer.Argument(metavar="[key=value ...]", show_default=False)] = None,
) -> None:
    """Log a run, or all runs of a comparison, in an experiment tracker: rounds that were not logged there before."""
    table = TrackerTable(name=to, **nested(words or []))
    found = _stored_comparison(folder)
    for run in [Run(folder)] if found is None else chain(*found.runs.values()):
        with locked(run.path):
            rounds = log_run(run, table)
        print(f"{run.path}: {rounds} rounds logged to {to}")


def _add_peer_commands() -> None:
    """Add cert, peer, status, doctor and deploy; without the peer extra, they only print what to install."""
    try:
        from homophily.cli import federation as governing
        from homophily.cli import peer as commands
    except ModuleNotFoundError as error:
        missing = error.name

        def unavailable() -> None:
            """Needs the peer extra: pip install 'homophily[peer]'."""
            raise UserError(f"this needs {missing}: install the peer extra with pip install 'homophily[peer]'")

        for name in ("cert", "federation", "join", "peer", "status", "doctor", "deploy"):
            app.command(name, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(unavailable)
        return
    app.add_typer(commands.cert, name="cert")
    app.add_typer(governing.federation, name="federation")
    app.command("join")(governing.join_federation)
    app.command("peer")(commands.peer)
    app.command("status")(commands.status)
    app.command("doctor")(commands.diagnose)
    app.command("deploy")(commands.run_deployment)


_add_peer_commands()


def main() -> None:
    """Entry point of the ``homophily`` command."""
    sys.path.insert(0, os.getcwd())  # package.module:name may be in the working directory
    warnings.simplefilter("ignore", DivergedWarning)  # a run's notes contain the same warning
    warnings.showwarning = _show_warning  # type: ignore[assignment]  # without the arguments file and line
    try:
        watch_ranks()
        app()
    except StoppedRank as stopped:
        one_speaks(stopped.error, str(stopped), _complain)
    except Exception as error:
        text = str(error) if isinstance(error, UserError) else _out_of_memory(error) or _in_own_code(error)
        if text is None:
            raise
        message = " ".join(text.splitlines())  # quoted messages of torch may have several lines
        one_speaks(error, message, _complain)
        raise SystemExit(ExitCode.MISTAKE) from None


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
    """Print a warning of homophily's own as a note, and others as Python does."""
    own = issubclass(category, ConfigWarning | TrackerWarning)
    text = f"note: {message}" if own else warnings.formatwarning(message, category, filename, lineno).rstrip()
    Console(stderr=True, soft_wrap=True).print(escape(text), highlight=False)


def _complain(message: str) -> None:
    Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(message)}", highlight=False)


def _out_of_memory(error: Exception) -> str | None:
    """Return the message for a GPU out of memory, which can happen if other processes use it too; None: not this."""
    if not isinstance(error, torch.OutOfMemoryError):
        return None
    reason = ". ".join(str(error).split(". ")[:3])  # how much memory was needed, and how much was free
    return f"{reason}. A run that has started can be continued from its last checkpoint with --resume"


def _in_own_code(error: Exception) -> str | None:
    """Return the message for an exception in a user's own code, with file and line; None if it is not from there."""
    installed = [Path(path).resolve() for path in sysconfig.get_paths().values()]
    called, where = False, None
    for frame in traceback.extract_tb(error.__traceback__):
        file = Path(frame.filename)
        if file.is_relative_to(_HERE):
            called = True
        elif called and file.is_file() and not any(file.resolve().is_relative_to(path) for path in installed):
            where = frame
    return where and f"{where.filename}:{where.lineno}: {where.name} fails: {type(error).__name__}: {error}"
