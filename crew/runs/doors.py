"""The doors that speak of runs: who keeps them, and who watches them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from crew.runs.events import Event
from crew.runs.state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A run as the store has it."""

    version: int
    state: RunState


class RunStore(Protocol):
    """What survives. `version` is the one that the caller knows: 0 creates the run, any other must be the newest."""

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None: ...

    async def load(self, run_id: str) -> Stored: ...


class Observer(Protocol):
    """Who watches. It may fail without harm: then it is switched off for that run, with one warning."""

    def __call__(self, event: Event, /) -> None: ...
