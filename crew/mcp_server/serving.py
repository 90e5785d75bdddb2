"""Serves crews over stdin and stdout, or over streamable HTTP with a token and checks of Host and Origin."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from crew.errors import DefinitionError
from crew.mcp_server.crew_tools import CrewTools

if TYPE_CHECKING:
    import socket

    from starlette.types import ASGIApp, Receive, Scope, Send

PATH = "/mcp"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
SHUTDOWN_SECONDS = 3
MIN_TOKEN_LENGTH = 16


async def serve_stdio(tools: CrewTools) -> None:
    """Serve one client over stdin and stdout until it closes its end; what the crew prints goes to stderr."""
    from mcp.server.stdio import stdio_server

    server = tools.server()
    lines = _StdinLines()
    stdin: Any = lines  # the SDK only iterates over it

    try:
        async with stdio_server(stdin=stdin) as (received, sent):
            # The SDK redirects the descriptor; Python's own buffer would be written when that ends.
            with redirect_stdout(sys.stderr):
                await server.run(received, sent, server.create_initialization_options())
    except asyncio.CancelledError:
        tools.is_closing = True
        raise
    finally:
        lines.restore()


class _StdinLines:
    """The lines of stdin, which programs that the crew starts do not see.

    A daemon thread reads them: a thread of the SDK would keep the process alive until the next line.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._descriptor = os.dup(0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        threading.Thread(target=self._read, name="crew-mcp-stdin", daemon=True).start()

    def restore(self) -> None:
        """Give stdin back; the descriptor stays open, because the thread may be reading from it."""
        os.dup2(self._descriptor, 0)

    def _read(self) -> None:
        chunk = b" "

        while chunk:
            try:
                chunk = os.read(self._descriptor, 65_536)
            except OSError:
                chunk = b""

            try:
                self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
            except RuntimeError:
                return  # the loop was closed

    async def __aiter__(self) -> AsyncIterator[str]:
        rest = b""

        while chunk := await self._chunks.get():
            *lines, rest = (rest + chunk).split(b"\n")

            for line in lines:
                yield line.decode("utf-8", "replace")


def http_app(tools: CrewTools, *, token: str | None, hosts: Sequence[str] = (), origins: Sequence[str] = ()) -> ASGIApp:
    """The ASGI application at `/mcp`. `hosts` and `origins` are accepted beside those of this machine.

    Requests need the header `Authorization: Bearer TOKEN`; without a token, any program of this machine may call.
    """
    from mcp.server.transport_security import TransportSecuritySettings

    if token is not None and len(token) < MIN_TOKEN_LENGTH:
        problem = f"the token must have at least {MIN_TOKEN_LENGTH} characters; its value is not shown"
        raise DefinitionError("crew mcp", problem)

    names = (*LOOPBACK, *hosts)
    security = TransportSecuritySettings(
        allowed_hosts=[pattern for name in names for pattern in (name, f"{name}:*")],
        allowed_origins=[
            *(f"http://{name}:*" for name in LOOPBACK),
            *(f"http://{name}" for name in LOOPBACK),
            *origins,
        ],
    )
    app: ASGIApp = tools.server().streamable_http_app(streamable_http_path=PATH, transport_security=security)
    return app if token is None else _BearerToken(app, token)


class _BearerToken:
    """ASGI middleware that answers requests without the token with 401."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._digest = app, _digest(token.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_allowed(scope):
            from starlette.responses import PlainTextResponse

            text = "A bearer token is required: Authorization: Bearer TOKEN.\n"
            await PlainTextResponse(text, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
            return

        await self._app(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, secret = (given[0] if len(given) == 1 else b"").partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(_digest(secret.strip()), self._digest)


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


async def serve_http(
    app: ASGIApp, tools: CrewTools, listening: socket.socket, on_started: Callable[[], None] = lambda: None
) -> None:
    """Serve on an open socket until Ctrl-C or SIGTERM; runs under way are interrupted then, and stay resumable."""
    import uvicorn

    config = uvicorn.Config(
        app,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            on_started()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            tools.is_closing = True
            await super().shutdown(sockets)

    await Server(config).serve([listening])
