"""The service in this process: an HTTP client of an application without a socket, or a server on a free port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from crew.cli.listening import listen
from crew.executor import CrewExecutor
from crew.server import ServerSettings, Token, app
from crew.server.access import SCOPES, Scope
from crew.server.application import build_app, create_context
from crew.server.serve_process import create_server

SECRET = "test-secret-0123456789"


def bearer(secret: str = SECRET) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def token(principal: str, *scopes: Scope) -> Token:
    """A token whose secret is derived from the name of the principal."""
    return Token.of(secret_of(principal), principal, scopes or SCOPES - {"all"})


def secret_of(principal: str) -> str:
    return f"secret-of-{principal}-0123456789"


def client_of(
    executors: CrewExecutor | Sequence[CrewExecutor], headers: dict[str, str] | None = None, **settings: Any
) -> httpx2.AsyncClient:
    """A client of the service for these executors; by default with the one token that it accepts."""
    made = app(executors, ServerSettings(**({"tokens": (Token.of(SECRET),)} | settings)))
    transport = httpx2.ASGITransport(made, raise_app_exceptions=False)
    headers = bearer() if headers is None else headers
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)


def parse_events(text: str) -> list[dict[str, Any]]:
    """The server-sent events of a body: id, event and data; comments are left out."""
    found = []

    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))

        if "data" in fields:
            found.append({"id": fields.get("id"), "event": fields["event"], "data": json.loads(fields["data"])})

    return found


@asynccontextmanager
async def served(executors: CrewExecutor | Sequence[CrewExecutor], **settings: Any) -> AsyncIterator[str]:
    """The address of the service, on a free port of this machine and in this event loop."""
    context = create_context(executors, ServerSettings(**({"tokens": (Token.of(SECRET),)} | settings)))
    started = asyncio.Event()

    async def report() -> None:
        started.set()

    with listen("test", "127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        server = create_server(build_app(context), context.hub, report)
        task = asyncio.create_task(server.serve([listening]))
        await asyncio.wait({task, asyncio.create_task(started.wait())}, return_when=asyncio.FIRST_COMPLETED)

        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            await task
