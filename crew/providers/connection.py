"""The way to a service and back: bytes out through the SDK's client, an answer or an error of ours in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from crew.errors import AuthenticationFailed, CrewError, MalformedReply, ProviderError, Unavailable
from crew.providers.error_mapping import ServiceError, provider_error, retry_after
from crew.providers.sdk_clients import SDKClient
from crew.providers.wire import parse_json

T = TypeVar("T")
_OPTIONS: Any = {"headers": {"Content-Type": "application/json"}}
_SHOWN = 120


@dataclass(slots=True, kw_only=True, eq=False)
class _LoopClient:
    """One event loop's client: closed once nobody uses it any more."""

    client: SDKClient
    users: int = 0
    closing: bool = False


class Connection:
    """One provider's clients, one for each event loop; made on first use."""

    def __init__(
        self,
        make: Callable[[], SDKClient],
        path: str,
        provider: str,
        model: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._make, self._path, self._clock = make, path, clock
        self._facts: dict[str, Any] = {"provider": provider, "model": model}
        self._open: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopClient] = WeakKeyDictionary()

    async def send(self, body: bytes, read: Callable[[Any], T]) -> T:
        """Post a body; `read` makes a reply of the answer's JSON."""
        async with self._client() as sdk:
            answer = await sdk.client.post(
                sdk.url(self._path), content=body, cast_to=sdk.response_class, options=_OPTIONS
            )
            content: bytes = answer.content

            try:
                return read(parse_json(content))
            except ValueError as error:
                start = content[:_SHOWN].decode(errors="replace")
                raise self._malformed(f"what came back is not JSON but {start!r}") from error
            except (AttributeError, IndexError, KeyError, TypeError) as error:
                raise self._malformed(f"what came back has not the shape of a reply ({error!r})") from error

    async def stream(self, body: bytes, take: Callable[[Any], None]) -> None:
        """Post a body; `take` gets the events of the answer, one by one."""
        async with self._client() as sdk:
            events = await sdk.client.post(
                sdk.url(self._path),
                content=body,
                cast_to=object,
                options=_OPTIONS,
                stream=True,
                stream_cls=sdk.stream_class,
            )

            try:
                async for event in events:
                    take(event)
            except ValueError as error:
                raise self._malformed(f"an event of the stream is not JSON ({error})") from error
            except (AttributeError, IndexError, KeyError, TypeError) as error:
                raise self._malformed(f"an event of the stream has not its shape ({error!r})") from error
            finally:
                await events.close()

    def failed(self, body: Any) -> ProviderError:
        """The error that an event in a stream speaks of."""
        return provider_error(ServiceError.parse(200, body), **self._facts)

    def truncated_stream(self) -> MalformedReply:
        """The stream ended before the reply did."""
        return self._malformed("the stream ended before the reply did")

    def empty(self, what: str) -> MalformedReply:
        """An answer without a reply in it."""
        return self._malformed(what)

    async def aclose(self) -> None:
        """Close this event loop's client, as soon as the last request on it has ended."""
        held = self._open.pop(asyncio.get_running_loop(), None)

        if held is not None:
            held.closing = True
            await _close_if_idle(held)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[SDKClient]:
        loop = asyncio.get_running_loop()
        held = self._open.get(loop)

        if held is None:
            held = self._open[loop] = _LoopClient(client=self._make())

        held.users += 1

        try:
            yield held.client
        except CrewError:
            raise
        except (held.client.base_error, *held.client.connection_errors, *held.client.protocol_errors) as error:
            translated = self._translate(held.client, error)
            # A cause that shows the key is not kept.
            raise translated from (None if held.client.api_key and held.client.api_key in str(error) else error)
        finally:
            held.users -= 1
            await _close_if_idle(held)

    def _translate(self, sdk: SDKClient, error: Exception) -> ProviderError:
        words = str(error).replace(sdk.api_key, "[key]") if sdk.api_key else str(error)
        module = sdk.module

        if isinstance(error, module.APIStatusError):
            headers = error.response.headers
            facts = {
                **self._facts,
                "request_id": headers.get("x-request-id") or headers.get("request-id") or "",
                "retry_after": retry_after(headers, self._clock()),
            }
            refusal = ServiceError.parse(error.status_code, error.body, words)
        elif isinstance(error, module.APITimeoutError):
            return Unavailable(f"{self._name} did not answer in time, or the connection was lost.", **self._facts)
        elif isinstance(error, (module.APIConnectionError, *sdk.connection_errors)):
            return Unavailable(f"{self._name} can't be reached: {words or type(error).__name__}", **self._facts)
        elif isinstance(error, module.APIError):
            facts, refusal = dict(self._facts), ServiceError.parse(200, error.body, words)
        elif isinstance(error, sdk.base_error):
            # What an SDK raises before it sends anything is about who is asking.
            return AuthenticationFailed(f"{sdk.missing_key_message} ({words})", **self._facts)
        else:
            return self._malformed(f"what came back is not HTTP ({words})")

        message = refusal.message.replace(sdk.api_key, "[key]") if sdk.api_key else refusal.message
        return provider_error(
            ServiceError(status=refusal.status, kind=refusal.kind, code=refusal.code, message=message), **facts
        )

    @property
    def _name(self) -> str:
        return f"{self._facts['provider']} ({self._facts['model']})"

    def _malformed(self, what: str) -> MalformedReply:
        return MalformedReply(f"{self._name} gave no usable answer: {what}.", **self._facts)


async def _close_if_idle(held: _LoopClient) -> None:
    if held.closing and not held.users:
        await held.client.client.close()
