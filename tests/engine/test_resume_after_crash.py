"""Invariant 10: after a crash at any commit, committed work is never repeated and uncertain calls are reported."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crew import Agent, CrewExecutor, RunError, ScriptedProvider, call, tool
from crew.errors import RunActive, RunConflict
from crew.message_rules import validate
from crew.runs import Event, RunResult, StoredRun
from crew.runs.events import Resumed
from crew.runs.state import UNKNOWN_EFFECT
from crew.store import SQLiteStore
from crew.transitions.result import build_result
from tests.support.providers import RecordingProvider
from tests.support.runs import executor_for
from tests.support.stores import Crash, JsonStore
from tests.support.tools import look

LIMIT = 7


class ExternalTools:
    """Tools that record their calls outside the run."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.written: list[int] = []

    @property
    def tools(self) -> list[Any]:
        @tool(effect="read")
        async def peek(n: int) -> str:
            """Read."""
            self.read.append(n)
            return f"read {n}"

        @tool
        async def post(n: int) -> str:
            """Write."""
            self.written.append(n)
            return f"wrote {n}"

        return [peek, post]


def script(*rounds: int, name: str = "peek") -> list[Any]:
    return [*([call(name, n=10 * i + n) for n in range(size)] for i, size in enumerate(rounds)), "the answer"]


async def run_without_crash(lines: list[Any]) -> tuple[RunResult, RecordingProvider, int]:
    """Result, requests and number of commits of the run without a crash."""
    provider, store = RecordingProvider(*lines), JsonStore()
    executor = executor_for(provider, *ExternalTools().tools, store=store, max_messages_per_request=LIMIT)
    return await executor.execute("the goal", run_id="r"), provider, len(store.snapshots)


async def run_until_crash(lines: list[Any], after: int, tools: ExternalTools) -> tuple[RecordingProvider, JsonStore]:
    """The same run in a process that ends after its n-th commit."""
    provider, store = RecordingProvider(*lines), JsonStore(crash_after=after)
    executor = executor_for(provider, *tools.tools, store=store, max_messages_per_request=LIMIT)

    with pytest.raises(Crash):
        await executor.execute("the goal", run_id="r")

    return provider, store


def same(one: RunResult, other: RunResult) -> bool:
    return (one.output, one.history, one.transcript, one.usage, one.stop_reason) == (
        other.output,
        other.history,
        other.transcript,
        other.usage,
        other.stop_reason,
    )


async def check_every_crash(lines: list[Any]) -> None:
    expected, asked, commits = await run_without_crash(lines)
    assert commits > 2

    for after in range(1, commits):
        tools = ExternalTools()
        first, store = await run_until_crash(lines, after, tools)
        second = RecordingProvider(*lines)
        executor = executor_for(second, *tools.tools, store=store, max_messages_per_request=LIMIT)
        result = await executor.resume("r")
        assert same(result, expected), f"after commit {after}"
        # The reply that was never committed is asked for again, with the same request; none else is.
        again = len(first.requests) + len(second.requests) - len(asked.requests)
        assert again in (0, 1)
        assert first.shown[: len(first.requests) - again] + second.shown == asked.shown
        assert [r.turn for r in second.requests] == list(range(len(asked.requests)))[-len(second.requests) :]


async def test_run_with_reads_resumes_after_any_commit() -> None:
    """Encoded, decoded and resumed, it has the same result and sends the same requests."""
    await check_every_crash(script(1, 3, 1, 2))


async def test_resuming_a_finished_run_returns_its_result() -> None:
    """The last commit has no next step."""
    lines = script(1)
    expected, _, commits = await run_without_crash(lines)
    _, store = await run_until_crash(lines, commits, ExternalTools())
    provider = RecordingProvider(*lines)
    result = await executor_for(
        provider, look, *ExternalTools().tools, store=store, max_messages_per_request=LIMIT
    ).resume("r")
    assert same(result, expected)
    assert provider.requests == []


@pytest.mark.parametrize("answer", ["run again", "skip", {"done": {"ok": True}}])
async def test_interrupted_write_pauses_the_run(answer: Any) -> None:
    """After a crash between start and result the outcome is unknown: the run pauses and follows the answer."""
    lines = script(2, 1, name="post")
    _, _, commits = await run_without_crash(lines)
    doubts = 0

    for after in range(1, commits):
        tools = ExternalTools()
        _, store = await run_until_crash(lines, after, tools)
        provider = RecordingProvider(*lines)
        executor = executor_for(provider, *tools.tools, store=store, max_messages_per_request=LIMIT)
        result = await executor.resume("r")
        before = list(tools.written)

        while result.stop_reason == "paused":
            assert {pause.reason for pause in result.pauses} == {"in_doubt"}
            doubts += len(result.pauses)
            result = await executor.resume("r", {pause.id: answer for pause in result.pauses})

        assert result.output == "the answer"
        # Nothing whose result was committed is done again; what is in doubt only where a person says so.
        if answer != "run again":
            assert len(set(tools.written)) == len(tools.written)
            assert len(tools.written) <= 3
        else:
            assert set(tools.written) == {0, 1, 10}
            assert len(tools.written) <= 3 + 2
        assert before == tools.written[: len(before)]

    assert doubts >= 3


async def test_done_answer_becomes_the_result_of_the_call() -> None:
    """`{"done": result}` becomes the result; `skip` reports that the outcome is unknown."""
    lines = script(2, name="post")
    _, store = await run_until_crash(lines, 3, ExternalTools())
    provider = RecordingProvider(*lines)
    executor = executor_for(provider, *ExternalTools().tools, store=store, max_messages_per_request=LIMIT)
    paused = await executor.resume("r")
    one, two = paused.pauses
    result = await executor.resume("r", {one.id: {"done": [1, 2]}, two.id: "skip"})
    shown = provider.shown[0][-1]
    assert [r.text for r in shown.results] == ["[1,2]", f"[Skipped. {UNKNOWN_EFFECT}]"]  # type: ignore[union-attr]
    assert [r.outcome for r in shown.results] == ["ok", "unknown"]  # type: ignore[union-attr]
    assert result.output == "the answer"


async def test_failing_store_fails_the_run() -> None:
    """The error holds the result so far; the run resumes from the last commit."""

    class FullOnce(JsonStore):
        full = True

        async def commit(self, *given: Any) -> None:
            if self.full and len(self.snapshots) == 3:
                self.full = False
                raise OSError("no space left")

            await super().commit(*given)

    lines, store = script(1, 1), FullOnce()
    executor = executor_for(RecordingProvider(*lines), *ExternalTools().tools, store=store)

    with pytest.raises(RunError, match="no space left") as caught:
        await executor.execute("the goal", run_id="r")

    assert caught.value.result.stop_reason == "failed"
    assert isinstance(caught.value.__cause__.__cause__, OSError)
    assert (await executor.resume("r")).output == "the answer"


async def test_second_process_that_resumes_a_run_gets_a_conflict() -> None:
    """The step of the second process is not stored, and its caller gets the error."""
    lines = script(1, 1)
    _, store = await run_until_crash(lines, 2, ExternalTools())
    executors = [executor_for(RecordingProvider(*lines), *ExternalTools().tools, store=store) for _ in range(2)]
    outcomes = await asyncio.gather(*(executor.resume("r") for executor in executors), return_exceptions=True)
    assert [o.output for o in outcomes if isinstance(o, RunResult)] == ["the answer"]
    assert [o.run_id for o in outcomes if isinstance(o, RunConflict)] == ["r"]


async def test_the_second_of_two_answers_gets_an_error(tmp_path: Path) -> None:
    """Two processes answer one pause: one continues the run, the other one gets an error. Nothing is doubled."""
    paid = list[int]()

    @tool(approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "Paid."

    class Simultaneous(SQLiteStore):
        """Returns a run only after both processes have loaded it."""

        async def load(self, run_id: str) -> StoredRun:
            stored = await super().load(run_id)
            await both.wait()
            return stored

    agent = Agent("payer", model=ScriptedProvider(call("pay", amount=3), "Done."), tools=[pay])
    stores = [Simultaneous(tmp_path / "runs.db") for _ in range(2)]
    events = [list[Event](), list[Event]()]
    executors = [
        CrewExecutor(agent, store=store, observers=[seen.append]) for store, seen in zip(stores, events, strict=True)
    ]
    paused = await executors[0].execute("Pay.", run_id="r")
    events[0].clear()
    both = asyncio.Barrier(2)
    answers = {paused.pauses[0].id: True}
    outcomes = await asyncio.gather(*(e.resume("r", answers) for e in executors), return_exceptions=True)
    # `RunActive` if the first one still runs it, `RunConflict` if it has ended.
    [lost] = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, RunActive | RunConflict)]
    assert isinstance(outcomes[1 - lost], RunResult)
    assert paid == [3]
    assert events[lost] == []  # not even a `RunFailed`: the run goes on
    assert len([event for event in events[1 - lost] if isinstance(event, Resumed)]) == 1


@pytest.mark.parametrize("after", [2, 3, 4])
async def test_result_of_a_failed_run_continues_as_a_conversation(after: int) -> None:
    """Wherever a run failed, its history can be passed to the next run."""
    lines = script(1, 1)
    _, store = await run_until_crash(lines, after, ExternalTools())
    provider = RecordingProvider(*lines)
    stopped = build_result(executor_for(provider, *ExternalTools().tools).plan, (await store.load("r")).state)
    ahead = RecordingProvider(lambda request: "went on")
    result = await executor_for(ahead, *ExternalTools().tools).execute("and now?", history=stopped)
    assert result.output == "went on"
    assert all(validate(shown) == [] for shown in ahead.shown)
    assert list(result.transcript[: len(stopped.transcript)]) == list(stopped.transcript)


@pytest.mark.soak
@given(st.lists(st.integers(1, 5), min_size=1, max_size=8))
async def test_random_runs_with_reads_resume_after_any_commit(rounds: list[int]) -> None:
    """The same for random tool rounds."""
    await check_every_crash(script(*rounds))
