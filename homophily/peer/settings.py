"""peer.toml: an ordinary config and a table [peer] with this peer's name, addresses and peers."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from homophily.config.overlay import read
from homophily.config.schema import Config, Table
from homophily.errors import UserError
from homophily.peer.certificates import NAMES, is_name
from homophily.plugins.parameters import parsed, refuse_unknown
from homophily.simulation.configuration import make

_ADDRESS = re.compile(r"(?:[a-zA-Z0-9.-]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})")


class Peer(Table):
    """The table [peer]."""

    name: str
    allow: list[str]  # all peers of the federation, this one among them
    federation: str = "federation"
    listen: list[str] = Field(default=[])  # host:port
    connect: list[str] = Field(default=[])  # host:port
    mesh: Literal["full", "partial"] = "full"
    ca: str = "certs/ca.pem"
    certificate: str = ""  # left out: certs/NAME.pem
    key: str = ""  # left out: certs/NAME.key
    state: str = ""  # left out: the peer's name
    device: Literal["auto", "cpu", "cuda"] = "auto"  # where it trains
    pace: Literal["free", "lockstep"] = "free"
    wait_for: int | None = Field(None, ge=0)  # others that must be online before the first round
    deadline: float = Field(30.0, gt=0, allow_inf_nan=False)  # seconds that a round waits for models
    staleness: int = Field(3, ge=0)  # rounds that a model may be old, at a free pace
    lease: float = Field(3.0, ge=0.5, le=60)  # seconds without a sign of life
    pulls: int = Field(4, ge=1, le=64)  # models that are pulled at a time
    window: int = Field(4, ge=1, le=64)  # requests for each of them at a time
    slots: int = Field(8, ge=1, le=64)  # requests that are answered at a time, for each distance
    waiting: int = Field(256, ge=1, le=65536)  # requests that may wait for that, for each distance
    cache_mb: int = Field(256, ge=8)  # of others' chunks that were passed on
    classes: int | None = Field(None, ge=2)  # in the whole federation; a peer's own data may lack some
    share: int | None = Field(None, ge=0)  # whose part of simulated data this peer plays; ids are places in ``allow``


@dataclass(frozen=True)
class PeerSettings:
    """The content of a peer's file. Paths are relative to the file."""

    config: Config
    peer: Peer
    folder: Path

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


def load(path: Path) -> PeerSettings:
    """A peer's file, every key of every table checked."""
    values = read(path)
    table = values.pop("peer", None)
    if not isinstance(table, Mapping):
        raise UserError(f"{path} has no table [peer], which must name this peer and the peers that it talks to")
    refuse_unknown("peer", table, list(Peer.model_fields), "[peer] has")
    for key in ("name", "allow"):
        if key not in table:
            raise UserError(f"peer.{key} is missing in {path}")
    peer: Peer = parsed(Peer, table, "peer")
    _check(peer)
    config = make(values)
    return PeerSettings(config, peer, path.parent)


def _check(peer: Peer) -> None:
    for key, names in {"name": [peer.name], "allow": peer.allow, "federation": [peer.federation]}.items():
        for name in names:
            if not is_name(name):
                raise UserError(f"peer.{key} = {name!r}: {NAMES}")
    if len(set(peer.allow)) < len(peer.allow):
        raise UserError("peer.allow names a peer twice")
    if peer.name not in peer.allow:
        raise UserError(f"peer.allow must name this peer itself, {peer.name!r}, as well")
    place = peer.allow.index(peer.name)
    if peer.share not in (None, place):
        raise UserError(f"peer.share = {peer.share}: {peer.name!r} has place {place} in peer.allow")
    for key in ("listen", "connect"):
        for address in getattr(peer, key):
            found = _ADDRESS.fullmatch(address)
            if found is None or not 0 < int(found[1]) < 65536:
                raise UserError(f"peer.{key} = {address!r}: must be host:port")


def only_loopback(peer: Peer) -> bool:
    """Whether all addresses are loopback addresses of this machine."""
    return all(_is_loopback(address.rpartition(":")[0].strip("[]")) for address in [*peer.listen, *peer.connect])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
