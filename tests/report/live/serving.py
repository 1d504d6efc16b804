"""A server of the live page for tests, and requests to it."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from homophily.report.live.access import Access, bound
from homophily.report.live.server import LiveServer
from tests.patience import PATIENCE

Answer = tuple[int, dict[str, str], str]


@contextmanager
def served(folder: Path, host: str = "127.0.0.1", port: int = 0) -> Iterator[tuple[int, Access]]:
    """The server of a folder from a thread; yields its port."""
    access, listening = Access(host), bound(host, port)
    with LiveServer(folder, access, listening).in_background():
        yield listening.getsockname()[1], access


def get(port: int, target: str, method: str = "GET", **headers: str) -> Answer:
    """Status, headers by small letters, and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, target, headers=headers)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, found, answer.read().decode()
    finally:
        connection.close()
