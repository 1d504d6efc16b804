"""The network side of a peer: its links, the membership, and the transfer of models."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from homophily.config.schema import Config
from homophily.peer.blob_transfer import BlobTransfer
from homophily.peer.identity import Refused
from homophily.peer.logs import peer_logger
from homophily.peer.membership import OFFLINE_SECONDS, Announcer, Members, Status, open_status, seal_status
from homophily.peer.pacing import Pacing
from homophily.peer.protocol import Settings, agreed_settings, differing_settings
from homophily.peer.refusals import Refusals
from homophily.peer.releases import Releases
from homophily.peer.settings import PeerSettings
from homophily.peer.setup import PeerSetup, constants_digest
from homophily.peer.source import NetworkSource
from homophily.peer.transport import Address, LinkHandlers, Links, ZenohLinks
from homophily.peer.wire import MAX_FINGERPRINT_BYTES
from homophily.runs.fields import Discovered, RoundMetrics
from homophily.simulation.communication import Traffic
from homophily.simulation.observers import RoundRecord
from homophily.simulation.recording import Entries, RecordedPeers

ANNOUNCE_SECONDS = 1.0  # seconds between two announcements of a status that has not changed
_REQUEST_SECONDS = 10.0  # for a request over one hop
_MOST_DIFFERENCES = 1000  # settings of other peers that are reported


@dataclass(frozen=True)
class PeerNetwork:
    """All parts of a peer that use the network."""

    links: Links
    members: Members
    transfer: BlobTransfer
    announcer: Announcer
    pacing: Pacing
    source: NetworkSource
    releases: Releases | None  # under [privacy]

    @classmethod
    def on(cls, links: Links, setup: PeerSetup, refusals: Refusals) -> PeerNetwork:
        """Build the parts on open links that have no handlers yet. refusals: counts what is refused."""
        peer, identity = setup.settings.peer, setup.identity
        members = Members(
            peer.name, peer.allow, peer.mesh == "full", links.neighbours, max(OFFLINE_SECONDS, peer.deadline)
        )
        transfer = BlobTransfer(
            peer.federation,
            identity,
            setup.authority,
            {"model": setup.expected.max_bytes, "before": setup.expected.max_bytes, "print": MAX_FINGERPRINT_BYTES},
            links,
            members,
            refusals,
            timeout=max(_REQUEST_SECONDS, peer.deadline / 2),  # concurrent requests take long on a slow link
            slots=peer.slots,
            waiting=peer.waiting,
            pulls=peer.pulls,
            window=peer.window,
            cache_bytes=peer.cache_mb << 20,
        )

        def send(status: Status) -> None:
            links.broadcast(seal_status(status, peer.federation, identity))

        announcer = Announcer(send, links.neighbours, ANNOUNCE_SECONDS, _plan(setup.config), announced_settings(setup))
        pacing = Pacing(setup.policy, members, announcer, list(setup.me.contacts.values()), peer_logger(peer.name))
        layout = setup.training.task.layout
        releases = setup.releases()
        source = NetworkSource(
            setup.me, layout, setup.expected, setup.prints(releases), releases, transfer, members, announcer, pacing
        )
        return cls(links, members, transfer, announcer, pacing, source, releases)

    def handlers(self, setup: PeerSetup, on_document: Callable[[bytes], None] = lambda data: None) -> LinkHandlers:
        """The functions that handle messages, requests and connections."""
        peer, authority = setup.settings.peer, setup.authority
        refusals, log = self.transfer.refusals, peer_logger(peer.name)
        compare = _settings_compared(peer.name, self.announcer, log)

        def on_message(sealed: bytes) -> None:
            name = ""
            try:
                name, status = open_status(sealed, authority, peer.federation)
                news = self.members.update(name, status)
            except Refused as error:
                refusals.add(error, name)
                return
            if news:
                compare(name, status)
            if news and peer.mesh != "full":  # relay it to peers that are further away
                self.links.broadcast(sealed)

        def on_connect(name: str) -> None:
            log.info("%s connected", name)
            self.members.connected(name)
            self.announcer.announce_soon()  # a peer that has just connected knows no status yet

        def on_disconnect(name: str) -> None:
            log.info("%s disconnected", name)
            self.members.disconnected(name)
            self.announcer.announce_soon()  # this peer's neighbours have changed

        def on_stranger(name: str) -> None:
            refusals.add(f"connection of a name {setup.settings.absence(name)}", name)

        handle = self.transfer.handle_request
        return LinkHandlers(on_message, handle, on_connect, on_disconnect, on_stranger, on_document)

    def start(
        self, setup: PeerSetup, links: ZenohLinks, on_document: Callable[[bytes], None] = lambda data: None
    ) -> None:
        """Handle incoming messages and membership documents, and announce that this peer is online."""
        links.listen(self.handlers(setup, on_document))
        self.announcer.start()

    def close(self, links: bool = True) -> None:
        """links: close also the links."""
        self.announcer.stop()
        if links:
            self.links.close()
        self.transfer.close()


def announced_settings(setup: PeerSetup) -> Settings:
    """The settings that all peers must share, as this peer announces them."""
    more = {"peer.mesh": setup.settings.peer.mesh, "peer.pace": setup.settings.peer.pace}
    return agreed_settings(setup.config, constants_digest(setup.config), more)


def _settings_compared(me: str, announcer: Announcer, log: logging.Logger) -> Callable[[str, Status], None]:
    """A function that logs, once each, which settings of another peer differ from this peer's."""
    reported: set[tuple[str, str]] = set()  # names and keys

    def compare(name: str, status: Status) -> None:
        if not status.settings and status.plan != announcer.plan and (name, "") not in reported:  # version 1
            reported.add((name, ""))
            log.warning(
                "%s runs %s, but this peer runs %s: give both files the same method, merge, rounds and data.scale",
                name,
                status.plan,
                announcer.plan,
            )
        differing = differing_settings(status.settings, announcer.settings) if status.settings else {}
        for key, (theirs, mine) in differing.items():
            if (name, key) not in reported and len(reported) < _MOST_DIFFERENCES:
                reported.add((name, key))
                log.warning("%s has %s = %s, but %s has %s: give both the same value", name, key, theirs, me, mine)

    return compare


def address_of(settings: PeerSettings, insecure: bool) -> Address:
    """The address of this peer. insecure: without TLS.

    Of a partial mesh, peer.connect says which links there are; without it, members are dialled as in a full mesh.
    """
    peer, document = settings.peer, settings.document
    chosen = peer.mesh == "partial" and peer.connect
    dialled = [] if document is None or chosen else document.dialled_by(peer.name, peer.allow)
    return Address(
        peer.name,
        peer.federation,
        tuple(peer.allow),
        tuple(peer.listen),
        tuple(dict.fromkeys([*peer.connect, *dialled])),
        peer.mesh == "full",
        peer.lease,
        None if insecure else (settings.path(peer.ca), settings.certificate, settings.key),
        common_names={} if document is None else {name: document.common_names[name] for name in peer.allow},
    )


def _plan(config: Config) -> str:
    """What all peers must agree on, as a phrase for the log."""
    digest = constants_digest(config)
    constants = "" if digest is None else f" with the constants {digest[:8]} (data.scale)"
    return f"{config.method.name} with merge {config.merge} for {config.rounds} rounds{constants}"


class NamedObserver:
    """Records by name whom a real peer met and merged with. It knows no true clusters."""

    def __init__(self, source: NetworkSource, notes: Sequence[str] = (), recorded: RecordedPeers | None = None) -> None:
        """notes: on this peer's data, for the summary."""
        self._source, self._notes = source, notes
        self.recorded = recorded
        self.entries: Entries = {}

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
        if record.left_out is not None:
            metrics["left_out"] = self._source.named(record.left_out)
        if self.recorded is not None:
            self.entries = self._entries(self.recorded, record, merged)
        return metrics

    def _entries(self, recorded: RecordedPeers, record: RoundRecord, merged: Tensor) -> Entries:
        contacts = record.view.contacts
        partners = contacts[merged]
        entries: Entries = {
            "merges": {
                **recorded.merges(torch.zeros_like(partners), partners),
                "met": recorded.as_ids(contacts[record.met]),
                "unreachable": recorded.as_ids(self._source.ids_of(self._source.unreachable)),
            }
        }
        if record.similarity is not None:
            entries["similarities"] = recorded.similarities(record.met, contacts, record.similarity)
        return entries

    def _similarities(self, record: RoundRecord) -> dict[str, float]:
        assert record.similarity is not None
        return dict(zip(self._source.named(record.met), record.similarity[record.met].tolist(), strict=True))

    def summary(self) -> Discovered:
        return {"neighbour_precision": None, "neighbour_recall": None, "same_cluster_merges": None}

    def notes(self, traffic: Traffic) -> list[str]:
        alone = [] if bool(traffic.received.any()) else ["this peer received no model from any other peer"]
        return [*alone, *self._notes]

    def final(self) -> dict[str, Tensor]:
        return {}

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def numbers(self) -> dict[str, Any]:
        return {}

    def restore(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Nothing is kept from round to round."""
