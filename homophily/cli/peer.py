"""The commands of real peers: cert, peer, status, doctor, deploy. Imported only with the [peer] extra installed."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from homophily.cli.exit_codes import ExitCode
from homophily.cli.values import formatted
from homophily.config.overlay import nested, split
from homophily.errors import UserError
from homophily.peer import Peer, certificates, deploy, doctor, federation_folder
from homophily.report import console as show
from homophily.report import progress
from homophily.report.live import endpoint
from homophily.report.live.prometheus import private_peer
from homophily.report.tables import print_pairs
from homophily.runs.writer import RunWriter
from homophily.simulation.configuration import load

cert = typer.Typer(no_args_is_help=True, help="Make a private certificate authority, and certificates for peers.")

Folder = Annotated[Path, typer.Option("--folder", help="Folder of keys and certificates.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on the last line.")]


class LogFormat(StrEnum):
    """The values of --log-format."""

    TEXT = "text"
    JSON = "json"


@cert.command()
def init(folder: Folder = Path("certs")) -> None:
    """Make the authority: ca.pem for all peers, and ca.key, which must stay secret."""
    print(certificates.init(folder))


@cert.command()
def issue(
    name: Annotated[str, typer.Argument(help="The peer's name.")],
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="Host name or address that other peers connect to; may be given several times."),
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=36500, help="Days until the certificate expires.")] = 365,
    folder: Folder = Path("certs"),
) -> None:
    """Make a key and a certificate for a peer."""
    print(federation_folder.issue_key(folder, name, host or [], days))


def peer(
    file: Annotated[Path, typer.Argument(metavar="PEER.toml", help="The peer's file.")],
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS; on loopback addresses only.")] = False,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="HOST:PORT", help="Serve /metrics (Prometheus) and /health here."),
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="Lines of the log: text, or a JSON object each.")
    ] = LogFormat.TEXT,
    log_stderr: Annotated[
        bool, typer.Option("--log-stderr", help="Print the log on stderr too, as containers expect it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run one real peer: train on its own data, find similar peers, merge with them."""
    sys.path.insert(0, str(file.parent.resolve()))  # package.module:name may be a module beside the file
    try:
        with ExitStack() as stack:
            bar = [] if log_stderr else stack.enter_context(progress.one_run())
            as_objects = log_format is LogFormat.JSON
            node = Peer(
                file, insecure=insecure, callbacks=bar, alone=True, json_log=as_objects, log_to_stderr=log_stderr
            )
            if metrics is not None:
                where = stack.enter_context(endpoint.serving(node.settings.state, metrics))
                Console(stderr=True, soft_wrap=True).print(f"metrics and health: {where}", highlight=False)
            run = node.result()
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped; the same command resumes it", highlight=False)
        raise SystemExit(ExitCode.STOPPED) from None
    if as_json:
        print(json.dumps(run.summary, ensure_ascii=False))
    else:  # the output of a container is collected elsewhere, where scores on private samples must not go
        show.summary(run, scores=not (log_stderr and private_peer(run.path)))


def status(
    folder: Annotated[Path, typer.Argument(help="A peer's state folder.")],
    as_json: Json = False,
) -> None:
    """Show a peer's status: round, neighbours, similarities, score, traffic, unreachable peers."""
    found = deploy.status(folder)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    for field in ("time", "certificate_expires"):
        if isinstance(found.get(field), float):
            found[field] = datetime.fromtimestamp(found[field]).isoformat(" ", "seconds")
    print_pairs(Console(), {key.replace("_", " "): formatted(value) for key, value in found.items()})


def diagnose(
    file: Annotated[Path, typer.Argument(metavar="PEER.toml", help="The peer's file.")],
    as_json: Json = False,
) -> None:
    """Check a peer's file, data, disk, certificate and connections; exit with code 1 if something must be done."""
    sys.path.insert(0, str(file.parent.resolve()))
    checks = []
    for check in doctor.examine(file):
        checks.append(check)
        if not as_json:
            print(f"{'ok ' if check.ok else 'FIX'}  {check.subject}: {check.text}", flush=True)
    if as_json:
        print(json.dumps({"ok": all(c.ok for c in checks), "checks": [asdict(c) for c in checks]}, ensure_ascii=False))
    if not all(check.ok for check in checks):
        raise SystemExit(ExitCode.FAILED)


def run_deployment(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[CONFIG.toml] [key=value ...]")] = None,
    local: Annotated[int, typer.Option("--local", min=2, help="Number of peers, each a process on this machine.")] = 8,
    pace: Annotated[str, typer.Option("--pace", help="lockstep (equals the simulation) or free.")] = "lockstep",
    out: Annotated[Path | None, typer.Option("--out", help="Folder (default: a new one under runs/).")] = None,
    as_json: Json = False,
) -> None:
    """Run a config with real peers on this machine over TLS, and compare them with its simulation."""
    if pace not in ("lockstep", "free"):
        raise UserError(f"--pace {pace}: must be lockstep or free")
    file, assignments = split(arguments or [])
    config = load(file, nested(assignments))
    folder = RunWriter.create(out, f"deploy-{config.method.name}-{config.seed}").path
    progress = Console(stderr=True, soft_wrap=True)
    result = deploy.deploy(
        config, local, folder.resolve(), pace, lambda text: progress.print(text, highlight=False)
    ).result()
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
        return
    largest = result["largest_difference"]
    difference = "only one side's weights have diverged" if largest is None else f"weights differ by {largest:.3g}"
    weights = "weights are identical, bit for bit" if result["identical"] else difference
    if result["identical"] is None:
        weights = "weights are not compared, since the noise of real peers cannot be repeated"
    real, simulated = (_score(result[side]) for side in ("score", "simulated_score"))
    scores = f"{result['headline']}: real {real}, simulated {simulated}"
    communication = compared_communication(result)
    Console(soft_wrap=True).print(
        f"{local} real peers and the simulation: {weights}; {communication}; {scores}; {result['run']}"
    )


def _score(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.2f}"


def compared_communication(result: dict[str, Any]) -> str:
    """The communication of the real peers and of the simulation, as a phrase."""
    costs = "{models_sent_per_peer:.2f} models and {bytes_sent_per_peer:.0f} bytes per peer"
    real = costs.format(**result["bill"])
    if result["bills_identical"]:
        return f"communication is identical, {real}"
    how = "is not compared" if result["bills_identical"] is None else "differs"
    return f"communication {how}, real {real}, simulated {costs.format(**result['simulated_bill'])}"
