"""The SDKs' HTTP client without the merging that a request of ours never needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from crew.errors import AuthenticationFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class SDKClient:
    """An SDK's client and the names of it that we use; `lost` and `garbled` are what its transport may let through."""

    client: Any
    module: Any
    stream_class: Any
    response_class: Any
    base_error: type[Exception]
    missing_key_message: str
    connection_errors: tuple[type[Exception], ...]
    protocol_errors: tuple[type[Exception], ...]
    api_key: str = field(repr=False)

    def url(self, path: str) -> str:
        """The whole address: the SDK parses a relative one twice."""
        return f"{str(self.client.base_url).rstrip('/')}{path}"


@cache
def http_options(timeout: float) -> dict[str, Any]:
    """How both SDKs' HTTP clients are made: one TLS context for all of them, since to make one takes 20 ms."""
    import httpx2

    return {
        "timeout": httpx2.Timeout(timeout, connect=10.0),
        # 0 is no limit to aiohttp: who runs many runs at once wants them at once; the services say when it is too much.
        "limits": httpx2.Limits(max_connections=0, max_keepalive_connections=0, keepalive_expiry=60.0),
        "verify": _tls(),
    }


@cache
def _tls() -> Any:
    import httpx2

    return httpx2.create_ssl_context()


@cache
def http_client_class(base: type[Any]) -> type[Any]:
    """A client class that builds a request with a ready body, and sends it, straight away.

    httpx parses the address and merges headers, cookies and parameters of client and request anew each time; of ours,
    the SDK has given everything already. Each of the two was a tenth of what a call costs.
    """
    import httpx2

    class Lean(base):  # type: ignore[misc]  # the base is known only once the SDK is loaded
        def build_request(
            self, method: str, url: Any, *, content: Any = None, headers: Any = None, timeout: Any = None, **more: Any
        ) -> Any:
            if not isinstance(content, bytes) or timeout is None or any(value is not None for value in more.values()):
                return super().build_request(
                    method, url, content=content, headers=headers, timeout=timeout or self.timeout, **more
                )

            known = self.__dict__.setdefault("_known", {})
            address = known.get(url)

            if address is None:
                address = known[url] = httpx2.URL(url)

            limits = known.get(timeout)

            if limits is None:
                limits = known[timeout] = httpx2.Timeout(timeout).as_dict()

            request = httpx2.Request(method, address, content=content, headers=headers, extensions={"timeout": limits})
            request.headers.setdefault("Accept-Encoding", self.headers["accept-encoding"])
            return request

        async def send(self, request: Any, *, stream: bool = False, **more: Any) -> Any:
            """As the base, but past the layers for logins and redirects where there is nothing for them to do."""
            transport_for = getattr(self, "_transport_for_url", None)  # private: another release may not have it
            special = stream or self.is_closed or self.auth is not None or request.url.userinfo or "auth" in more

            if special or transport_for is None:
                return await super().send(request, stream=stream, **more)

            response = await transport_for(request.url).handle_async_request(request)

            try:
                if response.has_redirect_location:
                    await response.aclose()
                    return await super().send(request, stream=stream, **more)

                await response.aread()
                return response
            except BaseException:  # as the base does: whatever happens, the connection goes back
                await response.aclose()
                raise

    return Lean


_NO_ANTHROPIC_KEY = (
    "There is no key for Anthropic: set ANTHROPIC_API_KEY, or pass api_key= to the provider. "
    "To work offline, use ScriptedProvider('Hello') as the agent's model."
)


def anthropic_client(*, api_key: str | None, base_url: str | None, timeout: float) -> SDKClient:
    """A client of the running event loop; key and address come from the SDK's variables if not given."""
    import aiohttp
    import anthropic
    import httpx2

    http = http_client_class(anthropic.DefaultAioHttpClient)(**http_options(timeout))

    try:
        client = anthropic.AsyncAnthropic(
            api_key=api_key,
            base_url=base_url,
            max_retries=0,
            timeout=timeout,
            http_client=http,
            # It would write a span of its own beside ours, and every token would be counted twice.
            open_telemetry={"traces": False, "propagation": False},
        )
    except anthropic.AnthropicError as error:
        raise AuthenticationFailed(f"{_NO_ANTHROPIC_KEY} ({error})", provider="anthropic") from error

    if client.api_key is None and client.auth_token is None and client.credentials is None:
        raise AuthenticationFailed(_NO_ANTHROPIC_KEY, provider="anthropic")

    key = client.api_key or client.auth_token or ""
    return SDKClient(
        client=client,
        module=anthropic,
        connection_errors=(httpx2.HTTPError, OSError),
        base_error=anthropic.AnthropicError,
        missing_key_message=_NO_ANTHROPIC_KEY,
        protocol_errors=(aiohttp.ClientError,),
        response_class=httpx2.Response,
        stream_class=anthropic.AsyncStream[object],
        api_key=key,
    )


_NO_OPENAI_KEY = (
    "There is no key for OpenAI: set OPENAI_API_KEY, or pass api_key= to the provider. "
    "To work offline, use ScriptedProvider('Hello') as the agent's model."
)


def openai_client(*, api_key: str | None, base_url: str | None, timeout: float) -> SDKClient:
    """A client of the running event loop; key and address come from OPENAI_API_KEY and OPENAI_BASE_URL if not given."""
    import aiohttp
    import httpx2
    import openai

    http = http_client_class(openai.DefaultAioHttpClient)(**http_options(timeout))

    try:
        client = openai.AsyncOpenAI(
            api_key=api_key, base_url=base_url, max_retries=0, timeout=timeout, http_client=http
        )
    except openai.OpenAIError as error:
        raise AuthenticationFailed(_NO_OPENAI_KEY, provider="openai") from error

    return SDKClient(
        client=client,
        module=openai,
        connection_errors=(httpx2.HTTPError, OSError),
        base_error=openai.OpenAIError,
        missing_key_message=_NO_OPENAI_KEY,
        protocol_errors=(aiohttp.ClientError,),
        response_class=httpx2.Response,
        stream_class=openai.AsyncStream[object],
        api_key=client.api_key,
    )
