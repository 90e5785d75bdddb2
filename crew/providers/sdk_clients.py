"""Opens the vendors' SDK clients, on an HTTP client without the per-request work that rendered bodies don't need."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from crew.errors import AuthenticationFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class SDKClient:
    """An SDK's client and the classes of that SDK that a connection uses.

    The SDK wraps most errors of its transport in `base_error`; `connection_errors` and `protocol_errors` may come
    through unwrapped. `connector_error` is the transport's error for a connection that could not be opened.
    """

    client: Any  # openai.AsyncOpenAI or anthropic.AsyncAnthropic: each is imported on first use only
    module: Any
    stream_class: type[object]
    response_class: type[object]
    base_error: type[Exception]
    missing_key_message: str
    connection_errors: tuple[type[Exception], ...]
    connector_error: type[Exception]
    protocol_errors: tuple[type[Exception], ...]
    api_key: str = field(repr=False)

    def url(self, endpoint: str) -> str:
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
            """Skip the authentication and redirect layers of the base class unless the request needs them."""
            # The method is private: another release may not have it.
            transport_for = getattr(self, "_transport_for_url", None)  # foreign: the client class of httpx2
            special = stream or self.is_closed or self.auth is not None or request.url.userinfo or "auth" in more

            if special or transport_for is None:
                return await self._send_by_base(request, stream=stream, **more)

            response: httpx2.Response = await transport_for(request.url).handle_async_request(request)

            try:
                if response.has_redirect_location:
                    await response.aclose()
                    return await self._send_by_base(request, stream=stream, **more)

                await response.aread()
                return response
            except BaseException:  # as the base class does: always return the connection to its pool
                await response.aclose()
                raise

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

    try:
        client = anthropic.AsyncAnthropic(
            api_key=api_key,
            base_url=base_url,
            max_retries=0,
            timeout=timeout,
            http_client=http_client_class(anthropic.DefaultAioHttpClient)(**http_options(timeout)),
            # The SDK's span would duplicate ours and count every token twice.
            open_telemetry={"traces": False, "propagation": False},
        )
    except anthropic.AnthropicError as error:
        raise AuthenticationFailed(f"{_NO_ANTHROPIC_KEY} ({error})", provider="anthropic") from error

    if client.api_key is None and client.auth_token is None and client.credentials is None:
        raise AuthenticationFailed(_NO_ANTHROPIC_KEY, provider="anthropic")

    api_key = client.api_key or client.auth_token or ""
    return _sdk_client(client, anthropic, anthropic.AnthropicError, _NO_ANTHROPIC_KEY, api_key)


_NO_OPENAI_KEY = (
    "No API key for OpenAI: set OPENAI_API_KEY, or pass api_key= to the provider. "
    "To work offline, use ScriptedProvider('Hello') as the agent's model."
)


def openai_client(*, api_key: str | None, base_url: str | None, timeout: float) -> SDKClient:
    """Open a client; the SDK reads OPENAI_API_KEY and OPENAI_BASE_URL if they are None."""
    import openai

    try:
        client = openai.AsyncOpenAI(
            api_key=api_key,
            base_url=base_url,
            max_retries=0,
            timeout=timeout,
            http_client=http_client_class(openai.DefaultAioHttpClient)(**http_options(timeout)),
        )
    except openai.OpenAIError as error:
        raise AuthenticationFailed(_NO_OPENAI_KEY, provider="openai") from error

    return _sdk_client(client, openai, openai.OpenAIError, _NO_OPENAI_KEY, client.api_key)


def _sdk_client(
    client: object, module: Any, base_error: type[Exception], missing_key_message: str, api_key: str
) -> SDKClient:
    import aiohttp
    import httpx2

    return SDKClient(
        client=client,
        module=module,
        base_error=base_error,
        missing_key_message=missing_key_message,
        api_key=api_key,
        stream_class=module.AsyncStream[object],
        response_class=httpx2.Response,
        connection_errors=(httpx2.HTTPError, OSError),
        connector_error=aiohttp.ClientConnectorError,
        protocol_errors=(aiohttp.ClientError,),
    )
