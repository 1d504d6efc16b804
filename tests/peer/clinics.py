"""Peers that are members by a document of their authority."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from homophily.peer import certificates
from homophily.peer.membership_document import MembershipDocument, open_document
from tests.peer.field import Field
from tests.peer.linked import free_port

NAMES = ("ann", "bob", "cid")


def opened(folder: Path) -> MembershipDocument:
    data = (folder / "membership.json").read_bytes()
    return open_document(data, certificates.read_certificate(folder / "ca.pem"), "clinics")


def peer_file(folder: Path, name: str, port: int, dialled: list[int], more: str = "") -> Path:
    rng = np.random.default_rng(len(name))
    np.savez(folder / f"{name}.npz", x=rng.normal(size=(30, 3)).astype(np.float32), y=np.arange(30) % 2)
    addresses = json.dumps([f"127.0.0.1:{other}" for other in dialled])
    path = folder / f"{name}.toml"
    path.write_text(
        f'extra_metrics = ["tests.peer.field:pause"]\ndata = {{ name = "{name}.npz" }}\n[peer]\nname = "{name}"\n'
        f'federation = "clinics"\nmembership = "inbox-{name}.json"\nlisten = ["127.0.0.1:{port}"]\n'
        f"connect = {addresses}\nlease = 2.0\n{more}"
    )
    return path


class Clinics(Field):
    """Peers with a membership document, each with an inbox of its own."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.folder, self.names, self.running = folder, list(names), {}
        ports = [free_port() for _ in names]
        self.files = [peer_file(folder, name, ports[i], ports[:i]) for i, name in enumerate(names)]
        for i in range(len(names)):
            self.deliver(i)

    def deliver(self, peer: int) -> None:
        """The authority's newest document reaches one peer."""
        (self.folder / f"inbox-{self.names[peer]}.json").write_bytes(
            (self.folder / "certs/membership.json").read_bytes()
        )
