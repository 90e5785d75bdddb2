"""Checks where a request comes from (`Host`, `Origin`, `Sec-Fetch-Site`), and adds security headers to answers."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crew.errors import abbreviate
from crew.server.http_errors import error_response
from crew.server.server_settings import LOOPBACK, ServerSettings

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
NO_CONTENT_POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": NO_CONTENT_POLICY,
    "Cache-Control": "no-store",
}
"""The headers of an answer that does not set them itself."""

PREFLIGHT_HEADERS = {
    "Access-Control-Allow-Methods": "GET, POST, DELETE",
    "Access-Control-Allow-Headers": "authorization, content-type, idempotency-key, last-event-id, x-crew-conversation",
    "Access-Control-Max-Age": "600",
}
EXPOSED_HEADERS = "X-Crew-Run, Location, Retry-After, X-Should-Retry"
"""The headers of an answer that a page on a listed origin can read, beside those that browsers always show."""


class RequestGuard:
    """ASGI middleware: refuses requests for other hosts and from other web sites.

    A page on another site can make a browser send requests to this machine, also to loopback addresses; by a DNS entry
    that changes it can even make them look like requests of the same origin. Such a request has a foreign `Host`.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._hosts = frozenset(_bracketed(host.lower()) for host in (*LOOPBACK, *settings.allow_hosts))
        self._origins = frozenset(origin.rstrip("/").lower() for origin in settings.allow_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        is_listed = origin.lower() in self._origins

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(MutableHeaders(scope=message), origin if is_listed else "")

            await send(message)

        refusal = self._refusal(scope["method"], headers, is_listed=is_listed)

        if refusal is None and is_listed and scope["method"] == "OPTIONS":
            refusal = Response(status_code=204, headers=_preflight_headers(headers))

        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, method: str, headers: Headers, *, is_listed: bool) -> Response | None:
        hosts = headers.getlist("host")

        if len(hosts) != 1 or not ("*" in self._hosts or _host_name(hosts[0]) in self._hosts):
            return error_response(421, "foreign_host", _foreign_host(hosts))

        if is_listed:
            return None

        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        # A link on another site may open a page: the browser shows it, and the other site can't read it.
        opens_page = method in SAFE_METHODS and headers.get("sec-fetch-mode") == "navigate" and origin is None
        is_foreign = site not in (None, "same-origin", "none") and not opens_page

        if is_foreign or (origin is not None and not _is_same(origin, hosts[0])):
            text = "Pages of other web sites may not call this service. Allow them with allow_origins (--allow-origin)."
            return error_response(403, "foreign_origin", text)

        by_cookie = "cookie" in headers and "authorization" not in headers

        if by_cookie and method not in SAFE_METHODS and origin is None and site is None:
            return error_response(403, "foreign_origin", "A request with a cookie needs the header Origin.")

        return None


def _preflight_headers(headers: Headers) -> dict[str, str]:
    """Allow the headers that the page asks for: a listed origin is trusted, and client libraries add their own."""
    asked = headers.get("access-control-request-headers")
    return PREFLIGHT_HEADERS | ({} if asked is None else {"Access-Control-Allow-Headers": asked})


def _foreign_host(hosts: Sequence[str]) -> str:
    if len(hosts) != 1:
        return f"A request must have one header Host, not {len(hosts)}."

    name = _host_name(hosts[0])
    return f"This service does not answer for the host {abbreviate(name)}. Allow it with allow_hosts (--allow-host)."


def _add_headers(headers: MutableHeaders, origin: str) -> None:
    for name, value in SECURITY_HEADERS.items():
        headers.setdefault(name, value)

    if origin:
        headers["Access-Control-Allow-Origin"] = origin
        headers["Access-Control-Expose-Headers"] = EXPOSED_HEADERS
        headers.add_vary_header("Origin")
    else:
        headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")


def _bracketed(host: str) -> str:
    """A host as the header has it: an IPv6 address stands in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _host_name(host: str) -> str:
    """The name in a `Host` header, without the port."""
    name, colon, port = host.strip().lower().rpartition(":")
    return (
        name if colon and port.isdigit() and (not name.startswith("[") or name.endswith("]")) else host.strip().lower()
    )


def _is_same(origin: str, host: str) -> bool:
    """Whether an origin is the host of the request; a proxy in front may have another scheme."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False

    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.strip().lower()
