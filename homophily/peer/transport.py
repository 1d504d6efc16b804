"""The links to other peers. Only this module and handshakes.py know zenoh.

Links carry small messages and requests to direct neighbours, and say which neighbours are online and, by its
certificate, who is at the other end of a link. Nothing is routed: a stranger that links with peers can cut nobody off.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import zenoh

from homophily.errors import UserError
from homophily.peer.manifest import CHUNK

_ROOT = "homophily"
_ROOM = 256 << 10  # for what surrounds a chunk in a message
QUEUE = 16  # batches of 64 kB that wait for a link, about a chunk: its sender is not woken for each of them
_RETRY = {"period_init_ms": 200, "period_max_ms": 2000, "period_increase_factor": 2}
_OF_ONESELF = ["put", "delete", "reply", "declare_queryable", "liveliness_token"]  # speak for a name
_TO_OTHERS = ["declare_subscriber", "query", "declare_liveliness_subscriber", "liveliness_query"]


Load = bytes | zenoh.ZBytes  # what an answer is made of


class Unanswered(Exception):
    """A neighbour did not answer a request, or declined it."""


class Question(Protocol):
    """A request of another peer, to be answered or declined once, by any thread."""

    @property
    def path(self) -> str: ...

    def answer(self, *data: Load) -> None: ...

    def decline(self, why: str) -> None: ...


class Links(Protocol):
    def ready(self, data: bytes) -> Load:
        """Data that will be sent often, copied for the network once and not with every answer."""

    def tell(self, data: bytes) -> None:
        """Send a message to all neighbours; it may get lost."""

    def ask(self, neighbour: str, path: str, timeout: float, most: int = 1) -> list[bytes]:
        """The answer of a direct neighbour, in at most ``most`` messages. Raises Unanswered."""

    def neighbours(self) -> frozenset[str]:
        """The peers at the other ends of the links."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class LinkHandlers:
    """Called by the links' own threads with what comes in."""

    heard: Callable[[bytes], None]
    asked: Callable[[Question], None]
    came: Callable[[str], None]
    went: Callable[[str], None]
    stranger: Callable[[str], None]  # its certificate is valid, but its name is not in peer.allow


@dataclass(frozen=True)
class Address:
    """How a peer is reached, and how it authenticates others. tls: authority, certificate and key; None: plaintext."""

    name: str
    federation: str
    allowed: tuple[str, ...]
    listen: tuple[str, ...]
    connect: tuple[str, ...]
    full: bool  # everyone is everyone's neighbour
    lease: float
    tls: tuple[Path, Path, Path] | None


class ZenohLinks:
    """Links over mutual TLS. A name that is not allowed gets no message in or out, whatever certificate it has."""

    def __init__(self, address: Address) -> None:
        self._name, self._root = address.name, f"{_ROOT}/{address.federation}"
        self._allowed, self._secure = frozenset(address.allowed), address.tls is not None
        self._by_id = {_zenoh_id(address, name): name for name in address.allowed}
        zenoh.init_log_from_env_or("off")
        try:
            self._session = zenoh.open(_config(address))
        except zenoh.ZError as error:
            why = re.sub(r" at /\S+", "", str(error))  # a place in the library
            raise UserError(f"peer.listen: cannot listen on {', '.join(address.listen)}: {why}") from error

    def listen(self, handlers: LinkHandlers) -> None:
        """Call the handlers with whatever comes in from now on."""
        alive = f"{self._root}/alive"

        def linked(event: zenoh.LinkEvent) -> None:
            name = self._other_end(event.link)
            if event.kind == zenoh.SampleKind.PUT and name not in self._allowed:
                handlers.stranger(name)

        def life(sample: zenoh.Sample) -> None:
            name = str(sample.key_expr).rpartition("/")[2]
            if name != self._name:
                (handlers.came if sample.kind == zenoh.SampleKind.PUT else handlers.went)(name)

        asked = f"{self._root}/ask/{self._name}/"
        self._declared = [  # a declaration ends when nothing refers to it
            self._session.info.declare_link_events_listener(linked, history=True),
            self._session.declare_subscriber(
                f"{self._root}/tell/*",
                lambda sample: handlers.heard(sample.payload.to_bytes()),
                allowed_origin=zenoh.Locality.REMOTE,  # a handler that sends would otherwise wait for itself
            ),
            self._session.declare_queryable(f"{asked}**", lambda query: handlers.asked(_Query(query, asked))),
            self._session.liveliness().declare_subscriber(f"{alive}/*", life, history=True),
            self._session.liveliness().declare_token(f"{alive}/{self._name}"),
        ]

    def ready(self, data: bytes) -> Load:
        return zenoh.ZBytes(data)

    def tell(self, data: bytes) -> None:
        with suppress(zenoh.ZError):
            self._session.put(f"{self._root}/tell/{self._name}", data)

    def ask(self, neighbour: str, path: str, timeout: float, most: int = 1) -> list[bytes]:
        try:
            replies = self._session.get(
                f"{self._root}/ask/{neighbour}/{path}",
                zenoh.handlers.FifoChannel(most),  # further answers are dropped
                target=zenoh.QueryTarget.BEST_MATCHING,
                consolidation=zenoh.ConsolidationMode.NONE,
                congestion_control=zenoh.CongestionControl.BLOCK,
                timeout=timeout,
            )
            answer = [_said(reply) for reply in islice(replies, most)]
        except zenoh.ZError as error:
            raise Unanswered("links closed") from error
        if not answer:
            raise Unanswered("no answer")
        return answer

    def neighbours(self) -> frozenset[str]:
        return self._allowed.intersection(map(self._other_end, self._session.info.links()))

    def _other_end(self, link: zenoh.Link) -> str:
        """A name: by the certificate, or without TLS (on loopback) by the id that the other end gives itself."""
        return (link.auth_identifier if self._secure else self._by_id.get(str(link.zid))) or ""

    def close(self) -> None:
        self._session.close()


def _said(reply: zenoh.Reply) -> bytes:
    if reply.ok is None:
        raise Unanswered(reply.err.payload.to_bytes()[:64].decode("ascii", "replace") if reply.err else "refused")
    return reply.ok.payload.to_bytes()


class _Query:
    def __init__(self, query: zenoh.Query, root: str) -> None:
        self._query = query
        self.path = str(query.key_expr).removeprefix(root)

    def answer(self, *data: Load) -> None:
        with suppress(zenoh.ZError):  # the peer that asked may have disconnected
            for each in data:
                self._query.reply(self._query.key_expr, each)
        self._query.drop()

    def decline(self, why: str) -> None:
        with suppress(zenoh.ZError):
            self._query.reply_err(why.encode())
        self._query.drop()


def _config(address: Address) -> zenoh.Config:
    config = zenoh.Config()
    for key, value in _keys(address).items():
        config.insert_json5(key, json.dumps(value))
    return config


def _keys(address: Address) -> dict[str, Any]:
    protocol = "tls" if address.tls is not None else "tcp"
    keys: dict[str, Any] = {
        "id": _zenoh_id(address, address.name),
        "mode": "peer",  # a router would relay for strangers, and rely on them to relay
        "listen/endpoints": [f"{protocol}/{host}" for host in address.listen],
        "connect/endpoints": [f"{protocol}/{host}" for host in address.connect],
        "connect/timeout_ms": -1,
        "connect/exit_on_failure": False,
        "connect/retry": _RETRY,
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": address.full,
        "transport/link/protocols": [protocol],
        "transport/shared_memory/enabled": False,  # it would bypass the limit on message sizes
        "transport/link/tx/lease": int(1000 * address.lease),
        "transport/link/tx/queue/size/data": QUEUE,
        "transport/link/rx/max_message_size": CHUNK + _ROOM,
    }
    if address.tls is not None:
        authority, certificate, key = map(str, address.tls)
        keys["transport/link/tls"] = {
            "root_ca_certificate": authority,
            "enable_mtls": True,
            "listen_private_key": key,
            "listen_certificate": certificate,
            "connect_private_key": key,
            "connect_certificate": certificate,
            "verify_name_on_connect": True,
        }
        keys["access_control"] = _access(address)
    return keys


def _access(address: Address) -> dict[str, Any]:
    """Access control: everyone may ask, but only a name's owner is online, answers and sends under that name."""
    root = f"{_ROOT}/{address.federation}"
    rules = [
        _rule("out", "egress", [f"{root}/**"], _OF_ONESELF + _TO_OTHERS),
        _rule("in", "ingress", [f"{root}/**"], _TO_OTHERS),
    ]
    for name in address.allowed:
        own = [f"{root}/ask/{name}/**", f"{root}/alive/{name}", f"{root}/tell/{name}"]
        rules.append(_rule(f"in-{name}", "ingress", own, _OF_ONESELF))
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": [{"id": name, "cert_common_names": [name]} for name in address.allowed],
        "policies": [{"rules": ["out", "in", f"in-{name}"], "subjects": [name]} for name in address.allowed],
    }


def _rule(id: str, flow: str, keys: list[str], messages: list[str]) -> dict[str, Any]:
    return {"id": id, "permission": "allow", "flows": [flow], "key_exprs": keys, "messages": messages}


def _zenoh_id(address: Address, name: str) -> str:
    """The id of a peer's process on the network; zenoh cuts off a leading 0, so it begins with 1."""
    return "1" + hashlib.sha256(f"{address.federation}/{name}".encode()).hexdigest()[:31]
