"""The settings of a real peer: peer.toml is a config with a table [peer]."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from homophily.config.overlay import as_tables, flat, read
from homophily.config.schema import Config
from homophily.config.table import Table
from homophily.data.constants import AgreedScale
from homophily.errors import UserError
from homophily.peer.certificates import NAME_RULE, is_name, read_certificate
from homophily.peer.membership_document import MembershipDocument, is_address
from homophily.peer.membership_keeper import newest
from homophily.plugins.parameters import parsed, refuse_unknown
from homophily.simulation.configuration import make, overlaid

# Of the table [peer]: what a membership document can set for all peers
SHARED_KEYS = ("mesh", "pace", "classes")


class Peer(Table):
    """The table [peer]."""

    name: str
    allow: list[str] = Field(default=[])  # the names of all peers, including this one; empty: from the document
    membership: str = ""  # a membership document
    deny: list[str] = Field(default=[])  # names that are refused though they are in ``allow`` or the document
    federation: str = "federation"
    listen: list[str] = Field(default=[])  # host:port
    connect: list[str] = Field(default=[])  # host:port
    mesh: Literal["full", "partial"] = "full"
    ca: str = "certs/ca.pem"
    certificate: str = ""  # left out: certs/NAME.pem
    key: str = ""  # left out: certs/NAME.key
    state: str = ""  # left out: the peer's name
    device: Literal["auto", "cpu", "cuda"] = "auto"  # device on which it trains
    pace: Literal["free", "lockstep"] = "free"
    wait_for: int | None = Field(None, ge=0)  # other peers that must be online before the first round
    deadline: float = Field(30.0, gt=0, allow_inf_nan=False)  # seconds that a round waits for other peers
    staleness: int = Field(3, ge=0)  # age in rounds that a model may have, with pace = "free"
    lease: float = Field(3.0, ge=0.5, le=60)  # seconds without traffic after which a connection is closed
    pulls: int = Field(4, ge=1, le=64)  # models that are fetched at a time
    window: int = Field(4, ge=1, le=64)  # concurrent requests for each of them
    slots: int = Field(8, ge=1, le=64)  # requests answered at a time, for each distance in hops
    waiting: int = Field(256, ge=1, le=65536)  # requests that may wait to be answered, for each distance in hops
    cache_mb: int = Field(256, ge=8)  # size of the cache of relayed chunks
    merge_guard: float | None = Field(None, ge=1, allow_inf_nan=False)  # left out: as the config's merge_guard
    log_mb: float = Field(1.0, ge=0.01, le=1024)  # size at which peer.log is renamed to peer.log.1
    log_files: int = Field(1, ge=1, le=1000)  # renamed files that are kept
    classes: int | None = Field(None, ge=2)  # classes in the whole federation; a peer's own data may lack some
    share: int | None = Field(
        None, ge=0
    )  # the part of simulated data that this peer uses; its id is its position in ``allow``


@dataclass(frozen=True)
class PeerSettings:
    """The content of a peer's file. Paths are relative to the file."""

    config: Config
    peer: Peer
    folder: Path
    document: MembershipDocument | None = None
    values: Mapping[str, Any] = field(default_factory=dict)  # of the file; of [peer] only SHARED_KEYS

    def under(self, document: MembershipDocument) -> PeerSettings:
        """These settings with the members and shared settings of a document. Raises UserError if they contradict it."""
        if self.peer.name not in document.members:
            raise UserError(
                f"{self.peer.name} is not a member of {document.federation} by the membership document version "
                f"{document.version}: its operator must be added or invited by the authority"
            )
        own, shared = flat(as_tables(self.values)), flat(as_tables(document.settings))
        for key in sorted(own.keys() & shared.keys()):
            if own[key] != shared[key]:
                raise UserError(
                    f"{key} = {own[key]!r}, but the membership document version {document.version} has "
                    f"{shared[key]!r} for all: remove the key from the peer's file"
                )
        names = [name for name in sorted(document.members) if name not in self.peer.deny]
        config = overlaid(document.settings, self.values)
        keys = {**document.settings.get("peer", {}), **config.pop("peer", {})}
        found = parsed(Peer, {"name": self.peer.name, **keys}, "peer")
        peer = self.peer.model_copy(update={"allow": names, **{key: getattr(found, key) for key in SHARED_KEYS}})
        return replace(self, config=make(config), peer=peer, document=document)

    def absence(self, name: str) -> str:
        """Why a name is not one of the allowed ones, as the end of "a name ..."."""
        if name in self.peer.deny:
            return "in peer.deny"
        return "not in peer.allow" if self.document is None else "not in the membership document"

    def path(self, given: str, default: str = "") -> Path:
        return self.folder / (given or default)

    @property
    def certificate(self) -> Path:
        return self.path(self.peer.certificate, f"certs/{self.peer.name}.pem")

    @property
    def key(self) -> Path:
        return self.path(self.peer.key, f"certs/{self.peer.name}.key")

    @property
    def state(self) -> Path:
        return self.path(self.peer.state, self.peer.name)

    @property
    def stored_document(self) -> Path:
        """Where a running peer stores the newest membership document."""
        return self.state / "membership.json"


def load(path: Path) -> PeerSettings:
    """Read a peer's file and check every key. Raises UserError."""
    values = read(path)
    table = values.pop("peer", None)
    if not isinstance(table, Mapping):
        raise UserError(f"{path} has no table [peer]: it must set at least peer.name and peer.allow")
    refuse_unknown("peer", table, list(Peer.model_fields))
    if "name" not in table:
        raise UserError(f"peer.name is missing in {path}")
    if ("allow" in table) == ("membership" in table):
        raise UserError(f"peer.allow is missing in {path}: give it, or peer.membership, and not both")
    peer: Peer = parsed(Peer, table, "peer")
    _check(peer)
    given = {key: table[key] for key in SHARED_KEYS if key in table}
    settings = PeerSettings(make(values), peer, path.parent, values={**values, "peer": given} if given else values)
    if not peer.membership:
        allow = [name for name in peer.allow if name not in peer.deny]
        return replace(settings, peer=peer.model_copy(update={"allow": allow}))
    paths = [settings.stored_document, settings.path(peer.membership)]
    authority = read_certificate(settings.path(peer.ca))
    return settings.under(newest([path for path in paths if path.exists()] or paths[1:], authority, peer.federation)[1])


def shared_settings(path: Path) -> dict[str, Any]:
    """The settings in a TOML file that all peers shall have: keys of a config, and SHARED_KEYS of the table [peer].

    If data.scale names a file, which members do not have, its content takes the place of the name.
    """
    values = read(path, "settings")
    data = values.get("data")
    if isinstance(data, Mapping) and isinstance(data.get("scale"), str):
        agreed = AgreedScale.read(str(path.parent / data["scale"]))
        values["data"] = {**data, "scale": dict(agreed.constants.table)}
    table = values.get("peer", {})
    if not isinstance(table, Mapping) or not table.keys() <= set(SHARED_KEYS):
        raise UserError(f"{path}: of the table [peer] only {', '.join(SHARED_KEYS)} can be shared by all peers")
    parsed(Peer, {"name": "shared", **table}, "peer")
    make({key: value for key, value in values.items() if key != "peer"})
    return values


def _check(peer: Peer) -> None:
    lists = {"name": [peer.name], "allow": peer.allow, "federation": [peer.federation], "deny": peer.deny}
    for key, names in lists.items():
        for name in names:
            if not is_name(name):
                raise UserError(f"peer.{key} = {name!r}: {NAME_RULE}")
    for name in peer.allow:
        if peer.allow.count(name) > 1:
            raise UserError(f"peer.allow names {name!r} twice")
    if peer.name in peer.deny:
        raise UserError(f"peer.deny must not name this peer itself, {peer.name!r}")
    if peer.share is not None and (peer.membership or peer.deny):
        raise UserError("peer.share: the peers of a simulation need peer.allow, without peer.membership and peer.deny")
    if not peer.membership and peer.name not in peer.allow:
        raise UserError(f"peer.allow must also name this peer itself, {peer.name!r}")
    place = peer.allow.index(peer.name) if peer.allow else None
    if peer.share not in (None, place):
        raise UserError(f"peer.share = {peer.share}: must be {place}, the position of {peer.name!r} in peer.allow")
    for key in ("listen", "connect"):
        for address in getattr(peer, key):
            if not is_address(address):
                raise UserError(f"peer.{key} = {address!r}: must be host:port, such as 192.0.2.7:7447")


def outside_loopback(peer: Peer) -> list[str]:
    """The addresses of peer.listen and peer.connect that are not loopback addresses of this machine."""
    addresses = [*peer.listen, *peer.connect]
    return [address for address in addresses if not _is_loopback(address.rpartition(":")[0].strip("[]"))]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
