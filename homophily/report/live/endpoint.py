"""``/metrics`` and ``/health`` without the page, by Python's own HTTP server: it needs no extra."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from homophily.report.live.access import Access, bound, split_address, url
from homophily.report.live.prometheus import CONTENT_TYPE, exposition
from homophily.report.live.vitals import health_of

MOST_CONNECTIONS = 100
_TEXT = "text/plain; charset=utf-8"


class _Server(ThreadingHTTPServer):
    """Answers a limited number of connections at a time, a thread each, and closes the others."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._slots = threading.BoundedSemaphore(MOST_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # else the other end went away
            super().handle_error(request, client_address)


@contextmanager
def serving(folder: Path, where: str) -> Iterator[str]:
    """Serve the metrics of a folder from a thread, at HOST:PORT; yields the address."""
    host, port = split_address(where, "--metrics")
    access, listening = Access(host), bound(host, port)

    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds without a request after which a connection is closed

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            refused = access.refusal(self.command, headers, None)
            status, kind, text = (refused.status, _TEXT, refused.why) if refused else _answer(folder, self.path)
            body = f"{text.rstrip()}\n".encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Content-Type-Options", "nosniff")
            if status == HTTPStatus.METHOD_NOT_ALLOWED:
                self.send_header("Allow", "GET")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = do_GET  # refused

        def version_string(self) -> str:
            return "homophily"

        def log_message(self, format: str, *args: Any) -> None:
            """Requests are not logged."""

    server = _Server((host, port), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    token = "" if access.token is None else f" with the header Authorization: Bearer {access.shown_token}"
    try:
        yield f"{url(host, listening.getsockname()[1])}metrics{token}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5.0)


def _answer(folder: Path, target: str) -> tuple[HTTPStatus, str, str]:
    path = target.partition("?")[0]
    if path == "/metrics":
        return HTTPStatus.OK, CONTENT_TYPE, exposition(folder)
    if path == "/health":
        found = health_of(folder)
        return HTTPStatus.OK if found.good else HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, found.reason
    return HTTPStatus.NOT_FOUND, _TEXT, "there is /metrics and /health"
