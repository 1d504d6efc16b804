"""The server of the live page: the page, its data, an event for each change, metrics and health. It only reads."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from socket import socket
from typing import Any

from homophily.errors import UserError
from homophily.experiments.callbacks import Callback, RunHandle
from homophily.report.live.access import COOKIE, Access, url
from homophily.report.live.following import Following
from homophily.report.live.prometheus import CONTENT_TYPE, exposition
from homophily.report.live.vitals import health_of

_POLL_SECONDS = 1.0
_HEARTBEAT_SECONDS = 15.0
_MOST_CONNECTIONS = 100
_END_SECONDS = 3.0  # for open pages to fetch the end of a run
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class LiveServer:
    """Serves one folder until it is stopped."""

    def __init__(self, folder: Path, access: Access, listening: socket) -> None:
        import uvicorn

        self.following, self.access = Following(folder, shared=access.token is not None), access
        self.ending = False
        self._listening = listening
        self._open = 0  # pages that follow
        config = uvicorn.Config(
            application(self),
            log_level="warning",
            access_log=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=2,
            server_header=False,
        )
        self._server = uvicorn.Server(config)

    def serve(self) -> None:
        """Serve until Ctrl-C."""
        self._server.run([self._listening])

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """Serve from a thread; at the end, let open pages fetch the last state."""
        thread = threading.Thread(target=self.serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.ending = True
            until = time.monotonic() + _END_SECONDS
            while self._open and time.monotonic() < until:
                time.sleep(0.05)
            self._server.should_exit = True
            thread.join(5.0)

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events: ``changed`` after each change of the folder, and ``ended`` if this server will end."""
        from anyio import sleep, to_thread

        self._open += 1
        try:
            yield "retry: 1000\n\n"
            sent, spoken = None, time.monotonic()
            while not self._server.should_exit:  # after a signal; the page then tries to reach another server
                ending = self.ending
                version = await to_thread.run_sync(self.following.version)
                if version != sent:
                    yield f"event: changed\ndata: {version}\n\n"
                    sent, spoken = version, time.monotonic()
                elif time.monotonic() - spoken >= _HEARTBEAT_SECONDS:
                    yield ": alive\n\n"
                    spoken = time.monotonic()
                if ending:
                    await sleep(_POLL_SECONDS)  # the page fetches what changed
                    yield "event: ended\ndata:\n\n"
                    return
                await self._pause()
        finally:
            self._open -= 1

    async def _pause(self) -> None:
        from anyio import sleep

        for _ in range(10):
            if not self.ending and not self._server.should_exit:
                await sleep(_POLL_SECONDS / 10)


def application(server: LiveServer) -> Any:
    """The ASGI application."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send

    following, access = server.following, server.access

    async def page(request: Request) -> Response:
        if access.is_token(request.query_params.get("token")):  # from now on, the cookie stands for it
            moved = RedirectResponse("/", status_code=HTTPStatus.SEE_OTHER, headers=_HEADERS)
            moved.set_cookie(COOKIE, access.cookie, httponly=True, samesite="strict", path="/")
            return moved
        html, policy = await run_in_threadpool(following.page)
        headers = {**_HEADERS, "Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}
        return Response(html, media_type="text/html", headers=headers)

    async def data(request: Request) -> Response:
        found = await run_in_threadpool(following.snapshot)
        headers = {**_HEADERS, "ETag": f'"{found.version}"'}
        if found.changed is not None:
            headers["Last-Modified"] = formatdate(found.changed, usegmt=True)
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(found.body, media_type="application/json", headers=headers)

    async def events(request: Request) -> Response:
        return StreamingResponse(server.events(), media_type="text/event-stream", headers=_HEADERS)

    async def metrics(request: Request) -> Response:
        text = await run_in_threadpool(exposition, following.folder)
        return Response(text, headers={**_HEADERS, "Content-Type": CONTENT_TYPE})

    async def health(request: Request) -> Response:
        found = await run_in_threadpool(health_of, following.folder)
        status = HTTPStatus.OK if found.good else HTTPStatus.SERVICE_UNAVAILABLE
        return PlainTextResponse(f"{found.reason}\n", status_code=status, headers=_HEADERS)

    def guarded(app: ASGIApp) -> ASGIApp:
        async def inner(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            request = Request(scope)
            refused = access.refusal(request.method, request.headers, request.query_params.get("token"))
            if refused is None:
                await app(scope, receive, send)
                return
            allow = {"Allow": "GET"} if refused.status == HTTPStatus.METHOD_NOT_ALLOWED else {}
            answer = PlainTextResponse(f"{refused.why}\n", status_code=refused.status, headers={**_HEADERS, **allow})
            await answer(scope, receive, send)

        return inner

    routes: dict[str, Callable[[Request], Any]] = {
        "/": page, "/data": data, "/events": events, "/metrics": metrics, "/health": health,
    }  # fmt: skip
    return guarded(Starlette(routes=[Route(path, call, methods=["GET"]) for path, call in routes.items()]))


def address(access: Access, listening: socket) -> str:
    """The address to open, with the token if one is needed."""
    token = "" if access.token is None else f"?token={access.shown_token}"
    return url(access.host, listening.getsockname()[1]) + token


class LiveRun(Callback):
    """Serves the folder of a run from its start on."""

    def __init__(self, serve: Callable[[Path], None]) -> None:
        self._serve = serve

    def on_start(self, run: RunHandle) -> None:
        self._serve(run.path)


def check_installed() -> None:
    """Raise a UserError if the packages of the extra are missing."""
    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            raise UserError(f"this needs {name}: install the live extra with pip install 'homophily[live]'")
