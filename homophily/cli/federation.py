"""The commands federation and join. Imported only with the [peer] extra installed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from homophily.cli.peer import Folder, Json
from homophily.cli.values import formatted
from homophily.config.overlay import as_tables, flat
from homophily.errors import UserError
from homophily.peer import admission, federation_folder, joining
from homophily.peer.authority_service import AuthorityService
from homophily.peer.invitation import Invitation
from homophily.peer.membership_document import MembershipDocument
from homophily.peer.process import stopping
from homophily.report.tables import print_pairs

federation = typer.Typer(no_args_is_help=True, help="Govern a federation: who is a member, which settings all share.")
Member = Annotated[str, typer.Argument(help="The peer's name.")]
ServiceAddresses = Annotated[
    list[str] | None,
    typer.Option("--at", help="host:port at which peers reach this authority; may be given several times."),
]
Shared = Annotated[Path, typer.Argument(metavar="SETTINGS.toml", help="Config keys that all peers share.")]


@federation.command("init")
def init_federation(
    name: Annotated[str, typer.Argument(help="The federation's name.")],
    settings: Annotated[
        Path | None, typer.Option("--settings", metavar="SETTINGS.toml", help="Config keys that all peers share.")
    ] = None,
    at: ServiceAddresses = None,
    folder: Folder = Path("certs"),
) -> None:
    """Make an authority, unless the folder has one, and the first membership document."""
    _print_document(federation_folder.init(folder, name, settings, at or []), False)
    here = "" if folder == Path("certs") else f" --folder {shlex.quote(str(folder))}"
    print(
        f"\nnext, on this machine:      homophily federation serve{'' if at else ' --at HOST:PORT'}{here}\n"
        f"then, for each new member:  homophily federation invite NAME{here}"
    )


@federation.command("add")
def add_member(
    name: Member,
    address: Annotated[
        list[str] | None,
        typer.Option("--address", help="host:port at which other peers reach it; may be given several times."),
    ] = None,
    folder: Folder = Path("certs"),
) -> None:
    """Make a peer a member, or change its addresses, in a new version of the document."""
    _print_document(federation_folder.add(folder, name, address or []), False)


@federation.command("remove")
def remove_member(name: Member, folder: Folder = Path("certs")) -> None:
    """End a membership, and revoke the certificates of that peer."""
    _print_document(federation_folder.remove(folder, name), False)


@federation.command("revoke")
def revoke_certificates(name: Member, folder: Folder = Path("certs")) -> None:
    """Revoke the certificates of a member, which then needs a new one."""
    _print_document(federation_folder.revoke(folder, name), False)


@federation.command("share")
def share_settings(settings: Shared, folder: Folder = Path("certs")) -> None:
    """Replace the settings that all members share."""
    before = federation_folder.current(folder)
    document = federation_folder.share(folder, settings)
    _print_document(document, False)
    if (refused := federation_folder.refused_by_states(before, document)) is not None:
        text = (
            f"note: {refused}: while they run they play on with the settings of before, but they cannot start again. "
            "Share the settings of before again, or let each member set peer.state to a new folder"
        )
        Console(stderr=True, soft_wrap=True).print(text, highlight=False, markup=False)


@federation.command("show")
def show_document(folder: Folder = Path("certs"), as_json: Json = False) -> None:
    """Show the membership document."""
    _print_document(federation_folder.current(folder), as_json)


@federation.command("serve")
def serve_authority(
    at: ServiceAddresses = None,
    listen: Annotated[
        list[str] | None, typer.Option("--listen", help="host:port to listen on, if not the addresses of --at.")
    ] = None,
    folder: Folder = Path("certs"),
) -> None:
    """Take requests for certificates, renew them, and hand out the membership document, until Ctrl-C."""
    if at:
        federation_folder.serve_at(folder, at)
    addresses = listen or federation_folder.read_ledger(folder).authority
    if not addresses:
        raise UserError("give the address of this machine, as other peers reach it: --at HOST:PORT")
    for address in addresses:
        federation_folder.check_address("--listen", address)
    console = Console(stderr=True, soft_wrap=True)
    service = AuthorityService(folder, addresses, lambda line: _log_line(console, line))
    _log_line(console, f"the authority listens on {', '.join(service.addresses)}")
    try:
        with stopping():
            service.wait()
    except KeyboardInterrupt:
        _log_line(console, "the authority stops")
    finally:
        service.close()


def _log_line(console: Console, line: str) -> None:
    console.print(f"{datetime.now():%Y-%m-%d %H:%M:%S} {line}", highlight=False, markup=False)


@federation.command("invite")
def invite_member(
    name: Member,
    hours: Annotated[float, typer.Option("--hours", min=0.01, max=8760, help="Hours until it expires.")] = 72,
    folder: Folder = Path("certs"),
) -> None:
    """Print a token with which one peer can join once: its operator types homophily join TOKEN."""
    print(admission.invite(folder, name, hours).token())


@federation.command("requests")
def list_requests(folder: Folder = Path("certs"), as_json: Json = False) -> None:
    """Show the peers that wait for a certificate."""
    found = {
        name: {
            "addresses": request["addresses"],
            "source": request["source"],
            "since": datetime.fromtimestamp(request["since"]).isoformat(" "),
        }
        for name, request in admission.waiting(folder).items()
    }
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    elif not found:
        print("no peer waits for a certificate")
    else:
        print_pairs(Console(), {name: formatted(request) for name, request in found.items()})


@federation.command("confirm")
def confirm_request(
    name: Member,
    code: Annotated[list[str] | None, typer.Argument(help="The code that the operator of that peer reads out.")] = None,
    folder: Folder = Path("certs"),
) -> None:
    """Admit a peer that waits, if the code is right: it becomes a member and gets its certificate."""
    typed = code or [typer.prompt(f"the code that the operator of {name} reads out")]
    _print_document(admission.confirm(folder, name, "".join("".join(typed).split())), False)


def _print_document(document: MembershipDocument, as_json: bool) -> None:
    found = federation_folder.shown(document)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        found["settings"] = _in_words(document.settings) or None
        print_pairs(Console(), {key: formatted(value) for key, value in found.items()})


def _in_words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value!r}" for key, value in flat(as_tables(settings)).items())


def join_federation(
    token: Annotated[str, typer.Argument(help="The token of the invitation.")],
    listen: Annotated[
        list[str] | None, typer.Option("--listen", help="host:port to listen on; left out, the peer only dials out.")
    ] = None,
    address: Annotated[
        list[str] | None,
        typer.Option("--address", help="host:port at which other peers reach it, if not the addresses of --listen."),
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="The peer's data, for data.name in its file.")] = None,
    file: Annotated[Path, typer.Option("--file", help="The peer's file, which is written.")] = Path("peer.toml"),
) -> None:
    """Join a federation by invitation: make a key, get a certificate, and write the peer's file."""
    console = Console(stderr=True, soft_wrap=True)
    invitation = Invitation.read(token)
    until = datetime.fromtimestamp(invitation.expires).isoformat(" ", "minutes")
    shared = _in_words(invitation.settings)
    console.print(
        f"{invitation.name} joins {invitation.federation}, invited until {until}; all members share: {shared or '-'}",
        highlight=False, markup=False,
    )  # fmt: skip

    def read_out(code: str) -> None:
        console.print(
            f"code: {code[:3]} {code[3:]}\nread it out to the person at the authority, for example by telephone; "
            "this command waits until it is confirmed there",
            highlight=False,
        )

    joining.join(invitation, joining.NewPeer(file, listen or [], address or [], data), read_out)
    note = "" if data else "; set data.name in it"
    print(f"{file}: {invitation.name} has joined {invitation.federation}{note}; start it with: homophily peer {file}")
