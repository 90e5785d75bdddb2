"""Creates the providers of an executor's agents, adds retries to the remote ones, and closes them together."""

from __future__ import annotations

from collections.abc import Callable

from crew.errors import DefinitionError, abbreviate, suggest
from crew.interfaces import AsyncClosable, ChecksSettings, ModelSettings, Provider, RemoteProvider
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
    """One provider for each model: for a name such as `openai:gpt-5-mini`, or for a provider that an agent was given.

    Both dictionaries keep their providers for the executor's lifetime, so that each is checked for its capabilities
    once: before Python 3.12 `isinstance` with a Protocol takes about 20 µs.
    """

    def __init__(self, retry: RetryPolicy | None = None) -> None:
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise DefinitionError("CrewExecutor", f"retry must be RetryPolicy(...), not {abbreviate(retry)}")

        self._retry = retry or RetryPolicy()
        self._created: dict[str, Provider] = {}
        self._given: dict[int, Provider] = {}

    def check(self, model: str | Provider, settings: ModelSettings | None = None) -> None:
        """Raise DefinitionError for an unknown model name or unsupported settings; opens no connection."""
        provider = _create(model) if isinstance(model, str) else model

        if settings is not None and isinstance(provider, ChecksSettings):
            provider.check(settings)

    def get(self, model: str | Provider) -> Provider:
        """Return the provider for a model, with retries if it is remote."""
        if isinstance(model, str):
            if model not in self._created:
                self._created[model] = self._with_retries(_create(model))

            return self._created[model]

        found = self._given.get(id(model))

        if found is None:
            # The value refers to the given provider, so that no other object gets the same id.
            found = self._given[id(model)] = self._with_retries(model)

        return found

    def _with_retries(self, provider: Provider) -> Provider:
        if isinstance(provider, RemoteProvider) and not isinstance(provider, Retrying):
            return Retrying(provider, policy=self._retry)

        return provider

    async def aclose(self) -> None:
        """Close the connections of all providers; the next run opens new ones."""
        # A given provider that is not remote is not closed: it may be unable to open its connections again.
        given = [provider for provider in self._given.values() if isinstance(provider, Retrying)]

        for provider in (*self._created.values(), *given):
            if isinstance(provider, AsyncClosable):
                await provider.aclose()


def model_name_problem(model: str) -> str:
    """Why a name such as `openai:gpt-5-mini` is not accepted; empty if it is."""
    kind, colon, name = model.partition(":")

    if not colon:
        return (
            "a model is provider:name, such as 'openai:gpt-5-mini', or a provider object, such as "
            f"ScriptedProvider('Hello'). {suggest(kind, PROVIDER_FACTORIES)}"
        )

    if kind not in PROVIDER_FACTORIES:
        return f"unknown provider {kind!r}. {suggest(kind, PROVIDER_FACTORIES)}"

    return "" if name else f"the model name after {model!r} is missing"


def _create(model: str) -> Provider:
    if problem := model_name_problem(model):
        raise DefinitionError(f"Model {model!r}", problem)

    kind, _, name = model.partition(":")
    return PROVIDER_FACTORIES[kind](name)
