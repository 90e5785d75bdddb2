"""The interfaces of a run: the store that persists it, the observers that follow it, the factory of its deps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from pydantic import JsonValue

from crew.agents.crew import Crew
from crew.interfaces import ModelRequest
from crew.messages import ToolCall
from crew.runs.events import Event
from crew.runs.state import RunState

NO_CONTEXT: AbstractContextManager[None] = nullcontext()


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
    """

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None: ...

    async def load(self, run_id: str) -> StoredRun: ...


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
