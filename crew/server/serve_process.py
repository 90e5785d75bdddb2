"""Serves an application with uvicorn: time limits for slow clients, and an end that leaves runs resumable."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from crew.server.hub import RunHub

HEAD_SECONDS = 10.0
"""The time for the first line and the headers of a request, and for the rest of a body that is already answered."""

SHUTDOWN_SECONDS = 3
MAX_HEAD_BYTES = 32_768


class TimedProtocol(H11Protocol):
    """HTTP/1.1 whose clients must send the head of each request in time: uvicorn alone would wait for ever.

    A request that was answered before its body is complete, such as one without a token, has the same time for the
    rest. Until then the connection stays open: closing it at once could discard the answer before the client reads it.
    """

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request."""
        super().data_received(data)

        if self._is_answered_early:
            return  # a part of the rest of the body, which is not used

        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()  # the head is complete
        elif self._head_timer is None:
            self._await_head()  # the first bytes of the next request on this connection

    def connection_lost(self, exc: Exception | None) -> None:
        """End the timer with the connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request, as long as the connection is kept alive."""
        self._stop_timer()
        super().on_response_complete()

        if self._is_answered_early:
            self._await_head()

    @property
    def _is_answered_early(self) -> bool:
        return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._close_slow_client)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_slow_client(self) -> None:
        self._head_timer = None

        if self.transport.is_closing():
            return

        if not self._is_answered_early:
            self.transport.write(b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")

        self.transport.close()


class CrewServer(uvicorn.Server):
    """A uvicorn server that ends the streams of events before it waits for its connections to close."""

    def __init__(self, config: uvicorn.Config, hub: RunHub, on_started: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._hub, self._on_started = hub, on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and report it."""
        await super().startup(sockets)

        if self.started:
            await self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, end the streams, and stop the runs, which stay resumable."""
        self._hub.end_streams()
        await super().shutdown(sockets)


def create_server(app: ASGIApp, hub: RunHub, on_started: Callable[[], Awaitable[None]]) -> CrewServer:
    """A server for an application, with the limits of this module."""
    config = uvicorn.Config(
        app,
        http=TimedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )
    log = logging.getLogger("uvicorn.error")
    log.setLevel(logging.WARNING)
    log.addFilter(_is_no_cancellation)
    return CrewServer(config, hub, on_started)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Drops the stack trace of a second Ctrl-C, which ends the service without waiting."""
    return not record.getMessage().rstrip().endswith("asyncio.exceptions.CancelledError")
