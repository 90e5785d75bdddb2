"""Bounds the responses that an HTTP client reads, and refuses redirects to other servers."""

from __future__ import annotations

from contextlib import aclosing
from functools import cache
from typing import TYPE_CHECKING

from crew.errors import ProviderError, RedirectRefused, ReplyTooLarge, abbreviate

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    import httpx2

MAX_BODY_BYTES = 16 * 2**20
"""The most bytes of a response, or of one event of a stream, after decompression: more than ten times the longest reply
of today's models."""

MAX_STREAM_BYTES = 128 * 2**20
"""The most bytes of all events of one stream, after decompression; each token may be an event of some 300 bytes."""

MAX_REDIRECTS = 5
"""The most redirects of one request, all within one server."""

_SAME_METHOD = (307, 308)


class RefusedResponse(Exception):
    """A response that is not read, or a redirect that is not followed; `kind` is the error to report."""

    def __init__(self, kind: type[ProviderError], text: str) -> None:
        self.kind = kind
        super().__init__(text)


@cache
def _bounded_response_class() -> type[httpx2.Response]:
    import httpx2

    class BoundedResponse(httpx2.Response):
        is_event_stream = False

        async def aiter_bytes(self, chunk_size: int | None = None) -> AsyncGenerator[bytes, None]:
            """Iterate over the decompressed body; all other methods that read it call this one."""
            total = pending = 0

            async with aclosing(super().aiter_bytes(chunk_size)) as parts:
                async for part in parts:
                    total += len(part)
                    pending += len(part)

                    if self.is_event_stream:
                        if total > MAX_STREAM_BYTES:
                            raise _too_large("A stream", MAX_STREAM_BYTES)

                        if (end := max(part.rfind(b"\n\n"), part.rfind(b"\r\n\r\n"))) >= 0:
                            pending = len(part) - end  # of the event that has not ended

                    if pending > MAX_BODY_BYTES:
                        raise _too_large("One event" if self.is_event_stream else "The response", MAX_BODY_BYTES)

                    yield part

    return BoundedResponse


def _too_large(subject: str, limit: int) -> RefusedResponse:
    return RefusedResponse(
        ReplyTooLarge, f"{subject} is larger than {limit // 2**20} MiB after decompression; the connection was closed."
    )


async def send_bounded(
    send: Callable[[httpx2.Request], Awaitable[httpx2.Response]], request: httpx2.Request, *, stream: bool
) -> httpx2.Response:
    """Send a request; bound its response, read it unless it is streamed, and follow redirects within its server."""
    redirects: list[httpx2.Response] = []

    while True:
        response = await send(request)
        # A new object would have to copy private state of the response.
        response.__class__ = _bounded_response_class()

        try:
            redirected = _redirected_request(request, response, len(redirects) + 1)

            if redirected is None:
                if stream:
                    response.__dict__["is_event_stream"] = True
                else:
                    await response.aread()

                response.history = redirects
                return response
        except BaseException:  # always return the connection to its pool
            await response.aclose()
            raise

        await response.aclose()
        redirects.append(response)
        request = redirected


def _redirected_request(request: httpx2.Request, response: httpx2.Response, count: int) -> httpx2.Request | None:
    """The request that a redirect within the same server asks for; None if the response is not a redirect.

    Raises RefusedResponse for any other redirect: the conversation goes only to the server that the user chose.
    """
    if not response.has_redirect_location:
        return None

    import httpx2

    location, server = response.headers["location"], _server(request.url)

    try:
        url = request.url.join(location)
    except httpx2.InvalidURL as error:
        raise _refused(f"{server} redirects to an invalid address, {abbreviate(location)}") from error

    if _server(url) != server:
        raise _refused(f"{server} redirects to {_server(url)}, and the conversation is not sent to another server")

    if response.status_code not in _SAME_METHOD:
        raise _refused(f"{server} redirects to {url.path} with status {response.status_code}, which drops the request")

    if count > MAX_REDIRECTS:
        raise _refused(f"{server} redirects more than {MAX_REDIRECTS} times")

    return httpx2.Request(
        request.method, url, headers=request.headers, content=request.content, extensions=request.extensions
    )


def _server(url: httpx2.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode()}"


def _refused(text: str) -> RefusedResponse:
    return RefusedResponse(RedirectRefused, f"{text}. If you trust the new address, set it as base_url.")
