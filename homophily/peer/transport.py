"""The links to other peers. Only this module and handshakes.py know zenoh.

Links carry messages and requests between direct neighbours. They report which neighbours are online, and identify the
peer at the other end of a link by its certificate. zenoh routes nothing: a stranger that connects to several peers
cannot come between them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import zenoh

from homophily.errors import UserError
from homophily.peer.accept_layer import AcceptLayer, accept_before_zenoh
from homophily.peer.manifest import CHUNK
from homophily.peer.refusals import Refusals

_ROOT = "homophily"
_MESSAGE_OVERHEAD = 256 << 10  # bytes of a message beside its chunk
QUEUE_BATCHES = 16  # batches of 64 kB that may wait for a link, about one chunk
_RECONNECT = {"period_init_ms": 200, "period_max_ms": 2000, "period_increase_factor": 2}
_OWNER_MESSAGES = [
    "put",
    "delete",
    "reply",
    "declare_queryable",
    "liveliness_token",
]  # only a name's owner may send them under it
_DOCUMENT_MESSAGES = ["put", "declare_subscriber"]
_SHARED_MESSAGES = ["declare_subscriber", "query", "declare_liveliness_subscriber", "liveliness_query"]


Payload = bytes | zenoh.ZBytes


class NoAnswer(Exception):
    """A neighbour did not answer a request, or declined it."""


class Request(Protocol):
    """A request of another peer, which any thread answers or declines once."""

    @property
    def path(self) -> str: ...

    def answer(self, *data: Payload) -> None: ...

    def decline(self, why: str) -> None: ...


class Links(Protocol):
    def prepare(self, data: bytes) -> Payload:
        """Copy data that will be sent often, so that it is not copied for every answer."""

    def broadcast(self, data: bytes) -> None:
        """Send a message to all neighbours, without a guarantee of delivery."""

    def request(self, neighbour: str, path: str, timeout: float, most: int = 1) -> list[bytes]:
        """The answer of a direct neighbour, in at most ``most`` messages. Raises NoAnswer."""

    def neighbours(self) -> frozenset[str]:
        """The peers at the other ends of the links."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class LinkHandlers:
    """Functions that the links call, from their own threads."""

    on_message: Callable[[bytes], None]
    on_request: Callable[[Request], None]
    on_connect: Callable[[str], None]
    on_disconnect: Callable[[str], None]
    on_stranger: Callable[[str], None]  # a peer with a valid certificate whose name is not allowed
    on_document: Callable[[bytes], None] = lambda data: None  # a membership document, perhaps of a stranger


@dataclass(frozen=True)
class Address:
    """How a peer is reached, and how it authenticates others. tls: authority, certificate and key; None: plaintext."""

    name: str
    federation: str
    allowed: tuple[str, ...]
    listen: tuple[str, ...]
    connect: tuple[str, ...]
    full: bool  # full mesh: all peers are neighbours
    lease: float
    tls: tuple[Path, Path, Path] | None
    observer: bool = False  # a second process under this name, which only listens and asks
    common_names: Mapping[str, str] = field(default_factory=dict)  # of certificates, if there is a membership document


class ZenohLinks:
    """Links over mutual TLS. A peer whose name is not allowed can neither send nor receive messages."""

    def __init__(self, address: Address) -> None:
        zenoh.init_log_from_env_or("off")
        self._handlers: LinkHandlers | None = None
        self._online: set[str] = set()
        self._declared: list[Any] = []
        self._bounds: tuple[Refusals, logging.Logger] | None = None
        self._layer: AcceptLayer | None = None
        self._ended = False
        self._lock = threading.RLock()  # a session is renewed by one thread while another declares its handlers
        self._open(address)

    def _open(self, address: Address) -> None:
        self._name, self._root, self._listen = address.name, f"{_ROOT}/{address.federation}", address.listen
        self._allowed, self._secure = frozenset(address.allowed), address.tls is not None
        self._by_id = {_zenoh_id(address, name): name for name in address.allowed}
        self._by_common_name = {common: name for name, common in address.common_names.items()}
        try:
            self._session = zenoh.open(_config(address))
        except zenoh.ZError as error:
            why = re.sub(r" at /\S+", "", str(error))  # a source location in zenoh
            raise UserError(f"peer.listen: cannot listen on {', '.join(address.listen)}: {why}") from error

    def renew(self, address: Address) -> None:
        """Close all links and open them anew, with other peers allowed or another certificate.

        Links cannot be closed one by one, and who is allowed on them is fixed when they are opened. What is under way
        fails and is tried again by those who asked. Raises UserError.
        """
        with self._lock:
            try:
                self._renew(address)
            except zenoh.ZError as error:
                raise UserError(str(error)) from error

    def _renew(self, address: Address) -> None:
        if self._ended:
            return
        self._undeclare()
        self._close()
        for name in list(self._online):
            self._online.discard(name)
            if self._handlers is not None:
                self._handlers.on_disconnect(name)
        self._open(address)
        if self._bounds is not None:
            self.bound_strangers(*self._bounds)
        if self._handlers is not None:
            self.listen(self._handlers)

    def listen(self, handlers: LinkHandlers) -> None:
        """Start to call the handlers, in place of any earlier ones."""
        with self._lock:
            self._undeclare()
            self._handlers = handlers
            if not self._session.is_closed():  # otherwise the next renewal declares them
                self._declared = self._declare(handlers)

    def _declare(self, handlers: LinkHandlers) -> list[Any]:
        alive = f"{self._root}/alive"

        def on_link(event: zenoh.LinkEvent) -> None:
            name = self._other_end(event.link)
            if event.kind == zenoh.SampleKind.PUT and name not in self._allowed:
                handlers.on_stranger(name)

        def on_liveliness(sample: zenoh.Sample) -> None:
            name = str(sample.key_expr).rpartition("/")[2]
            if name != self._name:
                (self._online.add if sample.kind == zenoh.SampleKind.PUT else self._online.discard)(name)
                (handlers.on_connect if sample.kind == zenoh.SampleKind.PUT else handlers.on_disconnect)(name)

        prefix = f"{self._root}/ask/{self._name}/"
        return [
            self._session.info.declare_link_events_listener(on_link, history=True),
            self._subscriber("tell", handlers.on_message),
            self._subscriber("membership", handlers.on_document),
            self._session.declare_queryable(f"{prefix}**", lambda query: handlers.on_request(_Query(query, prefix))),
            self._session.liveliness().declare_subscriber(f"{alive}/*", on_liveliness, history=True),
            self._session.liveliness().declare_token(f"{alive}/{self._name}"),
        ]

    def bound_strangers(self, refusals: Refusals, log: logging.Logger) -> None:
        """Bound connections that are not established, if links use TLS. refusals: counts those that are refused."""
        self._bounds = refusals, log
        ports = {int(host.rpartition(":")[2]) for host in self._listen if self._secure}
        layer = self._layer = accept_before_zenoh(ports, refusals, log)

        def on_link(event: zenoh.LinkEvent) -> None:
            if layer is not None and event.kind == zenoh.SampleKind.PUT:
                layer.established(event.link.dst.partition("/")[2].partition("?")[0])

        self._watched = self._session.info.declare_link_events_listener(on_link, history=True)

    def observe(self, on_message: Callable[[bytes], None]) -> None:
        """Receive messages without being online: other peers do not notice an observer."""
        self._undeclare()
        self._declared = [self._subscriber("tell", on_message)]

    def _subscriber(self, kind: str, on_message: Callable[[bytes], None]) -> Any:
        return self._session.declare_subscriber(
            f"{self._root}/{kind}/*",
            lambda sample: on_message(sample.payload.to_bytes()),
            allowed_origin=zenoh.Locality.REMOTE,  # otherwise a handler that broadcasts could wait for itself
        )

    def _undeclare(self) -> None:
        """Stop to call the handlers: two at a time would answer each request twice."""
        for each in self._declared:
            with suppress(zenoh.ZError):
                each.undeclare()
        self._declared = []

    def prepare(self, data: bytes) -> Payload:
        return zenoh.ZBytes(data)

    def broadcast(self, data: bytes) -> None:
        with suppress(zenoh.ZError):
            self._session.put(f"{self._root}/tell/{self._name}", data)

    def offer(self, document: bytes) -> None:
        """Send a membership document to all neighbours, also to those that are not members yet or any more."""
        with suppress(zenoh.ZError):
            self._session.put(f"{self._root}/membership/{self._name}", document)

    def request(self, neighbour: str, path: str, timeout: float, most: int = 1) -> list[bytes]:
        try:
            replies = self._session.get(
                f"{self._root}/ask/{neighbour}/{path}",
                zenoh.handlers.FifoChannel(most),  # further answers are dropped
                target=zenoh.QueryTarget.BEST_MATCHING,
                consolidation=zenoh.ConsolidationMode.NONE,
                congestion_control=zenoh.CongestionControl.BLOCK,
                timeout=timeout,
            )
            answer = [_payload(reply) for reply in islice(replies, most)]
        except zenoh.ZError as error:
            raise NoAnswer("links closed") from error
        if not answer:
            raise NoAnswer("no answer")
        return answer

    def neighbours(self) -> frozenset[str]:
        return self._allowed.intersection(map(self._other_end, self._session.info.links()))

    def _other_end(self, link: zenoh.Link) -> str:
        """The name in the certificate of the other end; without TLS (on loopback), by the zenoh id that it claims."""
        if not self._secure:
            return self._by_id.get(str(link.zid), "")
        found = link.auth_identifier or ""
        return self._by_common_name.get(found, found)

    def close(self) -> None:
        """Close all links; they are not renewed any more."""
        with self._lock:
            self._ended = True
            self._close()

    def _close(self) -> None:
        with suppress(zenoh.ZError):  # on a busy machine it may take longer than zenoh waits
            self._session.close()
        if self._layer is not None:
            self._layer.close()
            self._layer = None


def _payload(reply: zenoh.Reply) -> bytes:
    if reply.ok is None:
        raise NoAnswer(reply.err.payload.to_bytes()[:64].decode("ascii", "replace") if reply.err else "refused")
    return reply.ok.payload.to_bytes()


class _Query:
    def __init__(self, query: zenoh.Query, root: str) -> None:
        self._query = query
        self.path = str(query.key_expr).removeprefix(root)

    def answer(self, *data: Payload) -> None:
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
        **({} if address.observer else {"id": _zenoh_id(address, address.name)}),  # left out: a random one
        "mode": "peer",  # a router would relay messages of strangers
        "listen/endpoints": [f"{protocol}/{host}" for host in address.listen],
        "connect/endpoints": [f"{protocol}/{host}" for host in address.connect],
        "connect/timeout_ms": -1,
        "connect/exit_on_failure": False,
        "connect/retry": _RECONNECT,
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": address.full,
        "transport/link/protocols": [protocol],
        "transport/shared_memory/enabled": False,  # it would bypass the limit on message sizes
        "transport/link/tx/lease": int(1000 * address.lease),
        "transport/link/tx/queue/size/data": QUEUE_BATCHES,
        "transport/link/rx/max_message_size": CHUNK + _MESSAGE_OVERHEAD,
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
        _rule("out", "egress", [f"{root}/**"], _OWNER_MESSAGES + _SHARED_MESSAGES),
        _rule("in", "ingress", [f"{root}/**"], _SHARED_MESSAGES),
    ]
    policies = [{"rules": ["out", "in", f"in-{name}"], "subjects": [name]} for name in address.allowed]
    subjects: list[dict[str, Any]] = [
        {"id": name, "cert_common_names": [address.common_names.get(name, name)]} for name in address.allowed
    ]
    if address.common_names:  # everyone with a certificate may get to know the newest document
        documents = [f"{root}/membership/*"]
        rules += [_rule(f"documents-{flow}", flow, documents, _DOCUMENT_MESSAGES) for flow in ("egress", "ingress")]
        subjects.append({"id": "anyone/", "link_protocols": ["tls"]})
        policies.append({"rules": ["documents-egress", "documents-ingress"], "subjects": ["anyone/"]})
    for name in address.allowed:
        own = [f"{root}/ask/{name}/**", f"{root}/alive/{name}", f"{root}/tell/{name}"]
        rules.append(_rule(f"in-{name}", "ingress", own, _OWNER_MESSAGES))
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }


def _rule(id: str, flow: str, keys: list[str], messages: list[str]) -> dict[str, Any]:
    return {"id": id, "permission": "allow", "flows": [flow], "key_exprs": keys, "messages": messages}


def _zenoh_id(address: Address, name: str) -> str:
    """The id of a peer's process on the network; zenoh cuts off a leading 0, so it begins with 1."""
    return "1" + hashlib.sha256(f"{address.federation}/{name}".encode()).hexdigest()[:31]
