"""The constructor and the `complete()` that all providers on official SDKs share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import ClassVar, Protocol

from crew.errors import RequestRejected
from crew.interfaces import ModelReply, ModelRequest, ModelSettings, OnDelta
from crew.message_rules.profiles import check_model_settings, get_profile
from crew.message_rules.reply_checks import check_reply
from crew.providers.connection import Connection
from crew.providers.sdk_clients import SDKClient
from crew.providers.wire import JSONObject, ModelId


class StreamDecoder(Protocol):
    """Builds a reply from the events of a stream."""

    @property
    def is_complete(self) -> bool:
        """Whether the event that ends a reply has arrived."""
        ...

    def add(self, event: JSONObject) -> None: ...

    def reply(self) -> ModelReply: ...


class SDKProvider(ABC):
    """A `RemoteProvider` that calls one model through its vendor's SDK; each subclass implements one HTTP API.

    `api_key` and `base_url` default to the environment variables of the SDK. `profile` names the message rules of the
    API and defaults to the one for this model. `timeout` is in seconds and applies to one request.
    """

    default_name: ClassVar[str]
    endpoint: ClassVar[str]

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
        timeout: float = 300.0,
        name: str | None = None,
    ) -> None:
        self.name = self.default_name if name is None else name
        self.model = model
        self.secrets = () if api_key is None else (api_key,)
        self._rules = get_profile(profile or self._default_profile(model))
        self.profile = self._rules.name
        self._model_id = ModelId(self.name, model)
        self._connection = Connection(
            # A static method: the connection has no reference to this object, so that both are dropped at once.
            partial(self._open_client, api_key=api_key, base_url=base_url, timeout=timeout),
            self.endpoint,
            self._model_id,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, profile={self.profile!r})"

    def check(self, settings: ModelSettings) -> None:
        """Raise DefinitionError if the model does not support a setting."""
        check_model_settings(settings, self._rules, self.model)

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        """Send the request and return the whole reply; with `on_delta`, stream it."""
        try:
            return await self._send(request, on_delta)
        except RequestRejected as error:
            if not self._adapt(request, error):
                raise

        return await self._send(request, on_delta)

    async def aclose(self) -> None:
        """Close the connections of the running event loop; the next request opens new ones."""
        await self._connection.aclose()

    async def _send(self, request: ModelRequest, on_delta: OnDelta | None) -> ModelReply:
        body = self._render(request, stream=on_delta is not None)

        def decode(answer: JSONObject) -> ModelReply:
            return self._check(self._decode(answer))

        if on_delta is None:
            return await self._connection.send(body, decode, request.settings.extra_headers)

        decoder = self._stream_decoder(on_delta)

        def finish() -> ModelReply:
            if not decoder.is_complete:
                raise self._connection.truncated_stream()

            return self._check(decoder.reply())

        return await self._connection.stream(body, decoder.add, finish, decode, request.settings.extra_headers)

    def _check(self, reply: ModelReply) -> ModelReply:
        return check_reply(reply, provider=self.name, model=self.model)

    @staticmethod
    @abstractmethod
    def _open_client(*, api_key: str | None, base_url: str | None, timeout: float) -> SDKClient: ...

    @staticmethod
    @abstractmethod
    def _default_profile(model: str) -> str:
        """Derive the profile from the model's name."""

    @abstractmethod
    def _render(self, request: ModelRequest, *, stream: bool) -> bytes: ...

    @abstractmethod
    def _decode(self, answer: JSONObject) -> ModelReply: ...

    @abstractmethod
    def _stream_decoder(self, on_delta: OnDelta) -> StreamDecoder: ...

    @abstractmethod
    def _adapt(self, request: ModelRequest, error: RequestRejected) -> bool:
        """Prepare a second attempt after a rejection, which renders differently; False if the error stands."""
