"""A model behind Chat Completions."""

from __future__ import annotations

import re

from crew.doors import ModelReply, ModelRequest, ModelSettings, OnDelta
from crew.exchanges import profile_named
from crew.providers import openai_sdk, options
from crew.providers.connection import Connection
from crew.providers.openai_chat.decode import Gathering, from_wire
from crew.providers.openai_chat.render import to_wire

_CLASSIC = re.compile(r"(ft:)?(gpt-3\.5|gpt-4|chatgpt-4)")
_MODERN = re.compile(r"(ft:)?(gpt-|o\d|codex|chatgpt)")


class OpenAIChat:
    """Answers through Chat Completions: `OpenAIChat("gpt-5-mini")`, or with `base_url=` any compatible server.

    Key and address come from OPENAI_API_KEY and OPENAI_BASE_URL where they are not given. `profile` names the rules
    that the requests keep; by default they follow from the model's name. `timeout` is for one request, in seconds.
    """

    is_remote = True

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
        timeout: float = 300.0,
        name: str = "openai",
    ) -> None:
        self.name, self.model = name, model
        self._rules = profile_named(profile or _era(model))
        self.profile = self._rules.name
        self._connection = Connection(
            lambda: openai_sdk.load(api_key=api_key, base_url=base_url, timeout=timeout),
            "/chat/completions",
            name,
            model,
        )

    def __repr__(self) -> str:
        return f"OpenAIChat({self.model!r}, profile={self.profile!r})"

    def check(self, settings: ModelSettings) -> None:
        """Whether this model knows these settings."""
        options.check(settings, self._rules, self.model)

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        """Ask, and wait for the whole reply; pieces of it go to `on_delta` on their way."""
        body = to_wire(request, self.model, self._rules, stream=on_delta is not None)

        if on_delta is None:
            return await self._connection.send(body, lambda answer: from_wire(answer, self.name, self.model))

        gathering = Gathering(on_delta)
        await self._connection.stream(body, gathering.take)

        if not gathering.is_whole:
            raise self._connection.cut()

        return gathering.reply(self.name, self.model)

    async def aclose(self) -> None:
        """Close the connections of the running event loop; they open again on the next request."""
        await self._connection.aclose()


def _era(model: str) -> str:
    if _CLASSIC.match(model):
        return "openai-chat-classic"

    return "openai-chat" if _MODERN.match(model) else "compatible"
