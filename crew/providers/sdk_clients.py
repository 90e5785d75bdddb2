"""Opens the vendors' SDK clients, on an HTTP client without the per-request work that rendered bodies don't need."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from crew.errors import AuthenticationFailed
from crew.providers.response_bounds import RefusedResponse, send_bounded

if TYPE_CHECKING:
    import httpx2

_OPTIONS: Any = {"headers": {"Content-Type": "application/json"}}  # each SDK has its own TypedDict for these


class _RequestHead(NamedTuple):
    """A request of the SDK without its body; `is_confirmed`: two requests had the same one."""

    url: httpx2.URL
    headers: httpx2.Headers
    extensions: dict[str, Any]
    is_confirmed: bool = False

    def with_body(self, body: bytes) -> httpx2.Request:
        """Return the request with this body."""
        import httpx2

        # With `stream=` instead of `content=`, httpx takes the headers as they are.
        request = httpx2.Request(
            "POST", self.url, headers=self.headers, stream=httpx2.ByteStream(body), extensions=self.extensions
        )
        request.headers.encoding = self.headers.encoding
        request.headers["content-length"] = str(len(body))
        request.read()
        return request


@dataclass(frozen=True, slots=True, kw_only=True)
class SDKClient:
    """An SDK's client and the classes of that SDK that a connection uses.

    The SDK wraps most errors of its transport in `base_error`; `connection_errors` and `protocol_errors` may come
    through unwrapped. `connector_error` is the transport's error for a connection that could not be opened.
    `has_fixed_key` is False if the SDK obtains tokens that expire.
    """

    client: Any  # openai.AsyncOpenAI or anthropic.AsyncAnthropic: each is imported on first use only
    http_client: Any
    module: Any
    base_error: type[Exception]
    missing_key_message: str
    connection_errors: tuple[type[Exception], ...]
    connector_error: type[Exception]
    protocol_errors: tuple[type[Exception], ...]
    api_key: str = field(repr=False)
    has_fixed_key: bool = True
    _heads: dict[str, _RequestHead] = field(default_factory=dict, repr=False)

    async def post(self, endpoint: str, body: bytes, headers: Mapping[str, str] | None = None) -> httpx2.Response:
        """Post a rendered body, with additional headers, and return the whole response; raises the SDK's errors.

        The SDK's `post` takes as long as the rest of a call. So once two of its requests had the same head, the next
        ones go to its HTTP client with that head. The SDK still makes the errors, from what the HTTP client returned.
        """
        import httpx2

        head = self._heads.get(endpoint)

        if head is None or not head.is_confirmed:
            response: httpx2.Response = await _post(self.client, self._url(endpoint), body, headers)

            if not headers:
                self._note_head(endpoint, response)  # another request may have no additional headers, or others

            return response

        failure: Exception | None = None
        request = head.with_body(body)
        request.headers.update(headers or {})

        try:
            response = await self.http_client.send(request)
        except Exception as error:  # the SDK decides which errors it wraps
            failure = error
        else:
            if response.is_success:
                return response

        self._heads.pop(endpoint, None)

        def replay(_: httpx2.Request) -> httpx2.Response:
            if failure is not None:
                raise failure

            headers = [item for item in response.headers.multi_items() if item[0] != "content-encoding"]
            return httpx2.Response(response.status_code, headers=headers, content=response.content)

        async with httpx2.AsyncClient(transport=httpx2.MockTransport(replay), trust_env=False) as replaying:
            client = self.client.with_options(http_client=replaying)
            replayed: httpx2.Response = await _post(client, self._url(endpoint), body)
            return replayed

    def _note_head(self, endpoint: str, response: httpx2.Response) -> None:
        """Keep the head of the SDK's request, unless it was redirected or has a token that expires."""
        if not self.has_fixed_key or response.history:
            return

        request, known = response.request, self._heads.get(endpoint)
        headers = request.headers.copy()
        headers.pop("content-length", None)
        head = _RequestHead(request.url, headers, request.extensions)
        self._heads[endpoint] = head._replace(is_confirmed=known is not None and known[:3] == head[:3])

    async def open_stream(self, endpoint: str, body: bytes, headers: Mapping[str, str] | None = None) -> Any:
        """Post a rendered body, with additional headers, and return the SDK's stream of events; raises its errors."""
        return await self.client.post(
            self._url(endpoint),
            content=body,
            cast_to=object,
            options=_options(headers),
            stream=True,
            stream_cls=self.module.AsyncStream[object],
        )

    def _url(self, endpoint: str) -> str:
        """Return the absolute URL: the SDK would parse a relative one twice."""
        return f"{str(self.client.base_url).rstrip('/')}{endpoint}"

    @property
    def server(self) -> str:
        """The base URL for error messages: without user name, password and query."""
        url = self.client.base_url
        return (f"{url.scheme}://{url.netloc.decode()}{url.path}" if url.scheme else str(url.path)).rstrip("/")

    def hide_key(self, text: str) -> str:
        """Return the text without the API key."""
        return text.replace(self.api_key, "[key]") if self.api_key else text


async def _post(client: Any, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> Any:
    import httpx2

    return await client.post(url, content=body, cast_to=httpx2.Response, options=_options(headers))


def _options(headers: Mapping[str, str] | None) -> Any:
    """The options of a request with these additional headers."""
    return {"headers": {**_OPTIONS["headers"], **headers}} if headers else _OPTIONS


@cache
def http_options(timeout: float) -> dict[str, object]:
    """Return the options of every HTTP client; they share one TLS context, since creating one takes 20 ms."""
    import httpx2

    return {
        "timeout": httpx2.Timeout(timeout, connect=10.0),
        # For aiohttp 0 means unlimited: concurrent runs are limited by the services' rate limits, not by a queue here.
        "limits": httpx2.Limits(max_connections=0, max_keepalive_connections=0, keepalive_expiry=60.0),
        "verify": _tls_context(),
    }


@cache
def _tls_context() -> ssl.SSLContext:
    import httpx2

    return httpx2.create_ssl_context()


@cache
def http_client_class(base: type[Any]) -> type[Any]:
    """Return a subclass of an SDK's HTTP client that builds and sends a request with a rendered body directly.

    For each request httpx parses the URL and merges headers, cookies and parameters of client and request, all of
    which the SDK has already set. Building and sending each took a tenth of the time of a call.
    """
    import httpx2

    class DirectClient(base):  # type: ignore[misc]  # the base is known only once the SDK is loaded
        def build_request(
            self,
            method: str,
            url: httpx2.URL | str,
            *,
            content: object = None,
            headers: Any = None,
            timeout: Any = None,
            **more: object,
        ) -> httpx2.Request:
            if not isinstance(content, bytes) or timeout is None or any(value is not None for value in more.values()):
                built: httpx2.Request = super().build_request(
                    method, url, content=content, headers=headers, timeout=timeout or self.timeout, **more
                )
                return built

            cached = self.__dict__.setdefault("_cached", {})
            address = cached.get(url)

            if address is None:
                address = cached[url] = httpx2.URL(url)

            limits = cached.get(timeout)

            if limits is None:
                limits = cached[timeout] = httpx2.Timeout(timeout).as_dict()

            request = httpx2.Request(method, address, content=content, headers=headers, extensions={"timeout": limits})
            request.headers.setdefault("Accept-Encoding", self.headers["accept-encoding"])
            return request

        async def send(self, request: httpx2.Request, *, stream: bool = False, **more: object) -> httpx2.Response:
            return await send_bounded(lambda sent: self._send_once(sent, stream=stream, **more), request, stream=stream)

        async def _send_once(self, request: httpx2.Request, *, stream: bool, **more: object) -> httpx2.Response:
            """Return the unread response; skip the authentication and redirect layers of the base class if possible."""
            # The method is private: another release may not have it.
            transport_for = getattr(self, "_transport_for_url", None)  # foreign: the client class of httpx2
            special = stream or self.is_closed or self.auth is not None or request.url.userinfo or "auth" in more

            if special or transport_for is None:
                return await self._send_by_base(request, **{**more, "stream": True, "follow_redirects": False})

            response: httpx2.Response = await transport_for(request.url).handle_async_request(request)
            return response

        async def _send_by_base(self, request: httpx2.Request, **options: object) -> httpx2.Response:
            response: httpx2.Response = await super().send(request, **options)
            return response

    return DirectClient


_NO_ANTHROPIC_KEY = (
    "No API key for Anthropic: set ANTHROPIC_API_KEY, or pass api_key= to the provider. "
    "To work offline, use ScriptedProvider('Hello') as the agent's model."
)


def anthropic_client(*, api_key: str | None, base_url: str | None, timeout: float) -> SDKClient:
    """Open a client; the SDK reads key and URL from its environment variables if they are None."""
    import anthropic

    http_client = http_client_class(anthropic.DefaultAioHttpClient)(**http_options(timeout))

    try:
        client = anthropic.AsyncAnthropic(
            api_key=api_key,
            base_url=base_url,
            max_retries=0,
            timeout=timeout,
            http_client=http_client,
            # The SDK's span would duplicate ours and count every token twice.
            open_telemetry={"traces": False, "propagation": False},
        )
    except anthropic.AnthropicError as error:
        raise AuthenticationFailed(f"{_NO_ANTHROPIC_KEY} ({error})", provider="anthropic") from error

    if client.api_key is None and client.auth_token is None and client.credentials is None:
        raise AuthenticationFailed(_NO_ANTHROPIC_KEY, provider="anthropic")

    api_key = client.api_key or client.auth_token or ""
    return SDKClient(
        client=client,
        http_client=http_client,
        module=anthropic,
        base_error=anthropic.AnthropicError,
        missing_key_message=_NO_ANTHROPIC_KEY,
        api_key=api_key,
        has_fixed_key=client.credentials is None,
        **_transport_errors(),
    )


_NO_OPENAI_KEY = (
    "No API key for OpenAI: set OPENAI_API_KEY, or pass api_key= to the provider. "
    "To work offline, use ScriptedProvider('Hello') as the agent's model."
)


def openai_client(*, api_key: str | None, base_url: str | None, timeout: float) -> SDKClient:
    """Open a client; the SDK reads OPENAI_API_KEY and OPENAI_BASE_URL if they are None."""
    import openai

    http_client = http_client_class(openai.DefaultAioHttpClient)(**http_options(timeout))

    try:
        client = openai.AsyncOpenAI(
            api_key=api_key,
            base_url=base_url,
            max_retries=0,
            timeout=timeout,
            http_client=http_client,
        )
    except openai.OpenAIError as error:
        raise AuthenticationFailed(_NO_OPENAI_KEY, provider="openai") from error

    return SDKClient(
        client=client,
        http_client=http_client,
        module=openai,
        base_error=openai.OpenAIError,
        missing_key_message=_NO_OPENAI_KEY,
        api_key=client.api_key,
        **_transport_errors(),
    )


class _TransportErrors(TypedDict):
    connection_errors: tuple[type[Exception], ...]
    connector_error: type[Exception]
    protocol_errors: tuple[type[Exception], ...]


def _transport_errors() -> _TransportErrors:
    import aiohttp
    import httpx2

    return {
        "connection_errors": (httpx2.HTTPError, OSError),
        "connector_error": aiohttp.ClientConnectorError,
        "protocol_errors": (aiohttp.ClientError, RefusedResponse),
    }
