"""Durations are measured by a monotonic clock: a wall clock that is set during a run changes nothing."""

from __future__ import annotations

from itertools import pairwise

import pytest

from crew import Agent, CrewExecutor, Limits, ScriptedProvider, call, tool
from crew.runs.events import Event
from crew.telemetry import Telemetry
from crew.transitions.advance import InputEvent
from tests.support.clocks import ManualClock
from tests.support.spans import RecordedSpans
from tests.support.stores import CheckedStore

HOUR = 3_600.0


class Clocks:
    """A wall clock that jumps by hours, and a monotonic clock, which a tool advances by two seconds."""

    def __init__(self, jump: float) -> None:
        self.wall, self.monotonic = ManualClock(), ManualClock()
        self.wall.now = 1_700_000_000.0

        @tool
        async def work() -> str:
            """Work for two seconds while the wall clock jumps."""
            self.monotonic.now += 2
            self.wall.now += jump
            return "done"

        self.work = work


@pytest.mark.parametrize("jump", [5 * HOUR, -5 * HOUR], ids=["forward", "backward"])
async def test_wall_clock_that_jumps_changes_no_limit_and_no_duration(jump: float, store: CheckedStore) -> None:
    """Limits, times of events, spans and metrics are those of a run whose wall clock did not jump."""
    clocks, seen, events = Clocks(jump), RecordedSpans(), list[Event]()
    agent = Agent("a", model=ScriptedProvider(call("work"), call("work"), "Done."), tools=[clocks.work])
    executor = CrewExecutor(
        agent,
        clock=clocks.wall,
        monotonic=clocks.monotonic,
        limits=Limits(seconds=60),
        store=store,
        observers=[events.append],
        telemetry=seen.telemetry(),
    )
    result = await executor.execute("Go.")
    assert (result.stop_reason, store.newest.active_seconds) == ("completed", 4)
    assert [event.at - 1_700_000_000 for event in events if event.kind == "tool_returned"] == [2, 4]
    assert all(before.at <= after.at for before, after in pairwise(events))
    assert sum(event.elapsed for event in events) == 4
    assert not [event for event in events if event.elapsed and not isinstance(event, InputEvent)]
    root = seen.one("invoke_workflow a")
    assert (root.end_time - root.start_time) / 1e9 == pytest.approx(4, abs=0.5)
    assert all(0 <= span.end_time - span.start_time <= 4.5e9 for span in seen.spans)
    assert executor.metrics()["gen_ai.invoke_workflow.duration"].maximum == pytest.approx(4, abs=0.5)


@pytest.mark.parametrize("end", ["resume", "cancel"])
async def test_time_of_a_pause_is_not_counted(end: str, store: CheckedStore) -> None:
    """Neither by a resume nor by a cancellation; a resumed run is dated by the wall clock of its resume."""
    clocks = Clocks(0)
    model = ScriptedProvider(call("work"), "Which one?", "Done. [DONE]")
    agent = Agent("a", model=model, tools=[clocks.work], wait_for_signal=True)
    options = {"clock": clocks.wall, "monotonic": clocks.monotonic, "telemetry": Telemetry()}
    executor = CrewExecutor(agent, store=store, limits=Limits(seconds=60), **options)  # type: ignore[arg-type]
    paused = await executor.execute("Go.", run_id="r")
    clocks.wall.now += 10 * HOUR
    clocks.monotonic.now += 5 * HOUR

    if end == "cancel":
        await executor.cancel("r")
    else:
        await executor.resume("r", {paused.pauses[0].id: "The first."})

    assert store.newest.active_seconds == 2
    assert store.events[-1].at == clocks.wall.now
