"""A model behind Anthropic's Messages."""

from __future__ import annotations

import re

from crew.doors import ModelReply, ModelRequest, ModelSettings, OnDelta
from crew.errors import RequestRejected
from crew.exchanges import profile_named
from crew.providers import anthropic_sdk
from crew.providers.anthropic.decode import Gathering, from_wire
from crew.providers.anthropic.render import DEFAULT_OUTPUT, check, to_wire
from crew.providers.anthropic.turns import DISTRUSTED
from crew.providers.connection import Connection
from crew.providers.originals import distrust

_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:[-.](\d{1,2})(?!\d))?")
_BAD_SIGNATURE = re.compile(r"Invalid `(signature|data)` in|thinking` blocks? in the latest|cannot be modified")

_OUTPUT_TOO_LARGE = re.compile(r"`max_tokens` exceed context limit: \d+ \+ \d+ > (\d+)")


class Anthropic:
    """Answers through Anthropic's Messages: `Anthropic("claude-sonnet-4-5")`.

    Key and address come from ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL where they are not given. `profile` names the
    rules that the requests keep; by default they follow from the model's version. `timeout` is for one request, in
    seconds.
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
        name: str = "anthropic",
    ) -> None:
        self.name, self.model = name, model
        self.secrets = () if api_key is None else (api_key,)
        self._rules = profile_named(profile or _era(model))
        self.profile = self._rules.name
        self._output = DEFAULT_OUTPUT
        self._connection = Connection(
            lambda: anthropic_sdk.load(api_key=api_key, base_url=base_url, timeout=timeout),
            "/v1/messages",
            name,
            model,
        )

    def __repr__(self) -> str:
        return f"Anthropic({self.model!r}, profile={self.profile!r})"

    def check(self, settings: ModelSettings) -> None:
        """Whether this model knows these settings."""
        check(settings, self._rules, self.model)

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        """Ask, and wait for the whole reply; pieces of it go to `on_delta` on their way."""
        try:
            return await self._ask(request, on_delta)
        except RequestRejected as error:
            distrusted = _BAD_SIGNATURE.search(str(error)) and distrust(request, DISTRUSTED)

            if not distrusted and not (request.settings.max_output_tokens is None and self._learns(error)):
                raise

        # Thinking that the service does not know again is dropped whole, an output limit of ours that is too large
        # for the window is lowered, and the same question asked once more.
        return await self._ask(request, on_delta)

    def _learns(self, error: RequestRejected) -> bool:
        """Whether our own output limit was what did not fit, and a smaller one is known now."""
        found = _OUTPUT_TOO_LARGE.search(str(error))
        fitting = int(found[1]) // 4 if found else self._output

        if fitting >= self._output:
            return False

        self._output = fitting
        return True

    async def _ask(self, request: ModelRequest, on_delta: OnDelta | None) -> ModelReply:
        writer = (self.name, self.model)
        body = to_wire(request, writer, self._rules, stream=on_delta is not None, default_output=self._output)

        if on_delta is None:
            return await self._connection.send(body, lambda answer: from_wire(answer, writer))

        gathering = Gathering(on_delta)
        await self._connection.stream(body, gathering.take)

        if not gathering.is_whole:
            raise self._connection.cut()

        return gathering.reply(writer)

    async def aclose(self) -> None:
        """Close the connections of the running event loop; they open again on the next request."""
        await self._connection.aclose()


def _era(model: str) -> str:
    found = _VERSION.search(model)

    if not found:
        return "anthropic"

    version = (int(found[1]), int(found[2] or 0))
    return "anthropic-classic" if version < (4, 7) else "anthropic-4.7" if version < (4, 8) else "anthropic"
