"""What the tests put at the doors: a provider that remembers, a store that forgets everything but bytes, a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from crew import Agent, CrewExecutor, ScriptedProvider, tool
from crew.errors import RunConflict, RunExists, UnknownRun
from crew.interfaces import ModelReply, ModelRequest, OnDelta
from crew.messages import Message, message_size
from crew.runs import Event, RunState, StoredRun
from crew.store import decode_events, decode_state, encode_events, encode_state


class Recording:
    """A scripted provider that keeps every request it was sent."""

    def __init__(self, *lines: Any, profile: str = "strictest") -> None:
        self.requests: list[ModelRequest] = []
        self._script = ScriptedProvider(*lines, profile=profile)
        self.name, self.model, self.profile = "scripted", "scripted", profile

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        self.requests.append(request)
        return await self._script.complete(request, on_delta)

    @property
    def shown(self) -> list[tuple[Message, ...]]:
        """The messages of each request."""
        return [request.messages for request in self.requests]


class Crash(BaseException):
    """The process is gone."""


class JsonStore:
    """Keeps bytes only, finished runs included; after the commit `crash_after` the process is gone."""

    def __init__(self, *, crash_after: int | None = None) -> None:
        self.states: dict[str, list[bytes]] = {}
        self.events: dict[str, list[bytes]] = {}
        self.crash_after = crash_after
        self.commits = 0

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        await asyncio.sleep(0)
        versions = self.states.setdefault(run_id, [])

        if version == 0 and versions:
            raise RunExists(run_id)

        if version != len(versions):
            raise RunConflict(run_id, version, len(versions))

        versions.append(encode_state(state))
        self.events.setdefault(run_id, []).append(encode_events(events))
        self.commits += 1

        if self.commits == self.crash_after:
            raise Crash

    async def load(self, run_id: str) -> StoredRun:
        await asyncio.sleep(0)

        if not self.states.get(run_id):
            raise UnknownRun(run_id)

        return StoredRun(version=len(self.states[run_id]), state=decode_state(self.states[run_id][-1]))

    def told(self, run_id: str) -> list[Event]:
        """Every event that was committed."""
        return [event for data in self.events[run_id] for event in decode_events(data)]


class Ticking:
    """A clock that moves by one second each time somebody looks."""

    def __init__(self, start: float = 1_000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def still() -> float:
    """A clock that stands."""
    return 1_000.0


@tool(effect="read")
async def look(n: int = 0) -> str:
    """Look something up."""
    return f"found {n}"


def solo(model: Any, *tools: Any, **options: Any) -> Agent:
    """One agent."""
    return Agent("solo", instructions="Answer.", model=model, tools=tools, **options)


def executor_for(model: Any, *tools: Any, **options: Any) -> CrewExecutor:
    """An executor of one agent on a clock that stands."""
    return CrewExecutor(solo(model, *tools), **{"clock": still, **options})


def size_of(messages: Sequence[Message]) -> int:
    """How many messages these count for."""
    return sum(map(message_size, messages))


async def events_of(executor: CrewExecutor, start: Callable[[CrewExecutor], Any]) -> tuple[list[Event], Any]:
    """All events of a stream, and its result."""
    async with start(executor) as stream:
        events = [event async for event in stream]

    return events, stream.result
