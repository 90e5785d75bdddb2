"""What the crew tests watch with: models that keep every request, a store that keeps every state, and the laws."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from crew import CrewExecutor, RunResult, ScriptedProvider, tool
from crew.interfaces import ModelReply, ModelRequest, OnDelta
from crew.message_rules import validate
from crew.message_rules.profiles import PROFILES
from crew.messages import AssistantMessage, message_size
from crew.runs import Event, Finished, Pause, RunState, StoredRun
from crew.store import decode_events, decode_state, encode_events, encode_state

Before = Callable[[ModelRequest], Awaitable[None]]


class Watch:
    """Hands out models; every request that one of them gets is kept and held against the laws."""

    def __init__(self, limit: int | None = 50) -> None:
        self.limit = limit
        self.requests: list[ModelRequest] = []
        self.complaints: list[str] = []

    def model(self, *lines: Any, before: Before | None = None) -> WatchedModel:
        """A scripted model; `before` is awaited before each of its answers."""
        return WatchedModel(self, ScriptedProvider(*lines), before)

    def of(self, agent: str) -> list[ModelRequest]:
        """The requests of one agent, in order."""
        return [request for request in self.requests if request.agent == agent]

    @property
    def turns(self) -> list[str]:
        """Who was asked for which turn, in order; a turn that stands here twice was asked twice."""
        return [f"{request.run_id}:{request.agent}:{request.turn}" for request in self.requests]

    def see(self, request: ModelRequest) -> None:
        self.requests.append(request)
        size = sum(message_size(message) for message in request.messages)
        where = f"request {len(self.requests)} of {request.agent}"

        # A request for a summary may carry one more: what is asked.
        if self.limit is not None and size > self.limit + (request.purpose == "summary"):
            self.complaints.append(f"{where} carries {size} messages, more than {self.limit}")

        if isinstance(request.messages[-1], AssistantMessage):
            self.complaints.append(f"{where} ends with a reply")

        for profile in PROFILES.values():
            self.complaints.extend(f"{where}, {profile.name}: {v}" for v in validate(request.messages, profile))


class WatchedModel:
    """A scripted model whose requests are seen before they are answered."""

    def __init__(self, watch: Watch, inner: ScriptedProvider, before: Before | None) -> None:
        self.watch, self.inner, self.before = watch, inner, before
        self.name, self.model, self.profile = inner.name, inner.model, inner.profile

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        self.watch.see(request)

        if self.before is not None:
            await self.before(request)

        return await self.inner.complete(request, on_delta)


class JsonStore:
    """Keeps every state that was ever committed, as JSON alone, and holds each against the laws."""

    def __init__(self, limit: int | None = 50) -> None:
        self.limit = limit
        self.snapshots: list[bytes] = []
        self.events: list[Event] = []
        self.complaints: list[str] = []
        self._newest: RunState | None = None

    @classmethod
    def at(cls, snapshots: Sequence[bytes], limit: int | None = 50) -> JsonStore:
        """A store as it was left after these commits."""
        store = cls(limit)
        store.snapshots = [*snapshots]
        return store

    @property
    def states(self) -> list[RunState]:
        return [decode_state(data) for data in self.snapshots]

    @property
    def newest(self) -> RunState:
        return decode_state(self.snapshots[-1])

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        assert version == len(self.snapshots), "steps are committed one after the other"
        data = encode_state(state)
        back = decode_state(data)

        if back != state:
            self.complaints.append(f"version {version}: the state does not survive its JSON")

        if decode_events(encode_events(events)) != list(events):
            self.complaints.append(f"version {version}: the events do not survive their JSON")

        self.complaints.extend(f"version {version}: {c}" for c in broken_laws(state, self._newest, self.limit))
        self.snapshots.append(data)
        self._newest = back
        self.events.extend(events)

    async def load(self, run_id: str) -> StoredRun:
        return StoredRun(version=len(self.snapshots), state=self.newest)


def broken_laws(state: RunState, before: RunState | None, limit: int | None) -> list[str]:
    """What is wrong with a state and everything within it: bound, goal, nothing lost."""
    found: list[str] = []
    entries, size = state.history.entries, state.history.size
    where = state.run_id

    if size != sum(message_size(entry.message) for entry in entries):
        found.append(f"{where} does not know its size")

    if limit is not None and size > limit:
        found.append(f"{where} holds {size} messages, more than {limit}")

    if state.history.goal not in [entry.message.id for entry in entries] and not isinstance(state.next, Finished):
        found.append(f"{where} has lost its goal")

    # A summary stands at the place of the last message that it covers.
    if any(state.transcript[e.position].id not in (e.message.id, *getattr(e.message, "covers", ())) for e in entries):
        found.append(f"{where}: a message does not stand where the transcript says")

    ids = [message.id for message in state.transcript]

    if len(set(ids)) < len(ids):
        found.append(f"{where}: two messages share an id")

    if before is not None and before.transcript[:] != state.transcript[: len(before.transcript)]:
        found.append(f"{where}: the transcript changed")

    for key, child in state.children.items():
        old = before.children.get(key) if before is not None else None
        found.extend(broken_laws(child, old if old and old.run_id == child.run_id else None, limit))

    return found


class Ran:
    """Makes tools that count how often they ran."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()

    def tool(self, name: str, **given: Any) -> Any:
        """A tool that answers with its own name."""

        async def work() -> str:
            """Work."""
            self.times[name] += 1
            return f"{name} done"

        return tool(name=name, **given)(work)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still while anything can happen, and jumps to the next timer when nothing can."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self.now = max(self.now, self._scheduled[0]._when)

        super()._run_once()


T = TypeVar("T")


def virtually(work: Coroutine[Any, Any, T]) -> T:
    """Run in virtual time: a hang of an hour takes no time, and a slow machine changes nothing."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


async def hang(request: ModelRequest | None = None) -> None:
    """Never ends by itself."""
    await asyncio.get_running_loop().create_future()


def yes(pause: Pause) -> Any:
    """What a person who agrees to everything answers."""
    return {"approval": True, "input": "go on [DONE]", "in_doubt": "run again"}[pause.reason]


async def finish(executor: CrewExecutor, result: RunResult, answers: Mapping[str, Any] | None = None) -> RunResult:
    """Answer every pause, one at a time, until the run has ended."""
    while result.stop_reason == "paused":
        pause = result.pauses[0]
        given = (answers or {}).get(pause.id, yes(pause))
        result = await executor.resume(result.run_id, {pause.id: given})

    return result


def texts(messages: Sequence[Any]) -> list[str]:
    """Messages as a reader sees them, without ids and times."""
    return [
        f"{m.role}: {' | '.join(r.text for r in m.results)}"
        if m.role == "tool"
        else f"{m.role}: {m.text}" + "".join(f" {c.name}({c.arguments})" for c in getattr(m, "calls", ()))
        for m in messages
    ]
