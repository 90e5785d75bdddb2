"""Sends a rendered request through an SDK's client and translates the SDK's errors."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar
from weakref import finalize

from crew.errors import (
    AuthenticationFailed,
    CrewError,
    MalformedReply,
    ProviderError,
    Unavailable,
    Unreachable,
    describe,
)
from crew.providers.error_mapping import ServiceError, may_retry, provider_error, retry_after
from crew.providers.loop_clients import LoopClient, LoopClients
from crew.providers.response_bounds import RefusedResponse
from crew.providers.sdk_clients import SDKClient
from crew.providers.wire import JSONObject, ModelId, parse_json

T = TypeVar("T")
Headers = Mapping[str, str] | None
_QUOTED_CHARS = 120


class Connection:
    """The clients of one provider: one for each event loop, made on first use.

    A client stays open between runs, so that its TCP and TLS connections are reused. It is closed by `aclose`, with
    its event loop, or when this object is dropped.
    """

    def __init__(
        self,
        open_client: Callable[[], SDKClient],
        endpoint: str,
        model_id: ModelId,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._open_client, self._endpoint, self._clock = open_client, endpoint, clock
        self._provider, self._model = model_id
        self._clients: dict[asyncio.AbstractEventLoop, LoopClient] = {}

    async def send(self, body: bytes, decode: Callable[[JSONObject], T], headers: Headers = None) -> T:
        """Post a body, with additional headers, and decode the JSON of the response."""
        async with self._client() as sdk:
            return self._decode(sdk, (await sdk.post(self._endpoint, body, headers)).content, decode)

    async def stream(
        self,
        body: bytes,
        on_event: Callable[[JSONObject], None],
        finish: Callable[[], T],
        decode: Callable[[JSONObject], T],
        headers: Headers = None,
    ) -> T:
        """Post a body, pass each event of the response to `on_event`, and return the result of `finish`.

        A response that is one JSON object instead of a stream is decoded as in `send`.
        """
        is_repeatable = True

        try:
            async with self._client() as sdk:
                events = await sdk.open_stream(self._endpoint, body, headers)
                is_repeatable = may_retry(events.response.headers)
                return await self._read(sdk, events, on_event, finish, decode)
        except ProviderError as error:
            error.may_retry = error.may_retry and is_repeatable
            raise

    async def _read(
        self,
        sdk: SDKClient,
        events: Any,
        on_event: Callable[[JSONObject], None],
        finish: Callable[[], T],
        decode: Callable[[JSONObject], T],
    ) -> T:
        try:
            if events.response.headers.get("content-type", "").startswith("application/json"):
                content = await events.response.aread()

                if content.lstrip().startswith(b"{"):
                    return self._decode(sdk, content, decode)

            async for event in events:
                on_event(event)

            return finish()
        except ValueError as error:
            raise self._malformed(f"a stream event that is not JSON ({error})") from error
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise self._malformed(f"a stream event of an unknown shape ({error!r})") from error
        finally:
            await events.close()

    def _decode(self, sdk: SDKClient, content: bytes, decode: Callable[[JSONObject], T]) -> T:
        try:
            answer = parse_json(content)

            if isinstance(answer, dict) and answer.get("error"):  # with status 200
                raise self._service_error(sdk, ServiceError.parse(200, answer))

            return decode(answer)
        except ValueError as error:
            start = content[:_QUOTED_CHARS].decode(errors="replace")
            raise self._malformed(f"not JSON but {start!r}") from error
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise self._malformed(f"JSON that is not a reply ({error!r})") from error

    def truncated_stream(self) -> MalformedReply:
        """Return the error for a stream that ended before the reply was complete."""
        return self._malformed("a stream that ended before the reply was complete")

    async def aclose(self) -> None:
        """Close the running event loop's client once its last request has ended."""
        loop = asyncio.get_running_loop()

        if (held := self._clients.get(loop)) is not None:
            await LoopClients.of(loop).close(held)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[SDKClient]:
        loop = asyncio.get_running_loop()
        held = self._clients.get(loop)

        if held is None:
            held = await self._open(loop)

        held.users += 1

        try:
            yield held.client
        except CrewError:
            raise
        except (held.client.base_error, *held.client.connection_errors, *held.client.protocol_errors) as error:
            translated = self._translate(held.client, error)
            # An SDK error whose text contains the API key is not kept as the cause.
            raise translated from (None if held.client.api_key and held.client.api_key in str(error) else error)
        finally:
            held.users -= 1
            await held.close_if_idle()

    async def _open(self, loop: asyncio.AbstractEventLoop) -> LoopClient:
        clients, of_loop = self._clients, LoopClients.of(loop)

        def forget() -> None:
            del clients[loop]
            finalizer.detach()

        held = clients[loop] = LoopClient(client=self._open_client(), forget=forget)
        finalizer = finalize(self, of_loop.drop, held)
        finalizer.atexit = False
        await of_loop.add(held)
        return held

    def _translate(self, sdk: SDKClient, error: Exception) -> ProviderError:
        for cause in _causes(error):
            if isinstance(cause, RefusedResponse):
                text = f"{self._provider} ({self._model}): {cause}"
                return cause.kind(text, provider=self._provider, model=self._model)

        if isinstance(error, sdk.module.APIStatusError):
            return self._status_error(sdk, error)

        if isinstance(error, (sdk.module.APIConnectionError, *sdk.connection_errors)):
            return _connection_error(sdk, error, self._provider, self._model)

        text = sdk.hide_key(str(error))

        if isinstance(error, sdk.module.APIError):
            return self._service_error(sdk, ServiceError.parse(200, error.body, text))

        if isinstance(error, sdk.base_error):
            # An SDK raises its base error only before it sends anything, when it has no credentials.
            return AuthenticationFailed(
                f"{sdk.missing_key_message} ({text})", provider=self._provider, model=self._model
            )

        return self._malformed(f"data that is not HTTP ({text})")

    def _status_error(self, sdk: SDKClient, error: Any) -> ProviderError:
        headers = error.response.headers
        return self._service_error(
            sdk,
            ServiceError.parse(error.status_code, error.body, str(error)),
            request_id=headers.get("x-request-id") or headers.get("request-id") or "",
            retry_after=retry_after(headers, self._clock()),
            may_retry=may_retry(headers),
        )

    def _service_error(
        self,
        sdk: SDKClient,
        error: ServiceError,
        *,
        request_id: str = "",
        retry_after: float | None = None,
        may_retry: bool = True,
    ) -> ProviderError:
        return provider_error(
            replace(error, message=sdk.hide_key(error.message)),
            provider=self._provider,
            model=self._model,
            request_id=request_id,
            retry_after=retry_after,
            may_retry=may_retry,
        )

    def _malformed(self, found: str) -> MalformedReply:
        text = f"{self._provider} ({self._model}) returned {found}."
        return MalformedReply(text, provider=self._provider, model=self._model)


def _connection_error(sdk: SDKClient, error: Exception, provider: str, model: str) -> Unavailable:
    """Describe a failed connection by the operating system's error, which the SDK's message leaves out."""
    causes = list(_causes(error))
    failure = next((cause for cause in causes if isinstance(cause, OSError) and cause.errno), None)

    if failure is not None and any(isinstance(cause, sdk.connector_error) for cause in causes):
        is_unknown_host = any(isinstance(cause, socket.gaierror) for cause in causes)
        advice = "Check the host name." if is_unknown_host else "Is the server running?"
        text = f"Can't connect to {sdk.server}: {_os_error_text(failure)}. {advice}"
        return Unreachable(text, provider=provider, model=model)

    if isinstance(error, sdk.module.APITimeoutError):
        text = f"No response from {sdk.server}: timed out, or the connection was lost."
    else:
        reason = _os_error_text(failure) if failure is not None else describe(causes[-1])
        text = f"The request to {sdk.server} failed: {sdk.hide_key(reason).rstrip('.')}."

    return Unavailable(text, provider=provider, model=model)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error

    while cause is not None:
        yield cause
        cause = cause.__cause__  # not __context__: it may be an error of another provider that is being handled


def _os_error_text(error: OSError) -> str:
    # A negative number is the resolver's; asyncio replaces the text of a positive one by the address.
    text = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error.strerror)
    return text[:1].lower() + text[1:]
