"""A paused run is a stored value that only a valid answer changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from crew import CrewExecutor, Route, call, tool
from crew.errors import DefinitionError, InvalidInput, RunActive, UnknownPause, UnknownRun
from crew.runs.events import Paused, Resumed
from tests.support.messages import total_size
from tests.support.providers import RecordingProvider
from tests.support.runs import collect, executor_for, solo
from tests.support.stores import Crash, JsonStore
from tests.support.tools import look


class Office:
    """A tool that needs approval, and the messages it sent."""

    def __init__(self, approval: Any = "always") -> None:
        self.sent: list[str] = []

        @tool(approval=approval)
        async def send(to: str) -> str:
            """Send a letter."""
            self.sent.append(to)
            return f"sent to {to}"

        self.send = send


async def paused(office: Office, *calls: Any, provider: Any = None) -> tuple[CrewExecutor, Any, RecordingProvider]:
    provider = provider or RecordingProvider([*calls], "done")
    executor = executor_for(provider, office.send, look, store=JsonStore())
    result = await executor.execute("go", run_id="r")
    return executor, result, provider


async def test_call_that_needs_approval_waits() -> None:
    """The other calls run meanwhile; after the approval it runs once."""
    office = Office()
    executor, result, provider = await paused(office, call("send", to="Ada"), call("look", n=1))
    assert result.stop_reason == "paused"
    assert office.sent == []
    assert result.output == ""
    assert result.metrics.messages == total_size(result.history) == 1
    pause = result.pauses[0]
    assert (pause.reason, pause.run_id, pause.agent) == ("approval", "r", "solo")
    assert pause.call.name == "send"
    assert "Ada" in pause.text
    after = await executor.resume("r", {pause.id: True})
    assert (after.stop_reason, after.output, office.sent) == ("completed", "done", ["Ada"])
    assert [r.text for r in provider.shown[1][-1].results] == ["sent to Ada", "found 1"]  # type: ignore[union-attr]


@pytest.mark.parametrize("answer", [False, "too early", "skip"])
async def test_declined_call_becomes_an_error_result(answer: Any) -> None:
    """False, or any text as the reason: the tool does not run."""
    office = Office()
    executor, result, provider = await paused(office, call("send", to="Ada"))
    await executor.resume("r", {result.pauses[0].id: answer})
    declined = provider.shown[1][-1].results[0]  # type: ignore[union-attr]
    assert declined.outcome == "error"
    assert "declined" in declined.text
    assert answer is False or answer in declined.text
    assert office.sent == []


async def test_run_continues_when_every_pause_is_answered() -> None:
    """Two approvals can be answered one by one; a resume without an answer changes nothing."""
    office = Office()
    executor, result, _ = await paused(office, call("send", to="Ada"), call("send", to="Bob"))
    one, two = result.pauses
    assert (await executor.resume("r")).stop_reason == "paused"
    half = await executor.resume("r", {two.id: True})
    assert [p.id for p in half.pauses] == [one.id]
    assert office.sent == ["Bob"]
    whole = await executor.resume("r", {one.id: True})
    assert whole.output == "done"
    assert office.sent == ["Bob", "Ada"]


async def test_unknown_pause_error_lists_the_pending_ones() -> None:
    """The state does not change, even if another answer is valid."""
    office = Office()
    executor, result, _ = await paused(office, call("send", to="Ada"))
    pause = result.pauses[0]

    with pytest.raises(UnknownPause) as caught:
        await executor.resume("r", {"elsewhere": True, pause.id: True})

    assert (caught.value.unknown, caught.value.pending) == (("elsewhere",), (pause.id,))
    assert repr(pause.id) in str(caught.value)
    assert office.sent == []
    assert (await executor.resume("r", {pause.id: True})).output == "done"

    with pytest.raises(UnknownPause, match="none"):
        await executor.resume("r", {pause.id: True})


@pytest.mark.parametrize("answer", [None, 1, 0, [], {"done": 1}, "", " ", "\0", "\ud800", b"yes", "x" * 10_001])
async def test_answer_of_the_wrong_type_is_refused(answer: Any) -> None:
    """The error names the accepted answers; the pause stays."""
    office = Office()
    executor, result, _ = await paused(office, call("send", to="Ada"))

    with pytest.raises(InvalidInput, match="answer"):
        await executor.resume("r", {result.pauses[0].id: answer})

    assert (await executor.resume("r")).pauses == result.pauses


@pytest.mark.parametrize(
    "answer", [True, "", "perhaps", {}, {"done": 1, "more": 2}, {"done": object()}, None, ["skip"]]
)
async def test_call_in_doubt_accepts_three_answers(answer: Any) -> None:
    """done(result), run again or skip; a result must be JSON."""
    office = Office("never")
    store = JsonStore(crash_after=3)
    lines = [call("send", to="Ada"), "done"]

    with pytest.raises(Crash):
        await executor_for(RecordingProvider(*lines), office.send, store=store).execute("go", run_id="r")

    executor = executor_for(RecordingProvider(*lines), office.send, store=store)
    result = await executor.resume("r")

    with pytest.raises(InvalidInput, match="must be"):
        await executor.resume("r", {result.pauses[0].id: answer})


async def test_approval_can_depend_on_the_arguments() -> None:
    """A function of the arguments decides; if it fails, the model gets an error result."""
    office = Office(lambda to: to == "Ada")
    _, result, _ = await paused(office, call("send", to="Ada"), call("send", to="Bob"))
    assert office.sent == ["Bob"]
    assert len(result.pauses) == 1

    broken = Office(lambda to: 1 / 0)
    _, result, provider = await paused(broken, call("send", to="Ada"))
    assert result.output == "done"
    assert "approval check of this call failed: ZeroDivisionError" in provider.shown[1][-1].results[0].text  # type: ignore[union-attr]

    async def slow(to: str) -> bool:
        return True

    with pytest.raises(DefinitionError, match="synchronous function"):
        Office(slow)


async def test_reply_without_a_signal_waits_for_the_user() -> None:
    """`wait_for_signal`: the pause shows the reply, the answer is validated, the goal stays."""
    provider = RecordingProvider("Which order?", "Order 17 is on its way. [DONE]")
    agent = solo(provider, wait_for_signal=True, routes=[Route("[DONE]", to=None)])
    executor = CrewExecutor(agent, max_messages_per_request=3, store=JsonStore())
    events, result = await collect(executor.execute_stream("Where is it?", run_id="r"))
    pause = result.pauses[0]
    assert (pause.reason, pause.text) == ("input", "Which order?")
    assert any(isinstance(e, Paused) for e in events)

    with pytest.raises(InvalidInput, match="blank"):
        await executor.resume("r", {pause.id: "  "})

    with pytest.raises(InvalidInput, match="must be a string"):
        await executor.resume("r", {pause.id: 17})

    events, result = await collect(executor.resume_stream("r", {pause.id: "17"}))
    assert isinstance(events[0], Resumed)
    assert result.output == "Order 17 is on its way."
    assert [m.text for m in provider.shown[1]] == ["Where is it?", "Which order?", "17"]  # type: ignore[union-attr]


async def test_history_of_a_paused_run_has_no_open_calls() -> None:
    """Open calls belong to the paused run; the next run does not see them."""
    _, result, _ = await paused(Office(), call("send", to="Ada"))
    assert [m.role for m in result.history] == ["user"]
    other = executor_for(RecordingProvider(lambda request: f"{len(request.messages)} messages"), look)
    assert (await other.execute("something else", history=result)).output == "2 messages"
    assert (await other.execute("something else", history=list(result.history))).output == "2 messages"


async def test_second_resume_of_an_active_run_is_refused() -> None:
    """So is the resume of an unknown run."""
    gate, started = asyncio.Event(), asyncio.Event()

    @tool(approval="always")
    async def wait() -> str:
        """Wait."""
        started.set()
        await gate.wait()
        return "waited"

    executor = executor_for(RecordingProvider(call("wait"), "done"), wait)
    result = await executor.execute("go", run_id="r")
    answers = {result.pauses[0].id: True}
    running = asyncio.ensure_future(executor.resume("r", answers))
    await started.wait()

    with pytest.raises(RunActive):
        await executor.resume("r", answers)

    gate.set()
    assert (await running).output == "done"

    with pytest.raises(UnknownRun):
        await executor.resume("r")


async def test_resume_during_a_cancel_is_refused() -> None:
    """The second caller gets the error at once, not in the middle of a step."""
    office = Office()
    executor, result, provider = await paused(office, call("send", to="Ada"))
    cancelling = asyncio.ensure_future(executor.cancel("r"))
    await asyncio.sleep(0)

    with pytest.raises(RunActive):
        await executor.resume("r", {result.pauses[0].id: True})

    await cancelling
    assert office.sent == []
    assert (await executor.resume("r")).stop_reason == "cancelled"
    assert len(provider.requests) == 1
