"""Law 10: kill the process after any commit; what was committed is never repeated, what is in doubt is said to be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crew import RunError, call, tool
from crew.errors import RunConflict
from crew.message_rules import validate
from crew.runs import RunResult
from crew.transitions.result import build_result
from tests.support.providers import RecordingProvider
from tests.support.runs import executor_for
from tests.support.stores import Crash, JsonStore
from tests.support.tools import look

LIMIT = 7


class Ledger:
    """Tools with a memory outside the run."""

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


async def whole(lines: list[Any]) -> tuple[RunResult, RecordingProvider, int]:
    """The run without a crash: what it comes to, what it asked, and how many commits it makes."""
    provider, store = RecordingProvider(*lines), JsonStore()
    executor = executor_for(provider, *Ledger().tools, store=store, max_messages_per_request=LIMIT)
    return await executor.execute("the goal", run_id="r"), provider, len(store.snapshots)


async def crashed(lines: list[Any], after: int, ledger: Ledger) -> tuple[RecordingProvider, JsonStore]:
    """The same run in a process that is gone after its n-th commit."""
    provider, store = RecordingProvider(*lines), JsonStore(crash_after=after)
    executor = executor_for(provider, *ledger.tools, store=store, max_messages_per_request=LIMIT)

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
    expected, asked, commits = await whole(lines)
    assert commits > 2

    for after in range(1, commits):
        ledger = Ledger()
        first, store = await crashed(lines, after, ledger)
        second = RecordingProvider(*lines)
        executor = executor_for(second, *ledger.tools, store=store, max_messages_per_request=LIMIT)
        result = await executor.resume("r")
        assert same(result, expected), f"after commit {after}"
        # The reply that was never committed is asked for again, with the same request; none else is.
        again = len(first.requests) + len(second.requests) - len(asked.requests)
        assert again in (0, 1)
        assert first.shown[: len(first.requests) - again] + second.shown == asked.shown
        assert [r.turn for r in second.requests] == list(range(len(asked.requests)))[-len(second.requests) :]


async def test_a_run_that_reads_goes_on_after_any_commit() -> None:
    """Encode, forget everything, decode, go on: same result, same requests."""
    await check_every_crash(script(1, 3, 1, 2))


async def test_a_finished_run_is_not_run_again() -> None:
    """The last commit says that nothing is next: resuming it returns what it came to."""
    lines = script(1)
    expected, _, commits = await whole(lines)
    _, store = await crashed(lines, commits, Ledger())
    provider = RecordingProvider(*lines)
    result = await executor_for(provider, look, *Ledger().tools, store=store, max_messages_per_request=LIMIT).resume(
        "r"
    )
    assert same(result, expected)
    assert provider.requests == []


@pytest.mark.parametrize("answer", ["run again", "skip", {"done": {"ok": True}}])
async def test_a_write_that_was_begun_waits_for_a_person(answer: Any) -> None:
    """After a crash between start and result nobody knows: the run pauses, and does what it is told."""
    lines = script(2, 1, name="post")
    _, _, commits = await whole(lines)
    doubts = 0

    for after in range(1, commits):
        ledger = Ledger()
        _, store = await crashed(lines, after, ledger)
        provider = RecordingProvider(*lines)
        executor = executor_for(provider, *ledger.tools, store=store, max_messages_per_request=LIMIT)
        result = await executor.resume("r")
        before = list(ledger.written)

        while result.stop_reason == "paused":
            assert {pause.reason for pause in result.pauses} == {"in_doubt"}
            doubts += len(result.pauses)
            result = await executor.resume("r", {pause.id: answer for pause in result.pauses})

        assert result.output == "the answer"
        # Nothing whose result was committed is done again; what is in doubt only where a person says so.
        if answer != "run again":
            assert len(set(ledger.written)) == len(ledger.written)
            assert len(ledger.written) <= 3
        else:
            assert set(ledger.written) == {0, 1, 10}
            assert len(ledger.written) <= 3 + 2
        assert before == ledger.written[: len(before)]

    assert doubts >= 3


async def test_a_result_given_by_a_person_is_shown_to_the_model() -> None:
    """`{"done": result}` becomes the call's result; `skip` says that nobody knows."""
    lines = script(2, name="post")
    _, store = await crashed(lines, 3, Ledger())
    provider = RecordingProvider(*lines)
    executor = executor_for(provider, *Ledger().tools, store=store, max_messages_per_request=LIMIT)
    paused = await executor.resume("r")
    one, two = paused.pauses
    result = await executor.resume("r", {one.id: {"done": [1, 2]}, two.id: "skip"})
    shown = provider.shown[0][-1]
    assert [r.text for r in shown.results] == ["[1,2]", "[Skipped: it is not known whether this call took effect.]"]  # type: ignore[union-attr]
    assert [r.outcome for r in shown.results] == ["ok", "error"]  # type: ignore[union-attr]
    assert result.output == "the answer"


async def test_a_store_that_fails_fails_the_run_and_loses_nothing() -> None:
    """The caller gets an error with what was there; the run goes on from the last commit."""

    class FullOnce(JsonStore):
        full = True

        async def commit(self, *given: Any) -> None:
            if self.full and len(self.snapshots) == 3:
                self.full = False
                raise OSError("no space left")

            await super().commit(*given)

    lines, store = script(1, 1), FullOnce()
    executor = executor_for(RecordingProvider(*lines), *Ledger().tools, store=store)

    with pytest.raises(RunError, match="no space left") as caught:
        await executor.execute("the goal", run_id="r")

    assert caught.value.result.stop_reason == "failed"
    assert isinstance(caught.value.__cause__.__cause__, OSError)
    assert (await executor.resume("r")).output == "the answer"


async def test_two_that_carry_the_same_run_on_do_not_both_get_through() -> None:
    """Two processes resume one run: the second one's step is not stored, and it is told so."""
    lines = script(1, 1)
    _, store = await crashed(lines, 2, Ledger())
    executors = [executor_for(RecordingProvider(*lines), *Ledger().tools, store=store) for _ in range(2)]
    outcomes = await asyncio.gather(*(executor.resume("r") for executor in executors), return_exceptions=True)
    assert [o.output for o in outcomes if isinstance(o, RunResult)] == ["the answer"]
    lost = next(o for o in outcomes if isinstance(o, RunError))
    assert isinstance(lost.__cause__, RunConflict)


@pytest.mark.parametrize("after", [2, 3, 4])
async def test_a_failed_run_s_result_goes_on_as_a_conversation(after: int) -> None:
    """Whatever a run was at when it stopped, its history is ready for the next one."""
    lines = script(1, 1)
    _, store = await crashed(lines, after, Ledger())
    provider = RecordingProvider(*lines)
    stopped = build_result(executor_for(provider, *Ledger().tools).plan, (await store.load("r")).state)
    ahead = RecordingProvider(lambda request: "went on")
    result = await executor_for(ahead, *Ledger().tools).execute("and now?", history=stopped)
    assert result.output == "went on"
    assert all(validate(shown) == [] for shown in ahead.shown)
    assert list(result.transcript[: len(stopped.transcript)]) == list(stopped.transcript)


@pytest.mark.soak
@given(st.lists(st.integers(1, 5), min_size=1, max_size=8))
async def test_any_run_that_reads_goes_on_after_any_commit(rounds: list[int]) -> None:
    """The same law for random rounds."""
    await check_every_crash(script(*rounds))
