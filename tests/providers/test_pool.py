"""The pool detects what a provider can do by its interface, once, and wraps and closes it accordingly."""

from typing import Any

import pytest

from crew import Agent, CrewExecutor, ScriptedProvider
from crew.errors import DefinitionError
from crew.interfaces import AsyncClosable, HasSecrets, ModelReply, ModelRequest, ModelSettings, OnDelta, RemoteProvider
from crew.providers import Anthropic, OpenAIChat, OpenAIResponses, ProviderPool, Retrying, RetryPolicy


class Plain:
    """What a user must write at least."""

    name, model, profile = "plain", "plain-1", "strictest"

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        return ModelReply(text="Hello")


class Closable(Plain):
    closed = 0

    async def aclose(self) -> None:
        self.closed += 1


class Remote(Closable):
    secrets = ("key-of-remote",)

    def check(self, settings: ModelSettings) -> None:
        if settings.seed is not None:
            raise DefinitionError("Settings", "seed= is not supported.")


@pytest.mark.parametrize("made", [OpenAIChat("gpt-5"), OpenAIResponses("gpt-5"), Anthropic("claude-4"), Remote()])
def test_a_remote_provider_gets_retries_exactly_once(made: Any) -> None:
    """The wrapper is remote as well, but is not wrapped again."""
    pool = ProviderPool()
    wrapped = pool.get(made)
    assert isinstance(made, RemoteProvider)
    assert isinstance(wrapped, Retrying)
    assert isinstance(wrapped, RemoteProvider)
    assert wrapped.provider is made
    assert pool.get(made) is wrapped
    assert pool.get(wrapped) is wrapped


@pytest.mark.parametrize("made", [Plain(), Closable(), ScriptedProvider("Hello")])
def test_any_other_provider_is_used_as_it_is(made: Any) -> None:
    """Four members are enough; one that adds only `aclose` is not remote."""
    pool = ProviderPool()
    pool.check(made, ModelSettings(seed=1))
    assert not isinstance(made, RemoteProvider)
    assert pool.get(made) is made


def test_a_remote_provider_checks_the_settings() -> None:
    """Wrapped or not."""
    for made in (Remote(), Retrying(Remote())):
        with pytest.raises(DefinitionError, match="seed= is not supported"):
            ProviderPool().check(made, ModelSettings(seed=1))


def test_retrying_passes_on_only_what_the_provider_has() -> None:
    """A wrapped provider without secrets has none, and without checks accepts all settings."""
    assert Retrying(Remote()).secrets == ("key-of-remote",)
    assert Retrying(Plain()).secrets == ()
    Retrying(Plain()).check(ModelSettings(seed=1))


async def test_closing_the_pool_closes_remote_and_wrapped_providers() -> None:
    """A provider that has only `aclose` is closed if it is wrapped; a bare one may be unable to open again."""
    remote, wrapped, bare = Remote(), Closable(), Closable()
    pool = ProviderPool()

    for made in (remote, Retrying(wrapped), bare, Retrying(Plain())):
        pool.get(made)

    await pool.aclose()
    assert (remote.closed, wrapped.closed, bare.closed) == (1, 1, 0)


def test_each_capability_has_its_own_interface() -> None:
    """A provider may have any of them without the others."""
    assert isinstance(Closable(), AsyncClosable)
    assert not isinstance(Closable(), HasSecrets)
    assert isinstance(Remote(), HasSecrets)


@pytest.mark.parametrize("made", [Plain(), Remote(), "openai:gpt-5"])
def test_agents_with_two_retry_policies_share_a_provider(made: Any) -> None:
    """And its connections. A policy of an agent applies to any provider."""
    pool = ProviderPool()
    short, long = (pool.get(made, RetryPolicy(attempts=attempts)) for attempts in (1, 9))
    assert isinstance(short, Retrying)
    assert isinstance(long, Retrying)
    assert (short.policy.attempts, long.policy.attempts) == (1, 9)
    assert short.provider is long.provider
    assert pool.get(made, RetryPolicy(attempts=1)) is short


def test_a_provider_with_its_own_retries_takes_no_policy_of_an_agent() -> None:
    """One of the two would be ignored."""
    agent = Agent("a", model=Retrying(Remote()), retry=RetryPolicy(attempts=2))

    with pytest.raises(DefinitionError, match=r"Model plain:plain-1: Retrying.* has its own retry policy"):
        CrewExecutor(agent)
