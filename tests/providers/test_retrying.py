"""Retries: by error type, with backoff and Retry-After, within a deadline."""

import asyncio
from collections.abc import Sequence

import pytest

from crew import Agent, CrewExecutor, RunError, ScriptedProvider
from crew.errors import (
    AuthenticationFailed,
    ContentRefused,
    MalformedReply,
    Overloaded,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    RequestRejected,
    Unavailable,
    Unreachable,
)
from crew.interfaces import Delta, ModelReply, ModelRequest, OnDelta, RetryAttempt
from crew.messages import UserMessage
from crew.providers import Retrying, RetryPolicy
from crew.runs.events import Retried
from tests.support.remote_providers import provider, worker
from tests.wire import Fault, WireServer


class Failing:
    """Fails as often as there are errors, then answers; says a piece of it first."""

    name, model, profile = "failing", "m", "strictest"

    def __init__(self, errors: Sequence[Exception], piece: str = "") -> None:
        self.errors, self.piece, self.asked = list(errors), piece, 0

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        self.asked += 1

        if on_delta is not None and self.piece:
            on_delta(Delta(text=self.piece))

        if self.errors:
            raise self.errors.pop(0)

        return ModelReply(text="done")


class Waiting:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now, self.waits = 0.0, list[float]()

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def retrying(failing: Failing, waiting: Waiting, **policy: float) -> Retrying:
    return Retrying(
        failing,
        policy=RetryPolicy(**policy),  # type: ignore[arg-type]
        random=lambda: 1.0,
        sleep=waiting.sleep,
        clock=lambda: waiting.now,
    )


def question(retries: list[RetryAttempt] | None = None) -> ModelRequest:
    return ModelRequest(messages=(UserMessage("Hello"),), on_retry=None if retries is None else retries.append)


@pytest.mark.parametrize("error", [Unavailable, RateLimited, Overloaded, MalformedReply])
async def test_a_temporary_error_is_retried_with_growing_waits(error: type[ProviderError]) -> None:
    """Each wait is twice the previous one; every retry is reported."""
    failing, waiting, retries = Failing([error("no"), error("no"), error("no")]), Waiting(), list[RetryAttempt]()
    reply = await retrying(failing, waiting).complete(question(retries))
    assert reply.text == "done"
    assert waiting.waits == [0.5, 1.0, 2.0]
    assert [(retry.attempt, retry.wait) for retry in retries] == [(1, 0.5), (2, 1.0), (3, 2.0)]
    assert "no" in retries[0].reason


@pytest.mark.parametrize("error", [RequestRejected, AuthenticationFailed, ContentRefused, QuotaExceeded])
async def test_a_permanent_error_is_not_retried(error: type[ProviderError]) -> None:
    """The same request would fail again."""
    failing, waiting = Failing([error("no")]), Waiting()

    with pytest.raises(error):
        await retrying(failing, waiting).complete(question())

    assert failing.asked == 1
    assert not waiting.waits


@pytest.mark.parametrize("error", [Unavailable, RateLimited, MalformedReply])
async def test_an_error_whose_retry_the_service_forbids_is_not_retried(error: type[ProviderError]) -> None:
    """The service has begun something that another attempt would begin again."""
    failing, waiting = Failing([error("no", may_retry=False)]), Waiting()

    with pytest.raises(error):
        await retrying(failing, waiting).complete(question())

    assert (failing.asked, waiting.waits) == (1, [])


async def test_a_server_that_never_answered_is_given_up_soon() -> None:
    """Nothing listens there, or the host is unknown: four attempts in some seconds, then the error."""
    failing, waiting = Failing([Unreachable("refused")] * 9), Waiting()

    with pytest.raises(Unreachable, match=r"refused \(4 attempts in 4 s\)"):
        await retrying(failing, waiting).complete(question())

    assert (failing.asked, sum(waiting.waits)) == (4, 3.5)


@pytest.mark.parametrize("answer", [None, Overloaded("busy")], ids=["a reply", "an error"])
async def test_a_server_that_answered_before_is_retried_in_full(answer: ProviderError | None) -> None:
    """It may be restarting: all attempts of the policy are made."""
    failing, waiting = Failing([] if answer is None else [answer]), Waiting()
    wrapped = retrying(failing, waiting)
    await wrapped.complete(question())
    failing.errors = [Unreachable("refused")] * 7
    assert (await wrapped.complete(question())).text == "done"


async def test_jitter_shortens_a_wait_by_at_most_half() -> None:
    """Clients that failed together do not retry together."""
    failing, waiting = Failing([Unavailable("no")]), Waiting()
    wrapped = Retrying(failing, random=lambda: 0.0, sleep=waiting.sleep, clock=lambda: waiting.now)
    await wrapped.complete(question())
    assert waiting.waits == [0.25]


async def test_retry_after_is_honoured() -> None:
    """It replaces the backoff if it is longer."""
    failing, waiting = Failing([RateLimited("no", retry_after=17.0), RateLimited("no", retry_after=0.1)]), Waiting()
    await retrying(failing, waiting).complete(question())
    assert waiting.waits == [17.0, 1.0]


async def test_a_too_long_retry_after_ends_the_retries() -> None:
    """The error names the wait and the setting that limits it."""
    failing, waiting = Failing([RateLimited("no", retry_after=86_400.0)]), Waiting()

    with pytest.raises(RateLimited) as caught:
        await retrying(failing, waiting).complete(question())

    assert not waiting.waits
    assert "asks to wait 86400 s" in str(caught.value)
    assert "longest_retry_after" in str(caught.value)


async def test_the_deadline_ends_the_retries() -> None:
    """No wait starts that would end after it."""
    failing, waiting = Failing([Unavailable("no")] * 9), Waiting()

    with pytest.raises(Unavailable) as caught:
        await retrying(failing, waiting, attempts=10, deadline=4.0).complete(question())

    assert waiting.now <= 4.0
    assert "deadline of 4 s" in str(caught.value)


async def test_each_attempt_has_a_time_limit() -> None:
    """An attempt without a response is cancelled, and the next one starts."""

    class Hanging(Failing):
        async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
            self.asked += 1

            if self.asked == 1:
                await asyncio.Event().wait()

            return ModelReply(text="done")

    hanging = Hanging([])
    retries = list[RetryAttempt]()
    wrapped = Retrying(hanging, policy=RetryPolicy(timeout=0.02, first_wait=0.001))
    assert (await wrapped.complete(question(retries))).text == "done"
    assert "did not respond within 0.02 s" in retries[0].reason


async def test_a_time_limit_of_the_caller_is_not_retried() -> None:
    """The caller's TimeoutError ends the request."""

    class Hanging(Failing):
        async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
            self.asked += 1
            raise TimeoutError("theirs")

    hanging = Hanging([])

    with pytest.raises(TimeoutError, match="theirs"):
        await Retrying(hanging).complete(question())

    assert hanging.asked == 1


async def test_a_restart_delta_separates_two_attempts() -> None:
    """Only if the first attempt has sent deltas."""
    deltas = list[Delta]()
    await retrying(Failing([Unavailable("no")], piece="do"), Waiting()).complete(question(), deltas.append)
    assert [(delta.kind, delta.text) for delta in deltas] == [("text", "do"), ("restart", ""), ("text", "do")]
    deltas.clear()
    await retrying(Failing([Unavailable("no")]), Waiting()).complete(question(), deltas.append)
    assert not deltas


async def test_an_executor_retries_a_remote_provider() -> None:
    """Without an explicit wrapper; `retry=` sets the policy, and every retry is an event."""
    async with WireServer(faults={0: Fault("overloaded"), 2: Fault("overloaded")}) as server:
        retries = list[Retried]()
        executor = CrewExecutor(
            worker(provider(server, "messages", "classic")),
            retry=RetryPolicy(attempts=2, first_wait=0.001),
            observers=[lambda event: retries.append(event) if isinstance(event, Retried) else None],
        )
        assert (await executor.execute("Hello")).output == "Hello"
        assert [(event.provider, event.attempt) for event in retries] == [("anthropic", 1)]
        assert (await executor.execute("Hello")).output == "Hello"

    assert server.count == 4


async def test_an_executor_honours_its_retry_policy() -> None:
    """One attempt sends one request."""
    async with WireServer(faults={0: Fault("overloaded")}) as server:
        executor = CrewExecutor(worker(provider(server, "chat", "classic")), retry=RetryPolicy(attempts=1))

        with pytest.raises(RunError) as caught:
            await executor.execute("Hello")

    assert isinstance(caught.value.__cause__, Overloaded)
    assert server.count == 1


async def test_an_executor_does_not_retry_a_scripted_provider() -> None:
    """A scripted error fails the run at once."""
    executor = CrewExecutor(Agent("a", instructions="Hi.", model=ScriptedProvider(Unavailable("no"), "yes")))

    with pytest.raises(RunError):
        await executor.execute("Hello")
