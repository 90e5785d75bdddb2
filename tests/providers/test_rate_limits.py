"""Rate limits: no minute has more requests or tokens than its limit, and the oldest run goes first."""

from __future__ import annotations

import asyncio
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crew import Agent, CrewExecutor, ScriptedProvider
from crew.config import load
from crew.config.build import executor_options
from crew.errors import ConfigError, DefinitionError, Unavailable
from crew.history import Summarize
from crew.interfaces import ModelReply, ModelRequest, OnDelta, RetryPolicy
from crew.messages import Usage
from crew.providers import OpenAIChat, OpenAIResponses, RateLimit, RateLimiter
from crew.runs.events import RequestDelayed, Retried
from tests.support.clocks import run_in_virtual_time
from tests.support.remote_providers import KEY
from tests.support.runs import collect, events_of_type
from tests.wire import Fault, WireServer

WINDOW = 61.0

requests = st.lists(st.tuples(st.floats(0, 200), st.integers(1, 40), st.integers(0, 5)), min_size=1, max_size=25)


@settings(max_examples=25, deadline=None)
@given(requests, st.integers(1, 5), st.integers(40, 120))
def test_no_window_exceeds_the_limits(arrivals: list[tuple[float, int, int]], most: int, tokens: int) -> None:
    """Of requests and of tokens, wherever the window starts; and every request is sent at last."""
    sent: list[tuple[float, int]] = []

    async def story() -> None:
        limiter = RateLimiter({"openai": RateLimit(requests_per_minute=most, tokens_per_minute=tokens)})

        async def one(at: float, size: int, order: int) -> None:
            await asyncio.sleep(at)
            await limiter.admit(("openai",), size, order)
            sent.append((asyncio.get_running_loop().time(), size))

        await asyncio.gather(*(one(*arrival) for arrival in arrivals))

    run_in_virtual_time(story())
    assert len(sent) == len(arrivals)

    for start, _ in sent:
        window = [size for at, size in sent if start <= at < start + 60]
        assert len(window) <= most
        assert sum(window) <= tokens


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 8), min_size=1, max_size=30), st.integers(1, 4))
def test_the_oldest_run_goes_first(orders: list[int], most: int) -> None:
    """Of requests that wait together; those of one run in the order of their arrival."""
    sent: list[tuple[int, int]] = []

    async def story() -> None:
        limiter = RateLimiter({"openai": RateLimit(requests_per_minute=most)})

        for _ in range(most):
            await limiter.admit(("openai",), 1)

        async def one(number: int, order: int) -> None:
            await limiter.admit(("openai",), 1, order)
            sent.append((order, number))

        await asyncio.gather(*(one(number, order) for number, order in enumerate(orders)))

    run_in_virtual_time(story())
    assert sent == sorted(sent)


def test_a_cancelled_wait_counts_nothing_and_holds_up_no_other() -> None:
    """The next request is sent as if the cancelled one had never come."""

    async def story() -> float:
        limiter = RateLimiter({"openai": RateLimit(requests_per_minute=1)})
        await limiter.admit(("openai",), 1)
        first, second = (asyncio.create_task(limiter.admit(("openai",), 1, order)) for order in (0, 1))
        await asyncio.sleep(10)
        first.cancel()
        await second
        assert first.cancelled()
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(story()) == WINDOW


def test_a_large_request_is_not_overtaken_by_those_of_another_model() -> None:
    """Models share the limit of their provider: small requests of younger runs wait until the large one is sent."""

    async def story() -> float:
        limits = {"openai": RateLimit(tokens_per_minute=100), "openai:big": RateLimit(requests_per_minute=50)}
        limiter = RateLimiter(limits)

        async def small(number: int) -> None:
            await asyncio.sleep(10 * number)
            await limiter.admit(("openai",), 30, order=1 + number)

        async def large() -> float:
            await asyncio.sleep(25)
            await limiter.admit(("openai", "openai:big"), 80, order=0)
            return asyncio.get_running_loop().time()

        sent, *_ = await asyncio.gather(large(), *map(small, range(40)))
        return sent

    assert run_in_virtual_time(story()) == 20 + WINDOW  # when the small requests that were sent before it have left


def test_a_request_must_fit_in_the_limits_of_provider_and_model() -> None:
    """A model that is at its limit does not hold up another model of the same provider."""

    async def story() -> list[float]:
        limits = {"openai": RateLimit(requests_per_minute=3), "openai:big": RateLimit(requests_per_minute=1)}
        limiter = RateLimiter(limits)
        big, small = ("openai", "openai:big"), ("openai",)

        async def at(names: tuple[str, ...]) -> float:
            await limiter.admit(names, 1)
            return asyncio.get_running_loop().time()

        return list(await asyncio.gather(*map(at, (big, big, small, small, small))))

    assert run_in_virtual_time(story()) == [0, WINDOW, 0, 0, WINDOW]


def test_billed_tokens_replace_the_estimate() -> None:
    """A reply that cost less lets a waiting request go at once; one that cost more delays the next."""

    async def story() -> list[float]:
        limiter = RateLimiter({"openai": RateLimit(tokens_per_minute=100)})
        ticket = await limiter.admit(("openai",), 90)
        waiting = asyncio.create_task(limiter.admit(("openai",), 50))
        await asyncio.sleep(5)
        ticket.replied(Usage(requests=1, input_tokens=30, output_tokens=10))
        second = await waiting
        times = [asyncio.get_running_loop().time()]
        second.replied(Usage(requests=1, input_tokens=60))
        await limiter.admit(("openai",), 10)
        return [*times, asyncio.get_running_loop().time()]

    assert run_in_virtual_time(story()) == [5, WINDOW]


def test_a_request_that_is_larger_than_the_limit_is_sent_alone() -> None:
    """It would never fit: it waits for an empty minute, and the next one waits for another."""

    async def story() -> list[float]:
        limiter = RateLimiter({"openai": RateLimit(tokens_per_minute=100)})

        async def at(size: int) -> float:
            await limiter.admit(("openai",), size)
            return asyncio.get_running_loop().time()

        return [await at(1), await at(500), await at(1)]

    assert run_in_virtual_time(story()) == [0, WINDOW, 2 * WINDOW]


class Busy(ScriptedProvider):
    """Answers the first request with Retry-After."""

    def __init__(self) -> None:
        super().__init__(lambda request: "Hello.", model="busy")
        self.times: list[float] = []

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        self.times.append(asyncio.get_running_loop().time())

        if len(self.times) == 1:
            raise Unavailable("Too many requests.", provider="scripted", model="busy", retry_after=30.0)

        return await super().complete(request, on_delta)


def test_retry_after_holds_all_runs() -> None:
    """What one run learns from the service, the others need not learn: none of them gets a second refusal."""
    model = Busy()
    agent = Agent("a", model=model)
    executor = CrewExecutor(agent, rate_limits={"scripted": RateLimit(requests_per_minute=100)})

    async def story() -> None:
        with pytest.raises(Exception, match="Too many requests"):
            await executor.execute("Go.")

        await asyncio.gather(*(executor.execute("Go.") for _ in range(3)))

    run_in_virtual_time(story())
    assert model.times == [0.0, 30.0, 30.0, 30.0]


def test_a_long_wait_is_an_event() -> None:
    """After one second, with the limit and the expected wait; a shorter wait is not reported."""
    agent = Agent("a", model=ScriptedProvider(lambda request: "Hello."))
    executor = CrewExecutor(agent, rate_limits={"scripted": RateLimit(requests_per_minute=1)})

    async def story() -> Any:
        await executor.execute("Go.")
        return await collect(executor.execute_stream("Go."))

    events, result = run_in_virtual_time(story())
    (delayed,) = events_of_type(events, RequestDelayed)
    assert (delayed.limit, delayed.provider, round(delayed.wait)) == ("scripted", "scripted", 61)
    assert result.output == "Hello."
    assert executor.metrics()["crew.requests.delayed"].total == 1


def test_the_wait_can_be_cancelled_and_is_not_charged_to_the_deadline() -> None:
    """`cancel` ends a run that waits; a request may wait longer than its time-out, which is for the service."""
    agent = Agent("a", model=ScriptedProvider(lambda request: "Hello."), retry=RetryPolicy(timeout=5, deadline=10))
    executor = CrewExecutor(agent, rate_limits={"scripted": RateLimit(requests_per_minute=1)})

    async def story() -> tuple[str, str]:
        await executor.execute("Go.")
        waiting = asyncio.create_task(executor.execute("Go.", run_id="waits"))
        other = asyncio.create_task(executor.execute("Go."))
        await asyncio.sleep(20)
        await executor.cancel("waits")
        return (await waiting).stop_reason, (await other).stop_reason

    assert run_in_virtual_time(story()) == ("cancelled", "completed")


@pytest.mark.parametrize("limited", [True, False])
async def test_a_service_with_a_limit_refuses_nothing(limited: bool) -> None:
    """Runs at once against a server that enforces its limit: no 429 with the limiter, some without."""
    seen: list[float] = []
    # On a slow machine the requests arrive late: all of them within a long window, and none within another short one.
    server_window = 0.5 if limited else 60.0

    def enforce(index: int, protocol: str, body: object) -> Fault | None:
        now = time.monotonic()
        seen.append(now)
        count = sum(now - at < server_window for at in seen)
        return Fault("rate_limited", retry_after="0.5") if 12 < count <= 24 else None  # the retries are accepted

    async with WireServer(faults=enforce) as server:
        agent = Agent("a", model=OpenAIChat("gpt-5", base_url=server.openai_url, api_key=KEY))
        limiter = RateLimiter({"openai": RateLimit(requests_per_minute=12)}, window_seconds=2.0)
        executor = CrewExecutor(agent, rate_limits=limiter if limited else None)
        await CrewExecutor(agent).execute("Hello.")  # loads the SDK
        seen.clear()
        retried: list[object] = []

        async def one() -> None:
            events, _ = await collect(executor.execute_stream("Hello."))
            retried.extend(events_of_type(events, Retried))

        async with executor:
            await asyncio.gather(*(one() for _ in range(24)))

        refused = [request.status for request in server.requests if request.status == 429]
        assert (not refused and not retried) is limited


def test_limits_in_a_configuration_file(tmp_path: Path) -> None:
    """By the name of a provider or a model; a wrong key has its place in the file."""
    path = tmp_path / "config.yaml"
    path.write_text("rate_limits:\n  openai: {requests_per_minute: 500}\n  openai:gpt-5: {tokens_per_minute: 30000}\n")
    limits = executor_options(load(path), str(path))["rate_limits"]
    assert limits == {
        "openai": RateLimit(requests_per_minute=500),
        "openai:gpt-5": RateLimit(tokens_per_minute=30_000),
    }
    path.write_text("rate_limits:\n  openai: {requests: 500}\n")

    with pytest.raises(ConfigError, match="requests is not a known key"):
        load(path)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"opnai": RateLimit(requests_per_minute=5)}, "unknown provider 'opnai'"),
        ({"openai:": RateLimit(requests_per_minute=5)}, "the name 'openai:' must be that of a provider or a model"),
        ({":gpt-5": RateLimit(requests_per_minute=5)}, "the name ':gpt-5' must be that of a provider or a model"),
        ({"": RateLimit(requests_per_minute=5)}, "the name '' must be"),
        ({"openai": 5}, "must have a RateLimit"),
        ({}, "must be a mapping"),
        ("openai", "must be a mapping"),
    ],
)
def test_limits_that_cannot_apply_are_refused(limits: Any, text: str) -> None:
    """A typo in a name would silently limit nothing."""
    with pytest.raises(DefinitionError) as caught:
        CrewExecutor(Agent("a", model=ScriptedProvider("Hi.")), rate_limits=limits)

    assert text in str(caught.value)


LIMIT = RateLimit(requests_per_minute=5)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("openai:gtp-5", "Did you mean 'openai:gpt-5'"),
        ("openai-responses", "Did you mean"),
        ("scripted", "Models of this crew: anthropic:claude-opus-4-8, openai:gpt-5, openai:gpt-5-mini."),
    ],
)
def test_a_limit_that_applies_to_no_model_of_the_crew_causes_a_warning(name: str, hint: str) -> None:
    """Not an error: `execute(model=…)` may name such a model."""
    summaries = Summarize(summarizer="openai:gpt-5-mini")
    agent = Agent("a", model="openai:gpt-5", backup="anthropic:claude-opus-4-8")
    known = {"openai": LIMIT, "openai:gpt-5": LIMIT, "anthropic": LIMIT, "openai:gpt-5-mini": LIMIT}

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CrewExecutor(agent, history=summaries, rate_limits={**known, name: LIMIT})

    (warning,) = caught
    assert str(warning.message).startswith(
        f"rate_limits[{name!r}] applies to no model of the crew 'a', only to a model that"
    )
    assert hint in str(warning.message)
    assert warning.filename == __file__


def test_executors_share_a_limiter_with_the_limits_of_all_their_models() -> None:
    """A limiter that applies to none of the models causes a warning."""
    shared = RateLimiter({"openai": LIMIT, "anthropic": LIMIT, "scripted": LIMIT})
    CrewExecutor(Agent("a", model="openai:gpt-5"), rate_limits=shared)
    CrewExecutor(Agent("a", model="anthropic:claude-opus-4-8"), rate_limits=shared)

    with pytest.warns(UserWarning, match=r"rate_limits\['openai:gpt-5'\] applies to no model of the crew 'a'"):
        CrewExecutor(Agent("a", model="openai:gpt-5-mini"), rate_limits=RateLimiter({"openai:gpt-5": LIMIT}))


def test_limits_of_openai_apply_to_both_of_its_apis() -> None:
    """An account has one limit for Chat Completions and Responses."""
    names = "openai", "openai:gpt-5", "openai-responses", "openai-responses:gpt-5"
    limiter = RateLimiter(dict.fromkeys(names, LIMIT))
    assert limiter.names_for(OpenAIChat("gpt-5", api_key=KEY)) == ("openai", "openai:gpt-5")
    responses = ("openai", "openai-responses", "openai:gpt-5", "openai-responses:gpt-5")
    assert limiter.names_for(OpenAIResponses("gpt-5", api_key=KEY)) == responses
    CrewExecutor(Agent("a", model="openai-responses:gpt-5"), rate_limits={"openai": LIMIT})


def test_a_limit_needs_a_number() -> None:
    """Zero would let nothing through, and no number limits nothing."""
    with pytest.raises(DefinitionError, match="set requests_per_minute"):
        RateLimit()

    with pytest.raises(DefinitionError):
        RateLimit(requests_per_minute=0)
