"""The transport of a server with a URL: the SDK's streamable HTTP, with bounds for what the server answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2
    from mcp.client._transport import TransportStreams

EVENT_STREAM_SECONDS = 300.0


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

    async def bound(response: httpx2.Response) -> None:
        kind = response.headers.get("content-type", "").lower()

        # A gateway, or a server that broke: it may have received the call. The SDK would report it like any refusal.
        is_call = response.request.method == "POST"

        if is_call and response.status_code >= 500 and not kind.startswith("application/json"):
            text = f"it answered with status {response.status_code}"
            raise httpx2.HTTPStatusError(text, request=response.request, response=response)

        # The SDK bounds the events of a stream, but not a response of one piece.
        if not kind.startswith("text/event-stream"):
            response.__class__ = _bounded_response_class()
            response.__dict__["max_bytes"] = address.max_bytes

    client = httpx2.AsyncClient(
        headers=dict(address.headers),
        timeout=httpx2.Timeout(address.seconds, read=EVENT_STREAM_SECONDS),
        event_hooks={"response": [bound]},
    )

    async with (
        client,
        streamable_http_client(address.url, http_client=client, max_sse_event_size=address.max_bytes) as streams,
    ):
        yield streams


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
