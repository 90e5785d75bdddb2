"""Run stores that keep JSON only, crash, wait or check what they are given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from crew.errors import RunConflict, RunExists, UnknownRun
from crew.runs import Event, RunState, StoredRun
from crew.store import decode_events, decode_state, encode_events, encode_state
from tests.support.invariants import state_violations


class Crash(BaseException):
    """The process ends here."""


class JsonStore:
    """Keeps every committed state and event as JSON, finished runs included; crashes after `crash_after` commits."""

    def __init__(self, *, crash_after: int | None = None) -> None:
        self.runs: dict[str, list[bytes]] = {}
        self.snapshots: list[bytes] = []
        """Every committed state, of all runs, in the order of the commits."""
        self.event_batches: list[bytes] = []
        self.crash_after = crash_after

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        await asyncio.sleep(0)
        versions = self.runs.setdefault(run_id, [])

        if version == 0 and versions:
            raise RunExists(run_id)

        if version != len(versions):
            raise RunConflict(run_id, version, len(versions))

        data = encode_state(state)
        versions.append(data)
        self.snapshots.append(data)
        self.event_batches.append(encode_events(events))

        if len(self.snapshots) == self.crash_after:
            raise Crash

    async def load(self, run_id: str) -> StoredRun:
        await asyncio.sleep(0)

        if not self.runs.get(run_id):
            raise UnknownRun(run_id)

        return StoredRun(version=len(self.runs[run_id]), state=decode_state(self.runs[run_id][-1]))

    @property
    def states(self) -> list[RunState]:
        return [decode_state(data) for data in self.snapshots]

    @property
    def newest(self) -> RunState:
        return decode_state(self.snapshots[-1])

    @property
    def events(self) -> list[Event]:
        """Every committed event."""
        return [event for data in self.event_batches for event in decode_events(data)]


class SlowStore(JsonStore):
    """Each commit takes several turns of the event loop."""

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

        await super().commit(run_id, version, events, state)


class CheckedStore(JsonStore):
    """Checks that every commit survives its JSON and keeps the invariants, in the run and its child runs."""

    def __init__(self, limit: int | None = 50) -> None:
        super().__init__()
        self.limit = limit
        self.violations: list[str] = []
        self._previous: dict[str, RunState] = {}

    @classmethod
    def after(cls, snapshots: Sequence[bytes], limit: int | None = 50) -> CheckedStore:
        """A store as it was after these commits of one run."""
        store = cls(limit)
        store.snapshots = [*snapshots]
        store.runs = {store.newest.run_id: [*snapshots]}
        return store

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        await super().commit(run_id, version, events, state)
        decoded = decode_state(self.snapshots[-1])
        found = [*state_violations(state, self._previous.get(run_id), self.limit)]

        if decoded != state:
            found.append("the state does not survive its JSON")

        if decode_events(self.event_batches[-1]) != list(events):
            found.append("the events do not survive their JSON")

        self.violations += [f"version {version}: {violation}" for violation in found]
        self._previous[run_id] = decoded
