"""The doors that speak of runs: who keeps them, and who watches them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from crew.runs.events import Event
from crew.runs.state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run as the store has it."""

    version: int
    state: RunState


Method = TypeVar("Method", bound=Callable[..., Any])


def at_once(commit: Method) -> Method:
    """Mark a store's `commit` as one that never waits for anything, so that a step needs no task of its own for it.

    The mark belongs to the method: who overrides it has to give it anew.
    """
    commit.__dict__["at_once"] = True
    return commit


def is_at_once(commit: Callable[..., Any]) -> bool:
    """Whether a store's `commit` bears that mark."""
    return getattr(commit, "at_once", False)


class RunStore(Protocol):
    """What survives. `version` is the one that the caller knows: 0 creates the run, any other must be the newest."""

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None: ...

    async def load(self, run_id: str) -> StoredRun: ...


class Observer(Protocol):
    """Who watches. It may fail without harm: then it is switched off for that run, with one warning."""

    def __call__(self, event: Event, /) -> None: ...
