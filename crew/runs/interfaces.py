"""The interfaces of a run: the store that persists it, the observers that follow it, the factory of its deps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from pydantic import JsonValue

from crew.agents.crew import Crew
from crew.interfaces import ModelRequest
from crew.messages import Message, ToolCall
from crew.runs.events import Event
from crew.runs.state import RunState

NO_CONTEXT: AbstractContextManager[None] = nullcontext()

PRINCIPAL_KEY = "crew.principal"
"""The key in a run's metadata that names the person or program that the run belongs to, if a service started it.

All runs of a conversation have the same one.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run as a store returns it: the newest committed state and its version."""

    version: int
    state: RunState


@runtime_checkable
class RunStore(Protocol):
    """Persists runs.

    `commit` stores a state and the events that led to it, all or nothing. `version` is the version that the caller
    knows: 0 creates the run (`RunExists` if the id is taken), any other must be the newest one (else `RunConflict`).
    A new run with a `turn` must follow the newest run of its conversation, its `parent_run` (else `ConversationBusy`).
    """

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None: ...

    async def load(self, run_id: str) -> StoredRun: ...


class Cursor(NamedTuple):
    """The place of a stored event in its run: the version of its commit, and its number in it.

    Cursors only grow, also over a resume. A reader that holds one asks for the events after it and misses none. As a
    text it is `12.3`. Text deltas and tool progress are not stored and have none.
    """

    version: int
    number: int

    def __str__(self) -> str:
        return f"{self.version}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The cursor of a text such as `12.3`; `ValueError` for any other text."""
        version, _, number = text.partition(".")
        return cls(int(version), int(number))

    @classmethod
    def after_commit(cls, version: int) -> Cursor:
        """After all events of a commit, also those that are appended to it later."""
        return cls(version, 2**31 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event with its cursor."""

    cursor: Cursor
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRunInfo:
    """The facts of a stored run. `status` is `running`, `paused`, or why the run ended.

    A run whose process died, or that failed, is `running` until it is resumed or cancelled.
    """

    run_id: str
    conversation_id: str
    crew: str
    agent: str
    status: str
    version: int
    messages: int
    created: float
    updated: float
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """Stored runs, newest first. `cursor` is the argument for the next page; None after the last one."""

    runs: tuple[StoredRunInfo, ...]
    cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A stored run, also a finished one: its facts, and its newest state with the whole transcript."""

    info: StoredRunInfo
    state: RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMessage:
    """A message that a search found: its run or branch, its position in the transcript, and the message."""

    run_id: str
    position: int
    message: Message


@runtime_checkable
class RunReader(Protocol):
    """Optional for a `RunStore`: reads stored runs, also finished ones. Unknown ids raise `UnknownRun`."""

    async def runs(
        self,
        *,
        crew: str | None = None,
        status: str | None = None,
        conversation: str | None = None,
        since: float | None = None,
        limit: int = 50,
        cursor: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> RunPage:
        """The runs that match, newest first, a page of them; `metadata`: those that have equal values at these keys."""

    async def info(self, run_id: str) -> StoredRunInfo:
        """The facts of a run, at a cost that does not grow with its transcript."""

    async def run(self, run_id: str) -> RunRecord:
        """A run with its newest state."""

    async def events(self, run_id: str, after: Cursor | None = None, limit: int = 1_000) -> tuple[StoredEvent, ...]:
        """The stored events of a run, in order, from the first one after this cursor on."""

    async def transcript(self, run_id: str) -> tuple[Message, ...]:
        """Every message of a run, with those of the runs that it continues."""

    async def conversation(self, conversation_id: str) -> tuple[StoredRunInfo, ...]:
        """The runs of a conversation, oldest first."""

    async def search(self, words: str, *, limit: int = 20) -> tuple[FoundMessage, ...]:
        """The messages that contain all these words, newest first; parts of words are found too."""

    async def forget(self, id: str, *, conversation: bool = False) -> int:
        """Erase a run, or a conversation with all its runs: messages, events, index entries; the number of runs erased.

        An id that is that of a run and of a conversation, which its first run may be, is taken as the run, unless
        `conversation`. Refused with `StoreError` while a run that is not erased continues it, and by stores with
        leases with `RunActive` while a live process owns the run. The id is free afterwards.
        """


@runtime_checkable
class EventFollower(Protocol):
    """Optional beside a `RunReader`: waits for new events, so that a reader need not ask again and again."""

    async def wait_for_events(self, run_id: str, after: Cursor | None = None, timeout: float | None = None) -> bool:
        """Wait until the run has a stored event after this cursor, written by any process; then read it with `events`.

        False if there is none after `timeout` seconds. A run that is unknown may begin; one that has finished may have
        no more events: give a `timeout`, and look at its status.
        """


@runtime_checkable
class RunHolder(Protocol):
    """Optional for a `RunReader` that keeps a bounded number of runs: keeps those that a service still needs."""

    def hold(self, run_id: str) -> Callable[[], None]:
        """Keep a run, also one that is not stored yet, beyond its end until the returned function is called."""


@runtime_checkable
class EventLog(Protocol):
    """Optional for a `RunStore`: stores events between two commits, and those that no commit follows.

    The engine appends an event that does not change the state, such as `Asked`, if no commit comes within 0.2 s.
    """

    async def append_events(self, run_id: str, version: int, events: Sequence[Event]) -> None:
        """Append events to the newest commit, which has this version; ignored if another commit followed."""


@runtime_checkable
class ConversationStore(Protocol):
    """Optional for a `RunStore`: loads the end of a conversation at a cost that does not grow with its length."""

    async def last_turn(self, conversation_id: str) -> StoredRun | None:
        """The newest run of a conversation, also a finished one; None if the conversation is new.

        Its transcript need not be complete: it has the messages that the state refers to, and if the run is unfinished
        those of the run.
        """


class EffectRecords(Protocol):
    """The outcomes of effects by their keys, for runs whose effects other processes perform. They never change."""

    async def put(self, run_id: str, key: str, data: bytes) -> bytes:
        """Store the outcome of an effect, unless it has one; returns the stored one."""

    async def get(self, run_id: str, key: str) -> bytes | None:
        """The stored outcome of an effect; None if there is none."""


@runtime_checkable
class EffectStore(Protocol):
    """Optional for a `RunStore` that several processes can open: keeps outcomes of effects until a run is erased."""

    def effects(self) -> EffectRecords:
        """The outcomes of effects in this store."""


@runtime_checkable
class ImmediateStore(Protocol):
    """Optional for a `RunStore`: its `commit` never suspends, so the engine awaits it without a task.

    Any other commit runs in its own task, because a cancelled run must not abandon it half-way.
    """

    def commits_immediately(self) -> bool:
        """Whether `commit` of this object runs to its end without suspending."""


class Observer(Protocol):
    """A callable that receives every event of a run; it is never awaited.

    An observer that raises is disabled for the rest of the run, with one warning; the run goes on.
    """

    def __call__(self, event: Event, /) -> None: ...


@runtime_checkable
class RunObserver(Observer, Protocol):
    """An observer that also wraps calls and is notified when the run ends; a subclass may override only one method."""

    def call_context(self, run_id: str, call: ModelRequest | ToolCall, /) -> AbstractContextManager[None]:
        """The context in which a model request or a tool call of this run or branch is made."""
        return NO_CONTEXT

    def close(self, error: BaseException | None, state: RunState | None, /) -> None:
        """The last call: the run returned (`error` is None), failed or was cancelled, and stopped in `state`.

        `state` is None if the observer is closed early because it raised; `error` is then what it raised.
        """


@runtime_checkable
class ObserverFactory(Protocol):
    """Makes one observer for each run; an executor accepts it in place of an observer."""

    def observe(self, crew: Crew, state: RunState, *, resumes: bool) -> Observer:
        """The observer of the run that starts, or resumes, in this state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What is known of a run that starts or resumes, in whichever process: the argument of a deps factory."""

    run_id: str
    conversation_id: str
    metadata: dict[str, JsonValue]


DepsFactory: TypeAlias = Callable[[RunInfo], Any]
"""Builds the deps of a run; a sync function, or an async one, which is awaited."""


def commits_immediately(store: RunStore) -> bool:
    """Whether this store declares that its `commit` never suspends."""
    return isinstance(store, ImmediateStore) and store.commits_immediately()
