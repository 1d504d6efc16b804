"""A peer on the network: its links, the other members, and the transfer of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from homophily.config.schema import Config
from homophily.peer.blob_transfer import BlobTransfer
from homophily.peer.identity import Refused
from homophily.peer.logs import peer_logger
from homophily.peer.membership import SILENCE, Announcer, Members, Status, opened, seal
from homophily.peer.pacing import Pacing
from homophily.peer.refusals import Refusals
from homophily.peer.setup import PeerSetup
from homophily.peer.source import NetworkSource
from homophily.peer.transport import Address, LinkHandlers, Links, ZenohLinks
from homophily.peer.wire import MOST_PRINT
from homophily.runs.fields import Discovered, RoundMetrics
from homophily.simulation.communication import Traffic
from homophily.simulation.observers import RoundRecord

_EVERY = 1.0  # seconds between two announcements of a status that has not changed
_HOP_SECONDS = 10.0  # for a request over one hop


@dataclass(frozen=True)
class PeerNetwork:
    """All parts of a peer that use the network."""

    links: Links
    members: Members
    transfer: BlobTransfer
    announcer: Announcer
    pacing: Pacing
    source: NetworkSource

    @classmethod
    def on(cls, links: Links, setup: PeerSetup, refusals: Refusals) -> PeerNetwork:
        """The parts of a peer on links that are open and have no handlers yet. refusals: counts what is refused."""
        peer, identity = setup.settings.peer, setup.identity
        members = Members(peer.name, peer.allow, peer.mesh == "full", links.neighbours, max(SILENCE, peer.deadline))
        transfer = BlobTransfer(
            peer.federation,
            identity,
            setup.authority,
            {"model": setup.expected.most_bytes, "before": setup.expected.most_bytes, "print": MOST_PRINT},
            links,
            members,
            refusals,
            timeout=max(_HOP_SECONDS, peer.deadline / 2),  # the requests of one time take long on a slow link
            slots=peer.slots,
            waiting=peer.waiting,
            pulls=peer.pulls,
            window=peer.window,
            cache_bytes=peer.cache_mb << 20,
        )

        def tell(status: Status) -> None:
            links.tell(seal(status, peer.federation, identity))

        announcer = Announcer(tell, links.neighbours, _EVERY, _plan(setup.config))
        pacing = Pacing(setup.policy, members, announcer, list(setup.me.contacts.values()), peer_logger(peer.name))
        layout = setup.training.task.layout
        source = NetworkSource(
            setup.me, layout, setup.expected, setup.fingerprint, transfer, members, announcer, pacing
        )
        return cls(links, members, transfer, announcer, pacing, source)

    def handlers(self, setup: PeerSetup) -> LinkHandlers:
        """What handles messages, requests and connections."""
        peer, authority = setup.settings.peer, setup.authority
        plan, refusals, log = self.announcer.plan, self.transfer.refusals, peer_logger(peer.name)
        differing: set[str] = set()  # peers whose method, merge or rounds differ: each is reported once

        def heard(sealed: bytes) -> None:
            name = ""
            try:
                name, status = opened(sealed, authority, peer.federation, len(peer.allow))
                news = self.members.update(name, status)
            except Refused as error:
                refusals.add(error, name)
                return
            if news and status.plan != plan and name not in differing:
                differing.add(name)
                log.warning("%s plays %s, and this peer plays %s: make their files agree", name, status.plan, plan)
            if news and peer.mesh != "full":  # for peers further away
                self.links.tell(sealed)

        def came(name: str) -> None:
            log.info("%s connected", name)
            self.members.came(name)
            self.announcer.soon()  # a peer that has just connected knows no status yet

        def went(name: str) -> None:
            log.info("%s disconnected", name)
            self.members.went(name)
            self.announcer.soon()  # this peer's neighbours have changed

        def stranger(name: str) -> None:
            refusals.add("connection of a name not in peer.allow", name)

        return LinkHandlers(heard, self.transfer.asked, came, went, stranger)

    def start(self, setup: PeerSetup, links: ZenohLinks) -> None:
        """Handle what comes in, and announce that this peer is online."""
        links.listen(self.handlers(setup))
        self.announcer.start()

    def close(self) -> None:
        self.announcer.stop()
        self.links.close()
        self.transfer.close()


def address_of(setup: PeerSetup, insecure: bool) -> Address:
    """How this peer is reached. insecure: without TLS."""
    settings, peer = setup.settings, setup.settings.peer
    return Address(
        peer.name,
        peer.federation,
        tuple(peer.allow),
        tuple(peer.listen),
        tuple(peer.connect),
        peer.mesh == "full",
        peer.lease,
        None if insecure else (settings.path(peer.ca), settings.certificate, settings.key),
    )


def _plan(config: Config) -> str:
    """What all peers must agree on, in words."""
    return f"{config.method.name} with merge {config.merge} for {config.rounds} rounds"


class NamedObserver:
    """Records by name whom a real peer met and merged with. It knows no true clusters."""

    def __init__(self, source: NetworkSource) -> None:
        self._source = source

    def observe(self, record: RoundRecord) -> RoundMetrics:
        ids = set(record.group.ids[record.merged].tolist())
        merged = torch.tensor([[id in ids for id in record.view.contacts[0].tolist()]], dtype=torch.bool)
        metrics: RoundMetrics = {
            "neighbour_precision": None,
            "neighbour_recall": None,
            "same_cluster_merges": None,
            "met": self._source.named(record.met),
            "merged": self._source.named(merged),
            "unreachable": self._source.unreachable,
        }
        if record.similarity is not None:
            metrics["similarities"] = self._similarities(record)
        return metrics

    def _similarities(self, record: RoundRecord) -> dict[str, float]:
        assert record.similarity is not None
        return dict(zip(self._source.named(record.met), record.similarity[record.met].tolist(), strict=True))

    def summary(self) -> Discovered:
        return {"neighbour_precision": None, "neighbour_recall": None, "same_cluster_merges": None}

    def notes(self, traffic: Traffic) -> list[str]:
        return [] if bool(traffic.received.any()) else ["no model of another peer ever came"]

    def final(self) -> dict[str, Tensor]:
        return {}

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def numbers(self) -> dict[str, Any]:
        return {}

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Nothing is kept from round to round."""
