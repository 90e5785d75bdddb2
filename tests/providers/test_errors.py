"""A service's error becomes a ProviderError with its facts and without the API key."""

import logging
import pickle
import traceback
from typing import Any

import pytest

from crew import Agent, CrewExecutor, RunError
from crew.errors import AuthenticationFailed, ContextTooLong, Overloaded, RateLimited, RequestRejected, Unreachable
from crew.interfaces import ModelRequest
from crew.messages import UserMessage
from crew.providers import Retrying, RetryPolicy
from crew.providers.error_mapping import ServiceError, provider_error, retry_after
from crew.store import MemoryStore
from crew.store.codec import encode_state
from tests.support.remote_providers import KEY, PROTOCOLS, no_sleep, provider, worker
from tests.support.runs import run_and_collect
from tests.wire import Fault, Model, Protocol, WireServer, date_in, tool_loop

HELLO = ModelRequest(messages=(UserMessage("Hello"),))


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_error_about_the_window_holds_its_size(protocol: Protocol) -> None:
    """The maximum is read from the service's message; Responses does not name it."""
    async with WireServer(model=Model(window=500)) as server:
        asked = provider(server, protocol, "classic")
        request = ModelRequest(messages=(UserMessage("word " * 600),))

        with pytest.raises(ContextTooLong) as caught:
            await asked.complete(request)

        await asked.aclose()  # type: ignore[attr-defined]

    assert caught.value.maximum == (None if protocol == "responses" else 500)
    assert caught.value.status == 400
    assert caught.value.request_id
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("message", "maximum"),
    [
        ("input length and `max_tokens` exceed context limit: 7000 + 8192 > 8000, decrease input length", 8000),
        ("This model's maximum context length is 128000 tokens. However, you requested 130000 tokens", 128000),
        ("prompt is too long: 210,000 tokens > 200,000 maximum", 200000),
        ("the request exceeds the available context size (4096 tokens), try increasing it", 4096),
        ("Your input exceeds the context window of this model.", None),
    ],
)
def test_too_long_is_recognised_in_every_services_message(message: str, maximum: int | None) -> None:
    """All become ContextTooLong."""
    error = provider_error(ServiceError(status=400, message=message), provider="p", model="m")
    assert isinstance(error, ContextTooLong)
    assert error.maximum == maximum


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("value", "seconds"), [("7", 7.0), ("0.5", 0.5), (None, None), ("soon", None), ("date", 20.0)], ids=str
)
async def test_retry_after_is_seconds_or_a_date(protocol: Protocol, value: str | None, seconds: float | None) -> None:
    """An unreadable value counts as none."""
    header = date_in(20) if value == "date" else value

    async with WireServer(faults={0: Fault("rate_limited", retry_after=header)}) as server:
        asked = provider(server, protocol, "classic")

        with pytest.raises(RateLimited) as caught:
            await asked.complete(HELLO)

        await asked.aclose()  # type: ignore[attr-defined]

    assert caught.value.retry_after == (pytest.approx(seconds, abs=2.0) if seconds is not None else None)


def test_a_date_in_the_past_is_no_wait() -> None:
    """A wait is never negative."""
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, now=2e9) == 0.0
    assert retry_after({"retry-after-ms": "1500"}, now=0.0) == 1.5


def test_an_error_event_in_a_stream_gets_the_status_of_its_type() -> None:
    """The stream itself has status 200."""
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    assert isinstance(provider_error(ServiceError.parse(200, body), provider="p", model="m"), Overloaded)
    unknown = {"error": {"type": "invalid_request_error", "message": "No."}}
    assert isinstance(provider_error(ServiceError.parse(200, unknown), provider="p", model="m"), RequestRejected)


@pytest.mark.parametrize(
    ("model", "variable"),
    [
        ("openai:gpt-5-mini", "OPENAI_API_KEY"),
        ("openai-responses:gpt-5-mini", "OPENAI_API_KEY"),
        ("anthropic:claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
    ],
)
async def test_without_a_key_the_error_names_the_variable(
    model: str, variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """And the ScriptedProvider, to work offline."""
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))

    with pytest.raises(RunError) as caught:
        await CrewExecutor(Agent("a", instructions="Hi.", model=model)).execute("Hello")

    assert isinstance(caught.value.__cause__, AuthenticationFailed)
    assert variable in str(caught.value)
    assert "ScriptedProvider" in str(caught.value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_key_and_url_come_from_the_sdks_variables(protocol: Protocol, monkeypatch: pytest.MonkeyPatch) -> None:
    """`model="openai:…"` needs nothing but the environment."""
    kind = {"chat": "openai", "responses": "openai-responses", "messages": "anthropic"}[protocol]
    name = {"messages": "claude-sonnet-4-5"}.get(protocol, "gpt-5-mini")

    async with WireServer(key=KEY) as server:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", server.openai_url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        result = await CrewExecutor(Agent("a", instructions="Hi.", model=f"{kind}:{name}")).execute("Hello")

    assert result.output == "Hello"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_refused_connection_names_the_server_and_the_attempts(protocol: Protocol) -> None:
    """The message holds the URL, the operating system's reason, and what to check."""
    async with WireServer() as server:
        url = f"http://127.0.0.1:{server.port}/v1"

    asked = Retrying(provider(server, protocol, base_url=url), policy=RetryPolicy(attempts=2), sleep=no_sleep)

    with pytest.raises(Unreachable) as caught:
        await asked.complete(HELLO)

    await asked.aclose()
    expected = f"Can't connect to {url}: connection refused. Is the server running? (2 attempts in "
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_key_appears_in_no_output(protocol: Protocol, caplog: pytest.LogCaptureFixture) -> None:
    """Not in an error and its causes, not in a repr, an event, a log line or a stored state."""
    caplog.set_level(logging.DEBUG)
    store = MemoryStore()

    async with WireServer(tool_loop(2), faults={1: Fault("unauthorized")}) as server:
        agent = worker(provider(server, protocol, "classic"))
        executor = CrewExecutor(agent, store=store)
        events: list[Any] = []

        with pytest.raises(RunError) as caught:
            async with executor.execute_stream("Go.", run_id="r") as stream:
                events.extend([event async for event in stream])

        result = caught.value.result
        shown = [
            "".join(traceback.format_exception(caught.value)),
            repr(caught.value),
            repr(caught.value.__cause__),
            repr(agent),
            repr(executor.plan),
            repr(events),
            repr(result),
            str(encode_state(result.state)),
            caplog.text,
        ]
        await CrewExecutor(agent).execute("Again.")

    assert not [text for text in shown if KEY in text]
    assert KEY.encode() not in pickle.dumps(str(result))


async def test_a_key_in_a_services_message_is_replaced() -> None:
    """The message is kept without the key; the SDK's error, which contains it, is not the cause."""
    async with WireServer(tool_loop(2), key="another") as server:
        with pytest.raises(RunError) as caught:
            await run_and_collect(CrewExecutor(worker(provider(server, "chat", "classic"))))

    assert isinstance(caught.value.__cause__, AuthenticationFailed)
    assert KEY not in "".join(traceback.format_exception(caught.value))
