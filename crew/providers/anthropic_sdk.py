"""Anthropic's SDK: loaded on first use, its retries and its telemetry off, on its aiohttp back end."""

from __future__ import annotations

from crew.errors import AuthenticationFailed
from crew.providers.connection import Sdk, http_options
from crew.providers.lean import lean

_NO_KEY = (
    "There is no key for Anthropic: set ANTHROPIC_API_KEY, or pass api_key= to the provider. "
    "To work offline, use ScriptedProvider('Hello') as the agent's model."
)


def load(*, api_key: str | None, base_url: str | None, timeout: float) -> Sdk:
    """A client of the running event loop; key and address come from the SDK's variables if not given."""
    import aiohttp
    import anthropic
    import httpx2

    http = lean(anthropic.DefaultAioHttpClient)(**http_options(timeout))

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
        raise AuthenticationFailed(f"{_NO_KEY} ({error})", provider="anthropic") from error

    if client.api_key is None and client.auth_token is None and client.credentials is None:
        raise AuthenticationFailed(_NO_KEY, provider="anthropic")

    key = client.api_key or client.auth_token or ""
    return Sdk(
        client=client,
        module=anthropic,
        lost=(httpx2.HTTPError, OSError),
        own=anthropic.AnthropicError,
        no_key=_NO_KEY,
        garbled=(aiohttp.ClientError,),
        raw=httpx2.Response,
        stream=anthropic.AsyncStream[object],
        key=key,
    )
