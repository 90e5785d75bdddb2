"""A model behind OpenAI's Responses."""

from __future__ import annotations

import re

from crew.doors import ModelReply, ModelRequest, ModelSettings, OnDelta
from crew.errors import RequestRejected
from crew.exchanges import profile_named
from crew.providers import openai_sdk, options
from crew.providers.connection import Connection
from crew.providers.openai_responses.decode import Gathering, from_wire
from crew.providers.openai_responses.render import DISTRUSTED, to_wire
from crew.providers.originals import distrust

_CLASSIC = re.compile(r"(ft:)?(gpt-3\.5|gpt-4|chatgpt-4)")
_BAD_REASONING = re.compile(r"encrypted content|Item with id 'rs_|of type 'reasoning'|required 'reasoning' item")


class OpenAIResponses:
    """Answers through Responses: `OpenAIResponses("gpt-5-mini")`. Nothing is stored at the service.

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
        name: str = "openai-responses",
    ) -> None:
        self.name, self.model = name, model
        self.secrets = () if api_key is None else (api_key,)
        default = "openai-responses-classic" if _CLASSIC.match(model) else "openai-responses"
        self._rules = profile_named(profile or default)
        self.profile = self._rules.name
        self._connection = Connection(
            lambda: openai_sdk.load(api_key=api_key, base_url=base_url, timeout=timeout), "/responses", name, model
        )

    def __repr__(self) -> str:
        return f"OpenAIResponses({self.model!r}, profile={self.profile!r})"

    def check(self, settings: ModelSettings) -> None:
        """Whether this model knows these settings."""
        options.check(settings, self._rules, self.model)

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        """Ask, and wait for the whole reply; pieces of it go to `on_delta` on their way."""
        try:
            return await self._ask(request, on_delta)
        except RequestRejected as error:
            if not (_BAD_REASONING.search(str(error)) and distrust(request, DISTRUSTED)):
                raise

        # Reasoning that the service does not know again is dropped whole, and the same question asked without it.
        return await self._ask(request, on_delta)

    async def _ask(self, request: ModelRequest, on_delta: OnDelta | None) -> ModelReply:
        writer = (self.name, self.model)
        body = to_wire(request, writer, self._rules, stream=on_delta is not None)

        if on_delta is None:
            return await self._connection.send(body, lambda answer: from_wire(answer, writer))

        gathering = Gathering(on_delta, writer)
        await self._connection.stream(body, gathering.take)

        if gathering.answer is None:
            raise self._connection.cut()

        return from_wire(gathering.answer, writer)

    async def aclose(self) -> None:
        """Close the connections of the running event loop; they open again on the next request."""
        await self._connection.aclose()
