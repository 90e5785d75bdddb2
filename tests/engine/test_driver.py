"""Runs that another system drives: an executor neither resumes nor cancels them, unless it takes them over."""

from dataclasses import replace

import pytest

from crew import Agent, CrewExecutor, ScriptedProvider, call, tool
from crew.errors import RunActive
from crew.runs.events import CallLost, ToolsStarted
from crew.runs.state import AskModel, pending_pauses
from crew.store.memory import MemoryStore
from crew.transitions.advance import advance


@tool(approval=True)
def refund(amount: int) -> str:
    """Pay money back."""
    return f"Paid {amount}."


async def paused_run(store: MemoryStore) -> CrewExecutor:
    """An executor with the run `r`, which waits for an approval and is driven by another system."""
    crew = Agent("clerk", model=ScriptedProvider(call("refund", amount=80), "It is paid."), tools=[refund])
    executor = CrewExecutor(crew, store=store)
    await executor.execute("Refund me.", run_id="r")
    stored = await store.load("r")
    await store.commit("r", stored.version, (), replace(stored.state, driver="temporal"))
    return executor


async def test_a_run_of_another_driver_is_not_resumed_and_not_cancelled() -> None:
    """`RunActive` names the driver, and the run is unchanged."""
    executor = await paused_run(store := MemoryStore())
    before = await store.load("r")

    for attempt in (executor.resume("r", {"r:1.0": True}), executor.cancel("r")):
        with pytest.raises(RunActive) as raised:
            await attempt

        assert "temporal" in raised.value.owner

    assert await store.load("r") == before


async def test_a_run_of_another_driver_is_under_way_while_it_runs() -> None:
    """Services show it as running, and do not resume it; while it waits for a person, nobody drives it."""
    executor = await paused_run(store := MemoryStore())
    assert not await executor.is_owned("r")
    stored = await store.load("r")
    await store.commit("r", stored.version, (), replace(stored.state, next=AskModel()))
    assert await executor.is_owned("r")
    assert not await executor.is_owned("unknown")


async def test_take_over_takes_a_run_from_its_driver() -> None:
    """With `take_over` the executor drives the run, and the state says so."""
    executor = await paused_run(MemoryStore())
    done = await executor.resume("r", {"r:1.0": True}, take_over=True)
    assert done.output == "It is paid."
    assert done.state.driver == ""


async def test_a_call_whose_process_was_lost_waits_for_a_person() -> None:
    """`CallLost` turns a started call into one in doubt, and pauses the run when nothing else is under way."""
    crew = Agent("clerk", model=ScriptedProvider(call("refund", amount=80), "Done."), tools=[refund])
    executor = CrewExecutor(crew)
    state = (await executor.execute("Refund me.", run_id="r")).state
    [pause] = pending_pauses(state)
    assert pause.call is not None
    started, _ = advance(executor.plan, state, ToolsStarted(run_id="r", calls=(pause.call,)))
    lost, events = advance(executor.plan, started, CallLost(run_id="r", call_id=pause.call.id, name="refund"))
    assert [(one.id, one.reason) for one in pending_pauses(lost)] == [("r:1.0", "in_doubt")]
    assert [event.kind for event in events] == ["paused"]
