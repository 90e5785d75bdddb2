"""`ToolRetry` and `StopRun`: what a tool raises on purpose."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, Parallel, StopRun, ToolRetry, call, tool
from crew.messages import ToolMessage, ToolResult
from crew.runs.events import RunStopped, ToolReturned
from crew.runs.state import UNKNOWN_EFFECT
from crew.tools import EffectUnknown
from tests.support.clocks import run_in_virtual_time
from tests.support.providers import CheckedModels
from tests.support.runs import collect, events_of_type, finish
from tests.support.stores import CheckedStore


def results(transcript: Any) -> list[ToolResult]:
    return [result for message in transcript if isinstance(message, ToolMessage) for result in message.results]


@pytest.mark.parametrize("sync", [True, False])
async def test_the_model_gets_the_words_of_a_retry_and_calls_again(
    sync: bool, models: CheckedModels, store: CheckedStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The result has exactly these words. It counts as no error: not in the counters, not in the log."""
    caplog.set_level(logging.WARNING)

    def find(day: str) -> str:
        """Find a date."""
        if not day.startswith("2026"):
            raise ToolRetry("Write the day as YYYY-MM-DD.")

        return "free"

    async def find_async(day: str) -> str:
        """Find a date."""
        return find(day)

    used = tool(name="find")(find if sync else find_async)
    model = models.scripted(call("find", day="tomorrow"), call("find", day="2026-11-18"), "It is free.")
    executor = CrewExecutor(Agent("a", model=model, tools=[used]), store=store)
    events, result = await collect(executor.execute_stream("Go."))
    assert [(r.text, r.outcome) for r in results(result.transcript)] == [
        ("Write the day as YYYY-MM-DD.", "retry"),
        ("free", "ok"),
    ]
    assert (result.metrics.by_tool["find"].calls, result.metrics.by_tool["find"].errors) == (2, 0)
    assert [event.severity for event in events_of_type(events, ToolReturned)] == ["info", "info"]
    assert not caplog.records


async def test_a_tool_can_ask_for_so_many_attempts_in_a_row(models: CheckedModels, store: CheckedStore) -> None:
    """Then its words are an error with a note. A success begins a new count; calls of one reply count once."""

    @tool(model_retries=2)
    def find(n: int) -> str:
        """Find."""
        if n:
            raise ToolRetry("Try 0.")

        return "found"

    calls = [[call("find", n=1), call("find", n=2)], call("find", n=3), call("find", n=4), call("find", n=5)]
    model = models.scripted(*calls, call("find", n=0), call("find", n=6), "Done.")
    result = await CrewExecutor(Agent("a", model=model, tools=[find]), store=store).execute("Go.")
    outcomes = [r.outcome for r in results(result.transcript)]
    assert outcomes == ["retry", "retry", "retry", "error", "error", "ok", "retry"]
    note = "[find gave up: it has asked for another attempt 2 times in a row. Do not call it again for this.]"
    assert results(result.transcript)[3].text == f"Try 0.\n{note}"
    assert result.metrics.by_tool["find"].errors == 2


async def test_a_retry_does_not_repeat_the_call_by_itself(models: CheckedModels) -> None:
    """`retries` repeats a call that failed, with the same arguments: those are what `ToolRetry` refuses."""
    times = 0

    @tool(retries=3)
    def find() -> str:
        """Find."""
        nonlocal times
        times += 1
        raise ToolRetry("No.")

    await CrewExecutor(Agent("a", model=models.scripted(call("find"), "Ok."), tools=[find])).execute("Go.")
    assert times == 1


@pytest.mark.parametrize("bad", ["", "  ", None])
def test_signals_need_words(bad: Any) -> None:
    """An empty result would not help the model, and an empty reason not the caller."""
    for kind in (ToolRetry, StopRun):
        with pytest.raises(ValueError, match=r"needs (the words|a reason)"):
            kind(bad)


# ------------------------------------------------------------------------------------------ StopRun


@tool
def stop(reason: str) -> str:
    """Stop."""
    raise StopRun(reason)


async def test_stop_ends_the_run_with_its_reason(models: CheckedModels, store: CheckedStore) -> None:
    """No further request is sent; the result has the reason, and the history is valid for the next run."""
    model = models.scripted([call("stop", reason="Fraud.")], "Never sent.")
    executor = CrewExecutor(Agent("a", model=model, tools=[stop]), store=store)
    events, result = await collect(executor.execute_stream("Go.", run_id="r"))
    assert (result.stop_reason, result.stop_text, len(models.requests)) == ("stopped", "Fraud.", 1)
    assert results(result.transcript)[0].text == "[This call ended the run: Fraud.]"
    (stopped,) = events_of_type(events, RunStopped)
    assert (stopped.tool, stopped.key, stopped.reason) == ("stop", "r:1.0", "Fraud.")
    assert (await executor.execute("Again.", history=result)).stop_reason == "completed"


def test_other_calls_of_the_reply_are_stopped(models: CheckedModels, store: CheckedStore) -> None:
    """Calls that returned keep their results; a write under way is in doubt, a read is not."""

    @tool(effect="write")
    async def write() -> str:
        """Write."""
        await asyncio.sleep(100)
        return "never"

    @tool(effect="read")
    async def read() -> str:
        """Read."""
        await asyncio.sleep(100)
        return "never"

    @tool
    async def quick() -> str:
        """Quick."""
        return "quick"

    @tool
    async def stop_later() -> str:
        """Stop."""
        await asyncio.sleep(1)
        raise StopRun("Enough.")

    calls = [call("write"), call("stop_later"), call("quick"), call("read")]
    agent = Agent("a", model=models.scripted(calls), tools=[write, read, quick, stop_later])
    result = run_in_virtual_time(CrewExecutor(agent, store=store).execute("Go.", run_id="r"))
    assert result.stop_reason == "stopped"
    assert [doubt.key for doubt in result.in_doubt] == ["r:1.0"]
    assert [r.outcome for r in results(result.transcript)] == ["unknown", "ok", "ok", "error"]
    assert results(result.transcript)[2].text == "quick"


def test_stop_in_a_branch_ends_the_whole_run(models: CheckedModels, store: CheckedStore) -> None:
    """The other branches end too, with their writes in doubt; the record of each branch says how it ended."""

    @tool
    async def write() -> str:
        """Write."""
        await asyncio.sleep(100)
        return "never"

    @tool
    async def stop_later() -> str:
        """Stop."""
        await asyncio.sleep(1)
        raise StopRun("Enough.")

    one = Agent("one", model=models.scripted(call("write")), tools=[write])
    two = Agent("two", model=models.scripted(call("stop_later")), tools=[stop_later])
    end = Agent("end", model=models.scripted("Never."))
    group = Parallel("g", branches=[one, two], then=end)
    executor = CrewExecutor(Crew("c", agents=[one, two, end], groups=[group], entry="g"), store=store)
    result = run_in_virtual_time(executor.execute("Go.", run_id="r"))
    assert (result.stop_reason, result.stop_text) == ("stopped", "Enough.")
    assert [(branch.agent, branch.outcome) for branch in result.branches] == [("one", "cancelled"), ("two", "stopped")]
    assert [doubt.run_id for doubt in result.in_doubt] == ["r/one"]


def test_stop_in_a_called_agent_ends_the_whole_run(models: CheckedModels, store: CheckedStore) -> None:
    """The caller's call gets a result, and the caller is not asked again."""

    @tool
    async def stop() -> str:
        """Stop."""
        raise StopRun("Closed.")

    clerk = Agent("clerk", model=models.scripted(call("stop")), tools=[stop])
    boss = Agent("boss", model=models.scripted(call("ask_clerk", request="Help.")), tools=[clerk.as_tool()])
    result = run_in_virtual_time(CrewExecutor(boss, store=store).execute("Go.", run_id="r"))
    assert (result.stop_reason, result.stop_text) == ("stopped", "Closed.")
    assert results(result.transcript)[0].text == "[Stopped: stop ended the run.]"
    assert [branch.outcome for branch in result.branches] == ["stopped"]


def test_stop_after_an_approval(models: CheckedModels, store: CheckedStore) -> None:
    """A resumed run ends in the same way, and the pauses of other calls end with it."""

    @tool(approval=True)
    async def check() -> str:
        """Check."""
        raise StopRun("Rejected.")

    agent = Agent("a", model=models.scripted([call("check"), call("check")]), tools=[check])
    executor = CrewExecutor(agent, store=store)
    paused = run_in_virtual_time(executor.execute("Go.", run_id="r"))
    result = run_in_virtual_time(finish(executor, paused))
    assert (result.stop_reason, result.pauses) == ("stopped", ())
    assert [r.outcome for r in results(result.transcript)] == ["ok", "error"]


@pytest.mark.parametrize("nested", [False, True], ids=["group", "group within a group"])
@pytest.mark.parametrize(
    ("errors", "stop", "result"),
    [
        ([StopRun("Closed.")], "stopped", None),
        ([ToolRetry("Write it in full.")], "completed", ("Write it in full.", "retry")),
        ([ValueError("bad"), ToolRetry("No."), StopRun("Closed.")], "stopped", None),
        ([EffectUnknown("lost")], "completed", (f"work failed: EffectUnknown: lost {UNKNOWN_EFFECT}", "unknown")),
        (
            [ToolRetry("Again."), EffectUnknown("lost")],
            "completed",
            (f"work failed: EffectUnknown: lost {UNKNOWN_EFFECT}", "unknown"),
        ),
    ],
    ids=["stop", "retry", "stop wins", "unknown", "unknown wins"],
)
async def test_what_a_task_group_raises_on_purpose_counts(
    errors: list[Exception], stop: str, result: Any, nested: bool, models: CheckedModels
) -> None:
    """A tool may raise it in a task of its own; a run that is to end comes first, then a write in doubt."""

    async def fail(error: Exception) -> None:
        raise error

    async def together() -> None:
        async with asyncio.TaskGroup() as group:
            for error in errors:
                group.create_task(fail(error))

    @tool(effect="write")
    async def work() -> str:
        """Work."""
        async with asyncio.TaskGroup() as group:
            for inner in [together()] if nested else map(fail, errors):
                group.create_task(inner)

        return "done"

    agent = Agent("a", model=models.scripted(call("work"), "Done."), tools=[work])
    found = await CrewExecutor(agent).execute("Go.")
    assert (found.stop_reason, found.stop_text) == (stop, "Closed." if stop == "stopped" else "")
    assert result is None or [(r.text, r.outcome) for r in results(found.transcript)] == [result]
