"""Outcomes are reported truthfully: answers, results and effects."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, Limits, Parallel, RunResult, ScriptedProvider, call, tool
from crew.interfaces import Delta, ModelReply, ModelRequest, OnDelta
from crew.runs.events import Cancelled, TextDelta, Warned
from tests.support.clocks import run_in_virtual_time
from tests.support.providers import CheckedModels
from tests.support.stores import CheckedStore


@pytest.mark.parametrize(
    ("replies", "reason", "warnings"),
    [
        (["Whole."], "stop", []),
        ([ModelReply(text="Half an ans", finish_reason="length")], "length", ["was cut off"]),
        ([ModelReply(text="I can't.", finish_reason="refusal")], "refusal", ["is a refusal"]),
        ([ModelReply(text="Some", finish_reason="filter")], "filter", ["content filter"]),
        (["", ""], "empty", []),
    ],
    ids=["complete", "cut off", "refused", "filtered", "twice empty"],
)
async def test_result_shows_why_the_answer_ended(
    replies: list[Any], reason: str, warnings: list[str], store: CheckedStore
) -> None:
    """An incomplete answer is not only `completed`: `finish_reason` and a warning show it, in branches too."""
    agent = Agent("writer", model=ScriptedProvider(*replies))
    result = await CrewExecutor(agent, store=store).execute("Write.")
    assert (result.stop_reason, result.finish_reason) == ("completed", reason)
    texts = [event.text for event in store.events if isinstance(event, Warned)]
    assert len(texts) == len(warnings)
    assert all(words in text for words, text in zip(warnings, texts, strict=True))

    crew = Crew("c", agents=[agent], groups=[Parallel("g", branches=[agent])], entry="g")
    joined = await CrewExecutor(crew).execute("Write.")
    assert (joined.finish_reason, joined.branches[0].finish_reason) == ("stop", reason)


async def test_unfinished_run_has_no_finish_reason() -> None:
    """Only a final answer has one."""
    agent = Agent("a", model=ScriptedProvider("Which one?"), wait_for_signal=True)
    assert (await CrewExecutor(agent).execute("Pay.")).finish_reason is None


# ------------------------------------------------------------------------------------------ writes in doubt


class Bank:
    """A sync tool that pays only after the test lets it continue: a thread that can't be cancelled."""

    def __init__(self, **options: Any) -> None:
        self.go_on, self.started, self.paid = threading.Event(), threading.Event(), threading.Event()
        self.calls = 0

        @tool(**options)
        def pay(amount: int) -> str:
            """Pay."""
            self.calls += 1
            self.started.set()
            self.go_on.wait(10)
            self.paid.set()
            return "paid"

        self.pay = pay

    async def until_started(self) -> None:
        await asyncio.to_thread(self.started.wait, 10)


async def test_cancelled_write_is_in_doubt_and_its_late_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The thread pays after the run was cancelled: the result does not claim that the call was stopped."""
    bank = Bank()
    executor = CrewExecutor(Agent("clerk", model=ScriptedProvider(call("pay", amount=5)), tools=[bank.pay]))
    running = asyncio.ensure_future(executor.execute("Pay.", run_id="r"))
    await bank.until_started()
    await executor.cancel("r")
    result = await running
    shown = result.transcript[-1].results[0]  # type: ignore[union-attr]
    assert (result.stop_reason, shown.outcome) == ("cancelled", "unknown")
    assert "It is not known whether it took effect" in shown.text
    assert [(doubt.key, doubt.agent, doubt.call.name) for doubt in result.in_doubt] == [("r:1.0", "clerk", "pay")]
    assert result.orphans == ("the tool pay (r:1.0)",)
    bank.go_on.set()
    await asyncio.to_thread(bank.paid.wait, 10)

    for _ in range(1_000):
        await asyncio.sleep(0.01)

        if "ended after the run had continued" in caplog.text:
            break

    assert "the tool pay (r:1.0) ended after the run had continued without it (run r)" in caplog.text


def test_limit_of_time_leaves_the_write_in_doubt() -> None:
    """A limit is no reason to claim that a payment did not happen."""
    bank = Bank()
    agent = Agent("clerk", model=ScriptedProvider(call("pay", amount=5)), tools=[bank.pay])
    result = run_in_virtual_time(CrewExecutor(agent, limits=Limits(seconds=5)).execute("Pay."))
    bank.go_on.set()
    assert (result.stop_reason, [doubt.call.name for doubt in result.in_doubt]) == ("limit", ["pay"])


async def test_write_of_a_stopped_branch_is_in_doubt() -> None:
    """The first success stops the other branches; what they had started is listed."""
    bank = Bank()

    async def after_the_start(request: ModelRequest) -> None:
        await bank.until_started()

    models = CheckedModels()
    payer = Agent("payer", model=models.scripted(call("pay", amount=5), "Paid."), tools=[bank.pay])
    quick = Agent("quick", model=models.scripted("Done.", before=after_the_start))
    group = Parallel("g", branches=[payer, quick], on_error="first_success")
    result = await CrewExecutor(Crew("c", agents=[payer, quick], groups=[group], entry="g")).execute("Pay.", run_id="r")
    bank.go_on.set()
    assert [(doubt.key, doubt.run_id) for doubt in result.in_doubt] == [("r/payer:2.0", "r/payer")]


@pytest.mark.parametrize(("effect", "times", "outcome"), [("write", 1, "unknown"), ("read", 3, "error")])
async def test_write_is_not_repeated_after_its_time_out(effect: str, times: int, outcome: str) -> None:
    """Its effect is unknown; a read is retried."""
    bank = Bank(timeout=0.05, retries=2, effect=effect)
    agent = Agent("clerk", model=ScriptedProvider(call("pay", amount=5), "I do not know."), tools=[bank.pay])
    result = await CrewExecutor(agent).execute("Pay.")
    bank.go_on.set()

    async with asyncio.timeout(10):
        while bank.calls < times:  # a thread may start after its time-out
            await asyncio.sleep(0.01)

    assert bank.calls == times
    assert result.transcript[2].results[0].outcome == outcome  # type: ignore[union-attr]
    assert len(result.in_doubt) == (effect == "write")
    assert len(result.orphans) == times


async def test_write_that_raises_is_retried() -> None:
    """An error is an outcome: the tool reports that it did not work."""
    calls = []

    @tool(retries=2)
    async def pay() -> str:
        """Pay."""
        calls.append(1)
        raise ConnectionError("refused")

    agent = Agent("clerk", model=ScriptedProvider(call("pay"), "It failed."), tools=[pay])
    result = await CrewExecutor(agent).execute("Pay.")
    assert (len(calls), result.in_doubt) == (3, ())


# ------------------------------------------------------------------------------------------ stubborn code


async def stubborn(seconds: float) -> None:
    """Ignores cancellation for a while."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds

    while loop.time() < end:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(end - loop.time())


@tool(timeout=1)
async def stubborn_tool() -> str:
    """Ignore cancellation."""
    await stubborn(60)
    return "late"


class StubbornProvider(ScriptedProvider):
    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        await stubborn(60)

        if on_delta is not None:
            on_delta(Delta(text="late"))

        return ModelReply(text="late")


def test_stubborn_tool_is_abandoned_five_seconds_after_its_time_out(store: CheckedStore) -> None:
    """The run goes on without it, and reports it."""

    async def story() -> tuple[float, RunResult]:
        agent = Agent("a", model=ScriptedProvider(call("stubborn_tool"), "Done."), tools=[stubborn_tool])
        result = await CrewExecutor(agent, store=store).execute("Go.", run_id="r")
        return asyncio.get_running_loop().time(), result

    seconds, result = run_in_virtual_time(story())
    assert (result.output, result.orphans) == ("Done.", ("the tool stubborn_tool (r:1.0)",))
    assert seconds == pytest.approx(6)
    assert [doubt.key for doubt in result.in_doubt] == ["r:1.0"]
    assert any("goes on although it was cancelled" in e.text for e in store.events if isinstance(e, Warned))


@pytest.mark.parametrize("way", ["limit", "cancel", "group"])
@pytest.mark.parametrize("who", ["tool", "provider"])
def test_stubborn_code_does_not_defeat_limits_and_cancel(way: str, who: str) -> None:
    """`Limits(seconds)`, `cancel()` and the timeout of a group take effect after at most five more seconds."""
    script = ScriptedProvider(call("patient_tool"), "Done.")

    @tool(timeout=1_000)
    async def patient_tool() -> str:
        """Ignore cancellation."""
        await stubborn(60)
        return "late"

    agent = Agent("a", model=StubbornProvider("") if who == "provider" else script, tools=[patient_tool])
    crew = Crew("c", agents=[agent], groups=[Parallel("g", branches=[agent], timeout=2)], entry="g")

    async def cancel_later(executor: CrewExecutor) -> None:
        await asyncio.sleep(2)
        await executor.cancel("r")

    async def story() -> tuple[float, RunResult]:
        limits = Limits(seconds=2) if way == "limit" else Limits()
        executor = CrewExecutor(crew if way == "group" else agent, limits=limits)
        deltas = []

        async with executor.execute_stream("Go.", run_id="r") as stream:
            if way == "cancel":
                tasks.append(asyncio.ensure_future(cancel_later(executor)))

            deltas += [event async for event in stream if isinstance(event, TextDelta)]

        ended = asyncio.get_running_loop().time()
        await asyncio.sleep(100)
        assert not [delta for delta in deltas if delta.text == "late"]
        return ended, stream.result

    tasks: list[asyncio.Task[None]] = []
    seconds, result = run_in_virtual_time(story())
    assert seconds == pytest.approx(7)
    assert len(result.orphans) == 1
    assert result.stop_reason == {"limit": "limit", "cancel": "cancelled", "group": "completed"}[way]


async def test_cancelling_twice_at_once_does_not_cancel_the_caller() -> None:
    """Both calls return, and the paused run is cancelled once."""
    store = CheckedStore()
    agent = Agent("a", model=ScriptedProvider("Which one?"), wait_for_signal=True)
    executor = CrewExecutor(agent, store=store)
    await executor.execute("Pay.", run_id="r")
    await asyncio.gather(*(executor.cancel("r") for _ in range(5)))
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    assert len([event for event in store.events if isinstance(event, Cancelled)]) == 1
