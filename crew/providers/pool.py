"""Creates the providers of an executor's agents, adds retries to the remote ones, and closes them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from crew import providers
from crew.errors import DefinitionError, suggest
from crew.interfaces import AsyncClosable, ChecksSettings, ModelSettings, Provider, RemoteProvider, RetryPolicy
from crew.providers.rate_limits import Limited, ModelLimiter, RateLimit, RateLimiter
from crew.providers.retrying import Retrying
from crew.settings import warn_about

PROVIDER_FACTORIES: dict[str, Callable[[str], Provider]] = {
    "anthropic": lambda model: providers.Anthropic(model=model),
    "openai": lambda model: providers.OpenAIChat(model=model),
    "openai-responses": lambda model: providers.OpenAIResponses(model=model),
    "scripted": lambda text: providers.ScriptedProvider(lambda request: text, model=f"scripted:{text}"),
}
"""Functions, so that the package `providers` imports a provider's module with the first model that needs it."""


class ProviderPool:
    """One provider for each model: for a name such as `openai:gpt-5-mini`, or for a provider that an agent was given.

    Agents with different retry policies share the provider and its connections. The dictionaries keep providers for the
    executor's lifetime, so that each is checked for its capabilities once: before Python 3.12 `isinstance` with a
    Protocol takes about 20 µs.
    """

    def __init__(self, retry: RetryPolicy | None = None, limiter: RateLimiter | None = None) -> None:
        self._retry, self._limiter = retry or RetryPolicy(), limiter
        self._created: dict[str, Provider] = {}
        self._given: dict[int, Provider] = {}
        self._with_policy: dict[tuple[str | int, RetryPolicy | None], Provider] = {}

    def check(
        self, model: str | Provider, settings: ModelSettings | None = None, retry: RetryPolicy | None = None
    ) -> None:
        """Raise DefinitionError for an unknown model name or unsupported settings; opens no connection."""
        provider = _create(model) if isinstance(model, str) else model

        if retry is not None and isinstance(provider, Retrying):
            problem = (
                "Retrying(...) has its own retry policy; leave out retry= of the agent, or pass the provider itself"
            )
            raise DefinitionError(f"Model {provider.name}:{provider.model}", problem)

        if settings is not None and isinstance(provider, ChecksSettings):
            provider.check(settings)

    def get(self, model: str | Provider, retry: RetryPolicy | None = None) -> Provider:
        """Return the provider for a model; with retries if it is remote, or if the agent has a retry policy."""
        key = (model if isinstance(model, str) else id(model), retry)
        found = self._with_policy.get(key)

        if found is None:
            found = self._with_policy[key] = self._with_retries(self._provider(model), retry)

        return found

    def _provider(self, model: str | Provider) -> Provider:
        if not isinstance(model, str):
            # Kept, so that no other object gets the same id.
            return self._given.setdefault(id(model), model)

        if model not in self._created:
            self._created[model] = _create(model)

        return self._created[model]

    def _with_retries(self, provider: Provider, retry: RetryPolicy | None) -> Provider:
        names = () if self._limiter is None else self._limiter.names_for(provider)
        limits = None if self._limiter is None or not names else ModelLimiter(self._limiter, names)

        if isinstance(provider, Retrying):
            return provider if limits is None else replace(provider, limits=limits)

        if retry is None and not isinstance(provider, RemoteProvider):
            return provider if limits is None else Limited(provider, limits)

        return Retrying(provider, policy=retry or self._retry, limits=limits)

    async def aclose(self) -> None:
        """Close the connections of all providers; the next run opens new ones."""
        # A given provider that is not remote is not closed: it may be unable to open its connections again.
        given = [provider for provider in self._given.values() if isinstance(provider, RemoteProvider)]

        for provider in (*self._created.values(), *given):
            if isinstance(provider, AsyncClosable):
                await provider.aclose()


def limiter_for(
    limits: Mapping[str, RateLimit] | RateLimiter | None, models: Iterable[object], crew: str
) -> RateLimiter | None:
    """The limiter of an executor with these models. Raises `DefinitionError` for a limit of an unknown provider.

    A limit that applies to none of the models causes a warning, which names the crew: a run may use another model, and
    another crew of a configuration file may have it. Other executors may use the further limits of a limiter that they
    share.
    """
    if limits is None:
        return None

    limiter = limits if isinstance(limits, RateLimiter) else RateLimiter(limits)
    used = [*_known_providers(models)]
    limiter.check_providers([*PROVIDER_FACTORIES, *(provider.name for provider in used)])
    applied = {name for provider in used for name in limiter.names_for(provider)}

    if limiter is limits and applied:
        return limiter

    names = {f"{provider.name}:{provider.model}" for provider in used}

    for name in limiter.names:
        if name not in applied:
            text = f"rate_limits[{name!r}] applies to no model of the crew {crew!r}, only to a model that a run names."
            warn_about(f"{text} {suggest(name, names, 'Models of this crew')}", "rate_limits", name)

    return limiter


def _known_providers(models: Iterable[object]) -> Iterator[Provider]:
    for model in models:
        if isinstance(model, str) and not model_name_problem(model):
            yield _create(model)
        elif isinstance(model, Provider):
            yield model


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
