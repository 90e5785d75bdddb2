"""Bounds the body of a request: its size, counted as it arrives, and the time in which it must arrive."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crew.server.http_errors import HTTPError, error_response
from crew.server.server_settings import ServerSettings


class BodyLimits:
    """ASGI middleware. A body that is too large is refused with 413, one that is too slow with 408.

    The connection is closed then: the rest of the body is not read.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app, self._limit, self._seconds = app, settings.max_body_bytes, settings.body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        declared = Headers(scope=scope).get("content-length", "")

        if declared.isdecimal() and int(declared[:20]) > self._limit:
            error = self._too_large()
            await error_response(error.status, error.type, error.message, error.headers)(scope, receive, send)
            return

        await self._app(scope, self._bounded(receive), send)

    def _bounded(self, receive: Receive) -> Receive:
        received, is_complete = 0, False
        deadline = asyncio.get_running_loop().time() + self._seconds

        async def receive_bounded() -> Message:
            nonlocal received, is_complete

            if is_complete:
                return await receive()  # waits for the client to disconnect

            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                text = f"The body did not arrive within {self._seconds:g} s."
                raise HTTPError(408, "body_timeout", text, headers={"Connection": "close"}) from None

            received += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)

            if received > self._limit:
                raise self._too_large()

            return message

        return receive_bounded

    def _too_large(self) -> HTTPError:
        text = f"The body is larger than {self._limit} bytes."
        return HTTPError(413, "body_too_large", text, headers={"Connection": "close"})
