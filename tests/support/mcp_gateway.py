"""An MCP server over HTTP behind a gateway that fails each call, although the server may have received it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

RESULTS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "raw", "version": "1"},
    },
    "tools/list": {
        "tools": [{"name": "ask", "description": "Asks.", "inputSchema": {"type": "object", "properties": {}}}]
    },
}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What the gateway answers to requests with this method; `ID` in the body is the id of the request."""

    method: str = "tools/call"
    status: int = 504
    body: str = "<h1>Gateway Timeout</h1>"
    kind: str = "text/html"


@asynccontextmanager
async def failing_gateway(failure: Failure = Failure()) -> AsyncIterator[tuple[str, list[str]]]:  # noqa: B008 - frozen
    """Its URL, and the methods of the requests that it received."""
    received: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = [line.partition(b":") for line in head.lower().split(b"\r\n")]
                size = next((int(value) for name, _, value in lines if name == b"content-length"), 0)
                message = json.loads(await reader.readexactly(size) or b"{}")
                received.append(message.get("method", ""))
                writer.write(_answer(head, message, failure))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp", received
        server.close()


def _answer(head: bytes, message: dict[str, Any], failure: Failure) -> bytes:
    method, id = message.get("method"), message.get("id")

    if not head.startswith(b"POST"):
        return _response(405, b"")

    if id is None:
        return _response(202, b"")

    if method == failure.method:
        return _response(failure.status, failure.body.replace("ID", str(id)).encode(), failure.kind)

    unknown = {"error": {"code": -32601, "message": "unknown method"}}
    found = {"result": RESULTS[method]} if method in RESULTS else unknown
    return _response(200, json.dumps({"jsonrpc": "2.0", "id": id, **found}).encode())


def _response(status: int, body: bytes, kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
