"""What an open live page asks the server for: python benchmarks/live_client.py HOST PORT. It imports no torch."""

from __future__ import annotations

import http.client
import sys


def follow(host: str, port: int) -> None:
    """Fetch the page, and the data after each change, until the server ends."""
    events, fetches = (http.client.HTTPConnection(host, port, timeout=60) for _ in range(2))
    for path in ("/", "/data"):
        _fetch(fetches, path)
    events.request("GET", "/events")
    for line in events.getresponse():
        if line.startswith(b"event: ended"):
            return
        if line.startswith(b"event: changed"):
            _fetch(fetches, "/data")


def _fetch(connection: http.client.HTTPConnection, path: str) -> None:
    connection.request("GET", path)
    answer = connection.getresponse()
    if answer.status != http.HTTPStatus.OK or not answer.read():
        raise SystemExit(f"{path}: {answer.status}")


if __name__ == "__main__":
    follow(sys.argv[1], int(sys.argv[2]))
