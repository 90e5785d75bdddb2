"""Server-sent events: what a `Follower` yields, as the bytes of a response that a client may cut at any time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from crew.runs.interfaces import StoredEvent
from crew.server.follow import Followed, Heartbeat, RunStopped
from crew.server.run_json import event_json
from crew.server.run_tails import EncodedEvent, encode_stored

RETRY_MILLISECONDS = 1_000
PIECE_BYTES = 65_536
HEARTBEAT = b": heartbeat\n\n"
HEADERS = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx passes each event on at once
}


def encode(item: Followed) -> bytes:
    """One item of a stream. Only stored events have an id: `Last-Event-ID` names the last one that arrived."""
    match item:
        case EncodedEvent(frame=frame):
            return frame
        case StoredEvent():
            return encode_stored(item, lambda event: event).frame
        case Heartbeat():
            return HEARTBEAT
        case RunStopped(run_id=run_id, status=status):
            return b"event: end\ndata: %s\n\n" % json.dumps({"run_id": run_id, "status": status}).encode()
        case _:
            return b"event: %s\ndata: %s\n\n" % (item.kind.encode(), event_json(item))


async def encode_all(batches: AsyncGenerator[Sequence[Followed], None]) -> AsyncGenerator[bytes, None]:
    """The body of a response, in pieces of a bounded size."""
    async with aclosing(batches):
        yield b"retry: %d\n\n" % RETRY_MILLISECONDS

        async for batch in batches:
            piece = bytearray()

            for item in batch:
                piece += encode(item)

                if len(piece) >= PIECE_BYTES:
                    yield bytes(piece)
                    piece.clear()

            if piece:
                yield bytes(piece)


class EventResponse(StreamingResponse):
    """A response of server-sent events; a client that takes nothing for `send_seconds` is disconnected."""

    media_type = "text/event-stream"

    def __init__(
        self,
        body: AsyncGenerator[bytes, None],
        send_seconds: float,
        status_code: int = 200,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(body, status_code, HEADERS | (headers or {}))
        self._body, self._send_seconds = body, send_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self._send_seconds):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        except TimeoutError:
            return  # it reconnects with the cursor of its last event, if it still lives
        finally:
            await self._body.aclose()
