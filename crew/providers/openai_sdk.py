"""OpenAI's SDK: loaded on first use, its retries off, on its aiohttp back end."""

from __future__ import annotations

from crew.errors import AuthenticationFailed
from crew.providers.connection import Sdk


def load(*, api_key: str | None, base_url: str | None, timeout: float) -> Sdk:
    """A client of the running event loop; key and address come from OPENAI_API_KEY and OPENAI_BASE_URL if not given."""
    import aiohttp
    import httpx2
    import openai

    # 0 is no limit to aiohttp: who runs many runs at once wants them at once, and the services say when it is too much.
    limits = httpx2.Limits(max_connections=0, max_keepalive_connections=0, keepalive_expiry=60.0)
    http = openai.DefaultAioHttpClient(timeout=httpx2.Timeout(timeout, connect=10.0), limits=limits)

    try:
        client = openai.AsyncOpenAI(
            api_key=api_key, base_url=base_url, max_retries=0, timeout=timeout, http_client=http
        )
    except openai.OpenAIError as error:
        raise AuthenticationFailed(
            "There is no key for OpenAI: set OPENAI_API_KEY, or pass api_key= to the provider. "
            "To work offline, use ScriptedProvider('Hello') as the agent's model.",
            provider="openai",
        ) from error

    return Sdk(
        client=client,
        module=openai,
        lost=(httpx2.HTTPError, OSError),
        garbled=(aiohttp.ClientError,),
        raw=httpx2.Response,
        stream=openai.AsyncStream[object],
        key=client.api_key,
    )
