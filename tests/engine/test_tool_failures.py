"""Failing tools and invalid calls: the model gets an error result, and the run continues or ends at its limit."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from crew import Context, Limits, call, tool
from crew.interfaces import ModelReply
from crew.messages import ToolCall, ToolResult
from crew.runs.events import ToolProgress, Warned
from crew.runs.state import UNKNOWN_EFFECT
from crew.tools import EffectUnknown
from tests.support.providers import RecordingProvider
from tests.support.runs import collect, executor_for
from tests.support.stores import JsonStore
from tests.support.tools import look

FOREVER = threading.Event()


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class NotJson:
    """A value without JSON."""


@tool(timeout=0.02)
async def never_ends() -> str:
    """Wait forever."""
    await asyncio.Event().wait()
    return ""


@tool(timeout=0.02)
def blocks() -> str:
    """Block the thread forever."""
    FOREVER.wait()
    return ""


@tool
def raises() -> str:
    """Fail."""
    raise ValueError("the disk is full")


@tool
async def raises_late() -> str:
    """Fail after a while."""
    await asyncio.sleep(0)
    raise LookupError("gone")


@tool
def raises_silently() -> str:
    """Fail without a message."""
    raise SilentError


@tool
def raises_surrogates() -> str:
    """Fail with a message that can't be encoded."""
    raise ValueError("bad \ud800 path")


@tool
def stops_iterating() -> str:
    """Raise StopIteration, which a future can't hold."""
    raise StopIteration("over")


@tool
async def cancels() -> str:
    """Raise a cancellation that was not requested."""
    raise asyncio.CancelledError


@tool
def cancels_in_its_thread() -> str:
    """Raise a cancellation on a thread."""
    raise asyncio.CancelledError


@tool
async def closes() -> str:
    """Raise what Python raises in a coroutine that is closed."""
    raise GeneratorExit("closed")


@tool
def closes_in_its_thread() -> str:
    """Raise it on a thread."""
    raise GeneratorExit("closed")


@tool
async def times_out_by_itself() -> str:
    """Raise a time-out."""
    raise TimeoutError("the server did not answer")


@tool
def huge() -> str:
    """Return 10 MB."""
    return "x" * 10_000_000


@tool
def no_json() -> Any:
    """Return a value that can't be written as JSON."""
    return NotJson()


@tool
def circular() -> Any:
    """Return a list that holds itself."""
    value: list[Any] = []
    value.append(value)
    return value


@tool
def endless() -> Iterator[int]:
    """Return an endless generator."""
    return (n for n in itertools.count())


@tool
def surrogates() -> str:
    """Return text that can't be encoded."""
    return "a\ud800b"


@tool
def nothing() -> None:
    """Return nothing."""


@tool
def blank() -> str:
    """Return an empty text."""
    return ""


@tool
def infinite() -> dict[str, float]:
    """Return numbers that JSON does not have."""
    return {"a": float("inf"), "b": float("nan")}


@tool
def validates() -> int:
    """Check a value."""
    return TypeAdapter(int).validate_python("many")


TOOLS = [value for value in list(globals().values()) if type(value).__name__ == "Tool"]


async def results(*calls: Any, tools: Any = TOOLS, **options: Any) -> tuple[ToolResult, ...]:
    """The results that the model receives, in a stored run that continues to its answer."""
    provider = RecordingProvider([*calls], "went on")
    result = await executor_for(provider, *tools, store=JsonStore(), **options).execute("go")
    assert result.output == "went on"
    message = provider.shown[1][-1]
    return message.results  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("raises", "ValueError: the disk is full"),
        ("raises_late", "LookupError: gone"),
        ("raises_silently", "SilentError: (the error message can't be read: __str__ raised)"),
        ("raises_surrogates", "ValueError: bad \ufffd path"),
        ("stops_iterating", "StopIteration: over"),
        ("cancels", "CancelledError"),
        ("cancels_in_its_thread", "CancelledError"),
        ("closes", "GeneratorExit: closed"),
        ("closes_in_its_thread", "GeneratorExit: closed"),
        ("times_out_by_itself", "TimeoutError: the server did not answer"),
        ("no_json", "NotJson"),
        ("circular", "Circular reference"),
        ("endless", "generator can't be sent to a model"),
    ],
)
async def test_failing_tool_becomes_an_error_result(name: str, expected: str) -> None:
    """The run continues."""
    found = (await results(call(name)))[0]
    assert expected in found.text
    assert found.outcome == "error"


@pytest.mark.parametrize("name", ["never_ends", "blocks"])
async def test_write_that_times_out_has_an_unknown_effect(name: str) -> None:
    """The model is asked to find out; the result does not claim that nothing happened."""
    found = (await results(call(name)))[0]
    assert found.text == f"{name} timed out after 0.02 s. {UNKNOWN_EFFECT}"
    assert found.outcome == "unknown"


async def test_a_validation_error_of_a_tool_has_no_links() -> None:
    """The advice of pydantic is for the developer of the tool; a model would pay for it and might open it."""
    found = (await results(call("validates")))[0]
    assert found.text.startswith("validates failed: ValidationError: 1 validation error for int")
    assert "http" not in found.text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("surrogates", "a\ufffdb"),
        ("nothing", "null"),
        ("blank", "(no output)"),
        ("infinite", '{"a":"Infinity","b":"NaN"}'),
    ],
)
async def test_unusual_return_values_become_text(name: str, text: str) -> None:
    """Every provider accepts the text."""
    found = (await results(call(name)))[0]
    assert (found.text, found.outcome) == (text, "ok")


async def test_ten_megabyte_result_is_truncated() -> None:
    """Start and end stay, and a marker says how much is missing."""
    found = (await results(call("huge")))[0]
    assert len(found.text) <= 20_000
    assert "characters cut" in found.text
    assert found.outcome == "ok"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("{broken", "not valid"),
        ('{"n": 1', "not valid"),
        ("[]", "not valid"),
        ("null", "not valid"),
        ('"text"', "not valid"),
        ('{"n": "many"}', "n: Input should be a valid integer"),
        ('{"n": 1, "m": 2}', "m: Extra inputs are not permitted"),
        ('{"m": 2}', "m: Extra inputs are not permitted"),
        ('{"n": "\ud800"}', "not valid"),
    ],
)
async def test_invalid_arguments_become_an_error_result(arguments: str, expected: str) -> None:
    """Broken JSON, wrong types, unknown names: the error names the place, and the tool is not called."""
    found = (await results(ToolCall(id="a", name="look", arguments=arguments), tools=[look]))[0]
    assert expected in found.text
    assert found.outcome == "error"


async def test_error_names_the_missing_argument() -> None:
    """The model learns which argument is missing."""

    def find(name: str, size: int = 1) -> str:
        """Find."""
        return f"{name} {size}"

    found = await results(
        call("find"), call("find", name="a"), ToolCall(id="x", name="find", arguments=""), tools=[find]
    )
    assert "name: Field required" in found[0].text
    assert found[1].text == "a 1"
    assert "name: Field required" in found[2].text


async def test_unknown_tool_error_suggests_similar_names() -> None:
    """The model can correct the name."""
    found = await results(call("lok"), call("zzzz"), tools=[look])
    assert "Did you mean 'look'?" in found[0].text
    assert "Available: look." in found[1].text
    assert "None are available." in (await results(call("x"), tools=[], max_messages_per_request=5))[0].text


async def test_endless_unknown_calls_end_at_the_round_limit() -> None:
    """Unknown tools forever: the limit of rounds ends the run."""
    provider = RecordingProvider(lambda request: ModelReply(calls=(ToolCall(id="same", name="nowhere"),)))
    result = await executor_for(provider, look, limits=Limits(rounds=30), max_messages_per_request=5).execute("go")
    assert result.stop_reason == "limit"
    assert len(provider.requests) == 30


async def test_results_are_in_call_order() -> None:
    """The calls of a reply run concurrently; their results are in the order of the calls."""
    gates = {n: asyncio.Event() for n in range(3)}
    gates[2].set()

    async def chained(n: int) -> str:
        """End in reverse order."""
        await gates[n].wait()

        if n:
            gates[n - 1].set()

        return f"{n}"

    assert [r.text for r in await results(*[call("chained", n=n) for n in range(3)], tools=[chained])] == [
        "0",
        "1",
        "2",
    ]


async def test_tools_retry_only_if_configured() -> None:
    """A tool with `retries=2` is tried three times; without it, once."""
    tried: list[str] = []

    @tool(retries=2)
    def flaky() -> str:
        """Work at the third time."""
        tried.append("flaky")

        if len(tried) < 3:
            raise OSError("try again")

        return "worked"

    @tool
    def fragile() -> str:
        """Fail."""
        tried.append("fragile")
        raise OSError("broken")

    executor = executor_for(RecordingProvider(call("flaky"), call("fragile"), "done"), flaky, fragile)
    events, result = await collect(executor.execute_stream("go"))
    assert tried == ["flaky"] * 3 + ["fragile"]
    assert len([e for e in events if isinstance(e, Warned)]) == 2
    assert result.metrics.by_tool["flaky"].errors == 0
    assert result.metrics.by_tool["fragile"].errors == 1


async def test_abandoned_thread_is_reported() -> None:
    """The one exception to invariant 9 is reported; later output of the thread is dropped."""
    go_on, spoken = threading.Event(), threading.Event()

    @tool(timeout=0.02)
    def late(context: Context[Any]) -> str:
        """Emit progress after the time-out."""
        go_on.wait(5)
        context.emit("too late")
        spoken.set()
        return ""

    executor = executor_for(RecordingProvider(call("late"), "done"), late)
    events = []

    async with executor.execute_stream("go") as stream:
        async for event in stream:
            events.append(event)

            if isinstance(event, Warned):
                go_on.set()
                await asyncio.to_thread(spoken.wait, 5)

    warned = [e.text for e in events if isinstance(e, Warned)]
    assert "the tool late (" in warned[0]
    assert warned[0].endswith("goes on although it was cancelled; the run continues without it")
    assert not any(isinstance(e, ToolProgress) for e in events)


async def test_sync_tool_leaves_no_busy_thread() -> None:
    """Invariant 9: the thread of a call is idle after the call; idle threads are daemons, and end after a while."""
    names: list[str] = []

    def here() -> str:
        """Return the name of the thread."""
        names.append(threading.current_thread().name)
        return "here"

    await results(call("here"), call("here"), tools=[here])
    assert names == ["crew-here", "crew-here"]

    while any(thread.name == "crew-here" for thread in threading.enumerate()):
        await asyncio.sleep(0)

    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "crew-idle")


async def test_tool_receives_its_context() -> None:
    """Dependencies, run, agent, call and usage; observers see emitted progress in order."""
    seen: list[Context[dict[str, int]]] = []

    @tool
    def sync(context: Context[dict[str, int]], n: int) -> str:
        """Show progress from a thread."""
        seen.append(context)
        context.emit(n)
        return ""

    @tool
    async def asynchronous(n: int, context: Context) -> str:  # type: ignore[type-arg]
        """Show progress from the loop."""
        context.emit({"n": n})
        return ""

    provider = RecordingProvider([call("sync", n=1), call("asynchronous", n=2)], "done")
    executor = executor_for(provider, sync, asynchronous)
    events, result = await collect(executor.execute_stream("go", deps={"a": 1}, run_id="r"))
    shown = {e.call_id: e.data for e in events if isinstance(e, ToolProgress)}
    assert shown == {"call_0_0": 1, "call_0_1": {"n": 2}}
    context = seen[0]
    assert (context.deps, context.run_id, context.agent, context.call_id) == ({"a": 1}, "r", "solo", "call_0_0")
    assert context.usage.requests == 1
    assert [e.sequence for e in events] == sorted({e.sequence for e in events})
    assert result.output == "done"


@pytest.mark.parametrize(("effect", "outcome"), [("write", "unknown"), ("read", "error")])
async def test_a_tool_can_report_that_its_effect_is_unknown(effect: Any, outcome: str) -> None:
    """A write is in doubt then, and is not repeated; a read is an error, which may be repeated."""
    calls = []

    @tool(effect=effect, retries=2)
    async def send() -> str:
        """Send."""
        calls.append(1)
        raise EffectUnknown("the connection was lost")

    result = await executor_for(RecordingProvider(call("send"), "Done."), send).execute("Go.")
    [sent] = [one for message in result.transcript if message.role == "tool" for one in message.results]
    assert sent.outcome == outcome
    assert sent.text.startswith("send failed: EffectUnknown: the connection was lost")
    assert (UNKNOWN_EFFECT in sent.text, len(calls)) == ((True, 1) if effect == "write" else (False, 3))
    assert [one.call.name for one in result.in_doubt] == (["send"] if effect == "write" else [])
