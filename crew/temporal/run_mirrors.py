"""The stored copies of runs: activities bring them up to date from the journals of the workflows."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from crew.engine.run_overrides import overridden_plan
from crew.errors import RunConflict, StoreError
from crew.runs.events import Event
from crew.runs.interfaces import Cursor, EffectRecords, EventLog, RunReader, RunStore
from crew.runs.state import Finished, RunState
from crew.temporal.encoding import Outcome, decode_outcome, effect_key, entry_event
from crew.transitions.advance import advance
from crew.transitions.plan import Plan

CACHED_RUNS = 256
ATTEMPTS = 20
"""How often an append is tried again, if other workers append to the same run."""


async def newest_sequence(store: RunReader, state: RunState, version: int) -> int:
    """The number of the newest stored event of a run: events after the newest commit are not in its state."""
    newest = await store.events(state.run_id, Cursor(version, -1))
    return max([state.sequence, *(stored.event.sequence for stored in newest)])


@dataclass(slots=True)
class Mirror:
    """The newest stored state of a run, its version, and the number of its newest stored event.

    `plan` is that of the crew, with the overrides of the run.
    """

    plan: Plan
    version: int
    state: RunState
    sequence: int


@dataclass(slots=True, kw_only=True)
class RunMirrors:
    """Follows the runs of workflows in the store. Entries that are stored already are skipped."""

    plan: Plan
    store: RunStore
    records: EffectRecords
    _mirrors: OrderedDict[str, Mirror] = field(default_factory=OrderedDict)
    _locks: dict[str, asyncio.Lock] = field(default_factory=dict)

    async def catch_up(self, run_id: str, entries: Sequence[Sequence[Any]]) -> RunState:
        """Append the entries that the store does not have, in one commit; returns the stored state."""
        lock = self._locks.setdefault(run_id, asyncio.Lock())

        async with lock:
            for _ in range(ATTEMPTS):
                mirror = self._mirrors.pop(run_id, None) or await self._load(run_id)

                try:
                    await self._append(mirror, entries)
                except RunConflict:
                    continue  # another worker appended meanwhile: load what it stored

                self._remember(mirror)
                return mirror.state

        raise StoreError(run_id, f"Other workers changed the stored run {run_id!r} {ATTEMPTS} times meanwhile.")

    async def _load(self, run_id: str) -> Mirror:
        assert isinstance(self.store, RunReader)
        record = await self.store.run(run_id)
        sequence = await newest_sequence(self.store, record.state, record.info.version)
        plan = overridden_plan(self.plan, record.state.overrides)
        return Mirror(plan, record.info.version, record.state, sequence)

    def _remember(self, mirror: Mirror) -> None:
        run_id = mirror.state.run_id

        if isinstance(mirror.state.next, Finished):
            self._locks.pop(run_id, None)
            return

        self._mirrors[run_id] = mirror

        if len(self._mirrors) > CACHED_RUNS:
            oldest, _ = self._mirrors.popitem(last=False)
            self._locks.pop(oldest, None)

    async def _append(self, mirror: Mirror, entries: Sequence[Sequence[Any]]) -> None:
        state, sequence, events, last = mirror.state, mirror.sequence, list[Event](), list[Event]()

        for entry in entries:
            if entry[1] <= sequence:
                continue

            if entry[1] != sequence + 1:
                text = f"Event {sequence + 1} of run {state.run_id!r} is missing: the next one is {entry[1]}. Was the "
                raise StoreError(state.run_id, f"{text}store replaced, or did another process drive the run?")

            event = entry_event(entry, await self._outcome(state.run_id, entry), state)
            last.append(event)
            sequence = event.sequence

            if entry[0]:
                state, emitted = advance(mirror.plan, state, event, {})  # type: ignore[arg-type]  # an input event
                events += [*last, *emitted]
                sequence, last = state.sequence, []

        if events:
            await self.store.commit(state.run_id, mirror.version, events, state)
            mirror.version, mirror.state, mirror.sequence = mirror.version + 1, state, state.sequence

        if last and isinstance(self.store, EventLog):
            await self.store.append_events(state.run_id, mirror.version, last)
            mirror.sequence = sequence

    async def _outcome(self, run_id: str, entry: Sequence[Any]) -> Outcome | None:
        key = effect_key(entry)

        if key is None:
            return None

        data = await self.records.get(run_id, key)

        if data is None:
            raise StoreError(run_id, f"The store has no outcome of the effect {key!r} of run {run_id!r}.")

        return decode_outcome(data)
