"""The providers that an executor's agents name, each made once and closed together."""

from __future__ import annotations

from collections.abc import Callable

from crew.errors import DefinitionError, suggest
from crew.interfaces import ModelSettings, Provider
from crew.providers.anthropic import Anthropic
from crew.providers.openai_chat import OpenAIChat
from crew.providers.openai_responses import OpenAIResponses
from crew.providers.retrying import Retrying, RetryPolicy
from crew.providers.scripted import ScriptedProvider

PROVIDER_FACTORIES: dict[str, Callable[[str], Provider]] = {
    "anthropic": Anthropic,
    "openai": OpenAIChat,
    "openai-responses": OpenAIResponses,
    "scripted": lambda text: ScriptedProvider(lambda request: text, model=f"scripted:{text}"),
}


class ProviderPool:
    """Makes a provider for a name such as `openai:gpt-5-mini`; what goes over a network is asked again if it fails."""

    def __init__(self, retry: RetryPolicy | None = None) -> None:
        self._retry = retry or RetryPolicy()
        self._created: dict[str, Provider] = {}
        self._given: dict[int, Provider] = {}

    def check(self, model: str | Provider, settings: ModelSettings | None = None) -> None:
        """Whether there is a provider for this and it knows the settings, without connecting to anything."""
        if isinstance(model, str):
            kind, found, name = model.partition(":")

            if not found or kind not in PROVIDER_FACTORIES or not name:
                raise DefinitionError(
                    f"Model {model!r}",
                    "a model is written as provider:name, such as 'openai:gpt-5-mini', or is a provider such as "
                    f"ScriptedProvider('Hello'). {suggest(kind, PROVIDER_FACTORIES)}",
                )

            model = PROVIDER_FACTORIES[kind](name)

        if settings is not None and (check := getattr(model, "check", None)):
            check(settings)

    def get(self, model: str | Provider) -> Provider:
        """The provider behind a model's name; a ready one as it is, unless it goes over a network."""
        if not isinstance(model, str):
            return self._wrap_given(model)

        if model not in self._created:
            self.check(model)
            kind, _, name = model.partition(":")
            self._created[model] = self._with_retries(PROVIDER_FACTORIES[kind](name))

        return self._created[model]

    def _wrap_given(self, provider: Provider) -> Provider:
        found = self._given.get(id(provider))

        if found is None:
            # Held here, so that its id is not given to another one.
            found = self._given[id(provider)] = self._with_retries(provider)

        return found

    def _with_retries(self, provider: Provider) -> Provider:
        return Retrying(provider, policy=self._retry) if getattr(provider, "is_remote", False) else provider

    async def aclose(self) -> None:
        """Close what was made or used here; the next run opens it anew."""
        # Of the ready ones only those that open their connections again by themselves.
        used = [*self._created.values(), *(given for given in self._given.values() if isinstance(given, Retrying))]
        self._created, self._given = {}, {}

        for provider in used:
            if close := getattr(provider, "aclose", None):
                await close()
