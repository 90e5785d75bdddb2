"""The transport of a server with a URL: the SDK's streamable HTTP, with bounds for what the server answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from pydantic import ValidationError

from crew.control_characters import escape_controls

if TYPE_CHECKING:
    import httpx2
    from mcp.client._transport import TransportStreams
    from mcp.types import JSONRPCError

EVENT_STREAM_SECONDS = 300.0
BODY_SECONDS, BODY_CHARS = 5.0, 300
"""How long the body of an error is waited for, and how much of it is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAddress:
    """The URL of a server and the headers of each request; `max_bytes` bounds one message."""

    url: str
    headers: Mapping[str, str]
    seconds: float
    max_bytes: int


@asynccontextmanager
async def http_transport(address: HttpAddress) -> AsyncIterator[TransportStreams]:
    """The streams of a streamable HTTP server."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async def check(response: httpx2.Response) -> None:
        kind = response.headers.get("content-type", "").lower()

        # The SDK bounds the events of a stream, but not a response of one piece.
        if response.status_code >= 400 or not kind.startswith("text/event-stream"):
            response.__class__ = _bounded_response_class()
            response.__dict__["max_bytes"] = address.max_bytes

        if response.status_code >= 400 and response.request.method == "POST":
            await _explain(response)

    client = httpx2.AsyncClient(
        headers=dict(address.headers),
        timeout=httpx2.Timeout(address.seconds, read=EVENT_STREAM_SECONDS),
        event_hooks={"response": [check]},
    )

    async with (
        client,
        streamable_http_client(address.url, http_client=client, max_sse_event_size=address.max_bytes) as streams,
    ):
        yield streams


async def _explain(response: httpx2.Response) -> None:
    """Report status and text of an HTTP error, which the SDK does not do; errors in JSON-RPC are reported as they are.

    A status of 500 or above is raised, which ends the connection: a gateway, or a server that broke, may have received
    the call. Only a JSON-RPC error with the id of the request shows that the server has answered it.
    """
    import httpx2
    from mcp.types import INTERNAL_ERROR, ErrorData, JSONRPCError

    request = json.loads(response.request.content)
    id, method = request.get("id"), request.get("method")

    if method is None or id is None or response.status_code == 404:
        return  # no caller waits for the answer; the SDK knows what 404 means

    body = await _read_body(response)

    if (error := _parse_error(response, body)) is not None and (error.id == id or response.status_code < 500):
        return

    text = f"it answered with status {response.status_code}"
    text += f": {excerpt}" if (excerpt := _excerpt(body)) else ""

    # A server that does not know the newest protocol may answer its first request with any error.
    if response.status_code >= 500 and method != "server/discover":
        raise httpx2.HTTPStatusError(text, request=response.request, response=response)

    answer = JSONRPCError(jsonrpc="2.0", id=id, error=ErrorData(code=INTERNAL_ERROR, message=text))
    response.headers["content-type"] = "application/json"
    response.__dict__["_content"] = answer.model_dump_json(by_alias=True, exclude_unset=True).encode()


async def _read_body(response: httpx2.Response) -> bytes:
    """The body of an error; empty if it is too large or does not come."""
    import httpx2

    with suppress(TimeoutError, httpx2.StreamError, httpx2.TransportError, httpx2.DecodingError):
        async with asyncio.timeout(BODY_SECONDS):
            return await response.aread()

    return b""


def _parse_error(response: httpx2.Response, body: bytes) -> JSONRPCError | None:
    """The JSON-RPC error in a response, if it is one for the SDK."""
    from mcp.types import JSONRPCError

    if not response.headers.get("content-type", "").lower().startswith("application/json"):
        return None

    try:
        return JSONRPCError.model_validate_json(body, by_name=False)
    except ValidationError:
        return None


def _excerpt(body: bytes) -> str:
    text = " ".join(body.decode("utf-8", "replace").split())
    return escape_controls(text if len(text) <= BODY_CHARS else f"{text[: BODY_CHARS - 1]}…")


@cache
def _bounded_response_class() -> type[httpx2.Response]:
    import httpx2

    class BoundedResponse(httpx2.Response):
        max_bytes = 0

        async def aiter_bytes(self, chunk_size: int | None = None) -> AsyncGenerator[bytes, None]:
            """Iterate over the decompressed body; all other methods that read it call this one."""
            total = 0

            async with aclosing(super().aiter_bytes(chunk_size)) as parts:
                async for part in parts:
                    total += len(part)

                    if total > self.max_bytes:
                        raise httpx2.StreamError(f"the answer of the server is larger than {self.max_bytes:,} bytes")

                    yield part

    return BoundedResponse
