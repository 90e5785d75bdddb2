"""Executors of one agent, and functions that run them to their end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from crew import Agent, CrewExecutor, RunResult
from crew.engine.stream import EventStream
from crew.runs import Event, Pause
from tests.support.clocks import fixed_clock

E = TypeVar("E")


def solo(model: Any, *tools: Any, **options: Any) -> Agent:
    """An agent named `solo`."""
    return Agent("solo", instructions="Answer.", model=model, tools=tools, **options)


def executor_for(model: Any, *tools: Any, **options: Any) -> CrewExecutor:
    """An executor of one agent; its clocks stand still unless another one is given."""
    return CrewExecutor(
        solo(model, *tools), **{"clock": fixed_clock, "monotonic": options.get("clock", fixed_clock), **options}
    )


async def collect(stream: EventStream) -> tuple[list[Event], RunResult]:
    """Read a stream to its end: all its events, and the result."""
    async with stream:
        events = [event async for event in stream]

    return events, stream.result


async def run_and_collect(executor: CrewExecutor, text: str = "Go.", **options: Any) -> tuple[list[Event], RunResult]:
    """Run to the end: all events, and the result."""
    return await collect(executor.execute_stream(text, **options))


def events_of_type(events: Sequence[Event], kind: type[E]) -> list[E]:
    """The events of one class."""
    return [event for event in events if isinstance(event, kind)]


def agree(pause: Pause) -> Any:
    """The answer to a pause that lets the run continue."""
    return {"approval": True, "input": "go on [DONE]", "question": "yes", "in_doubt": "run again"}[pause.reason]


async def finish(executor: CrewExecutor, result: RunResult, answers: Mapping[str, Any] | None = None) -> RunResult:
    """Answer every pause, one at a time, until the run has ended."""
    while result.stop_reason == "paused":
        pause = result.pauses[0]
        answer = (answers or {}).get(pause.id, agree(pause))
        result = await executor.resume(result.run_id, {pause.id: answer})

    return result
