"""The command live, and the option --live of run: a folder in the browser as it changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from homophily.atomic_io import in_use
from homophily.cli.exit_codes import ExitCode
from homophily.errors import UserError
from homophily.experiments.callbacks import Callback
from homophily.report.live.access import Access, bound, is_loopback
from homophily.report.live.prometheus import PRIVATE, private_peer
from homophily.report.live.server import LiveRun, LiveServer, address, check_installed
from homophily.report.page.sources import is_comparison, is_run
from homophily.runs.reader import runs_inside

_HOST = "127.0.0.1"


def follow_folder(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A run, a comparison or a peer's state.")],
    host: Annotated[
        str, typer.Option("--host", help="Where to listen; outside this machine a token is needed.")
    ] = _HOST,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 0,
) -> None:
    """Show a run, a comparison or a real peer in the browser as it happens, until Ctrl-C."""
    check_installed()
    begun = is_run(folder) or is_comparison(folder)
    if not begun and not _may_begin(folder):
        what = "has no config.toml (a run or a peer) and no comparison.json (a comparison)"
        raise UserError(f"{folder}: {what}{runs_inside(folder)}")
    if private_peer(folder) and not is_loopback(host):
        raise UserError(
            f"--host {host}: {PRIVATE}; leave --host out, and let Prometheus read `homophily peer --metrics`, which "
            "has no scores"
        )
    access, listening = Access(host), bound(host, port)
    if not begun:
        _say(f"no run has begun in {folder}: the page waits for one")
    _announce(address(access, listening))
    try:
        LiveServer(folder, access, listening).serve()
    except KeyboardInterrupt:
        raise SystemExit(ExitCode.STOPPED) from None


@contextmanager
def live_page(wanted: bool, port: int = 0) -> Iterator[list[Callback]]:
    """Yield a callback that serves the page of a run from its start to its end; none if it is not wanted.

    port: 0 is any that is free.
    """
    if not wanted:
        yield []
        return
    check_installed()
    access, listening = Access(_HOST), bound(_HOST, port)
    _announce(address(access, listening))
    with ExitStack() as stack:
        stack.callback(listening.close)

        def serve(folder: Path) -> None:
            stack.enter_context(LiveServer(folder, access, listening).in_background())

        yield [LiveRun(serve)]


def _may_begin(folder: Path) -> bool:
    """Whether a run may begin in a folder: it does not exist, is empty, or a process is about to begin one."""
    return not folder.exists() or (folder.is_dir() and (in_use(folder) or not any(folder.iterdir())))


def _announce(where: str) -> None:
    _say(f"live page: {where}")


def _say(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(text, highlight=False, markup=False)
