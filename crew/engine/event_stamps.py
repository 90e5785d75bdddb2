"""The number and time of an event, and the ids of the messages in it."""

from __future__ import annotations

from typing import TypeVar

from crew.fast_replace import fast_replace
from crew.runs.events import BaseEvent, Replied, RunStarted
from crew.runs.state import RunState

AnyEvent = TypeVar("AnyEvent", bound=BaseEvent)


def stamp(event: AnyEvent, run: RunState, *, sequence: int, at: float, elapsed: float) -> AnyEvent:
    """The event of this run with its number and time; new messages in it get their ids."""
    position, agent = len(run.transcript), event.agent or run.agent

    if isinstance(event, Replied):
        message = fast_replace(event.message, id=f"{event.run_id}:{position}", time=at)
        return fast_replace(event, sequence=sequence, at=at, elapsed=elapsed, agent=agent, message=message)

    if isinstance(event, RunStarted):
        messages = tuple(
            m if m.id else fast_replace(m, id=f"{event.run_id}:{position + i}", time=m.time or at)
            for i, m in enumerate(event.messages)
        )
        return fast_replace(event, sequence=sequence, at=at, elapsed=elapsed, agent=agent, messages=messages)

    return fast_replace(event, sequence=sequence, at=at, elapsed=elapsed, agent=agent)
