"""OpenAI's SDK: loaded on first use, its retries off, on its aiohttp back end."""

from __future__ import annotations

from crew.errors import AuthenticationFailed
from crew.providers.connection import Sdk, http_options
from crew.providers.lean import lean

_NO_KEY = (
    "There is no key for OpenAI: set OPENAI_API_KEY, or pass api_key= to the provider. "
    "To work offline, use ScriptedProvider('Hello') as the agent's model."
)


def load(*, api_key: str | None, base_url: str | None, timeout: float) -> Sdk:
    """A client of the running event loop; key and address come from OPENAI_API_KEY and OPENAI_BASE_URL if not given."""
    import aiohttp
    import httpx2
    import openai

    http = lean(openai.DefaultAioHttpClient)(**http_options(timeout))

    try:
        client = openai.AsyncOpenAI(
            api_key=api_key, base_url=base_url, max_retries=0, timeout=timeout, http_client=http
        )
    except openai.OpenAIError as error:
        raise AuthenticationFailed(_NO_KEY, provider="openai") from error

    return Sdk(
        client=client,
        module=openai,
        lost=(httpx2.HTTPError, OSError),
        own=openai.OpenAIError,
        no_key=_NO_KEY,
        garbled=(aiohttp.ClientError,),
        raw=httpx2.Response,
        stream=openai.AsyncStream[object],
        key=client.api_key,
    )
