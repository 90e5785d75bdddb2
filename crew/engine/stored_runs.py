"""Runs that are stored already: returned instead of started again, cancelled, or resumed because their owner died."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from crew.engine.active_runs import ActiveRuns
from crew.errors import (
    CrewError,
    InvalidInput,
    RunActive,
    RunConflict,
    RunExists,
    StoreError,
    UnknownRun,
    Violation,
    abbreviate,
)
from crew.messages import Message, UserMessage
from crew.runs.events import RunStarted
from crew.runs.interfaces import RunReader, RunStore, StoredRun
from crew.runs.leases import LeasingStore
from crew.runs.processes import is_gone
from crew.runs.result import RunResult
from crew.runs.state import RunState, run_status
from crew.secrets.scrubbing import Scrubber, scrub_value
from crew.transitions.plan import Plan
from crew.transitions.result import build_result


@dataclass(frozen=True, slots=True)
class ExistingRun:
    """The stored run that has the id of a run which is about to start."""

    store: RunStore
    active: ActiveRuns
    plan: Plan
    started: RunStarted
    scrubber: Scrubber

    async def find_or(self, start: Callable[[], Awaitable[RunResult]]) -> RunResult:
        """The result or the state of the stored run, or else of the run that is started now."""
        if (found := await self._find()) is not None:
            return found

        try:
            return await start()
        except RunExists:
            if (found := await self._find()) is None:
                raise

        return found

    async def _find(self) -> RunResult | None:
        """The result of the run, also of an unfinished one; None if there is none.

        The stop reason of a run that is under way, here or in another process, is `running`.
        """
        run_id, goal = self.started.run_id, _content(self.started.messages[-1])
        state = await read_state(self.store, run_id)

        while state is None and self.active.is_active(run_id):
            await asyncio.sleep(0.01)  # its first commit is being written
            state = await read_state(self.store, run_id)

        if state is None:
            return None

        if state.crew != self.plan.crew.name:
            text = f"Run {run_id!r} exists and belongs to the crew {state.crew!r}, not to {self.plan.crew.name!r}: "
            raise InvalidInput([Violation(rule="on_existing", text=f"{text}choose another run_id.", value=run_id)])

        stored = await _read_goal(self.store, state)

        if stored is not None and _content(stored) != goal:
            text = (
                f"Run {run_id!r} exists with another input, {abbreviate(_content(stored)[0])}: choose another run_id."
            )
            raise InvalidInput([Violation(rule="on_existing", text=text, value=goal[0])])

        result = scrub_value(self.scrubber, build_result(self.plan, state))
        is_running = run_status(state) == "running" and await self.active.is_owned(run_id)
        return replace(result, stop_reason="running") if is_running else result


def _content(message: Message) -> tuple[str, object]:
    return (message.text, message.images) if isinstance(message, UserMessage) else ("", ())


async def read_state(store: RunStore | RunReader, run_id: str) -> RunState | None:
    """The stored state of a run; None if there is none, or it has finished and the store can't read finished runs."""
    try:
        return (await (store.run(run_id) if isinstance(store, RunReader) else store.load(run_id))).state
    except UnknownRun:
        return None


async def _read_goal(store: RunStore, state: RunState) -> Message | None:
    """The input with which a run was started; None if it is not known."""
    first = await store.events(state.run_id, limit=1) if isinstance(store, RunReader) else ()

    if first and isinstance(first[0].event, RunStarted):
        return first[0].event.messages[-1]

    goal = state.history.goal
    return next((message for message in state.transcript if goal and message.id == goal), None)


async def is_driven_elsewhere(run_id: str, active: ActiveRuns, store: RunStore) -> bool:
    """Whether a run is under way in another system than that of these runs, such as Temporal."""
    state = await read_state(store, run_id)
    return state is not None and state.driver not in ("", active.driver) and run_status(state) == "running"


async def is_under_way(run_id: str, store: RunStore | RunReader) -> bool:
    """Whether a live process, or another system, drives an unfinished run; for readers that have no executor."""
    lease = await store.leases().find(run_id) if isinstance(store, LeasingStore) else None

    if lease is not None and not lease.lapsed and not is_gone(lease.holder):
        return True

    state = await read_state(store, run_id)
    return state is not None and bool(state.driver) and run_status(state) == "running"


async def cancel_run(
    run_id: str,
    active: ActiveRuns,
    load: Callable[[str], Awaitable[StoredRun]],
    close: Callable[[StoredRun], Awaitable[RunState]],
) -> RunState | None:
    """Cancel a run where it is under way, here or in another process; `close` ends one that is not: its last state."""
    if await active.cancel(run_id):
        return None

    requested = await active.cancel_elsewhere(run_id)

    try:
        stored = await load(run_id)
    except UnknownRun:
        if requested:
            return None  # its owner cancelled it

        raise

    if await active.cancel(run_id):
        return None  # it was resumed in the meantime

    return await close(stored)


async def unfinished_runs(store: RunStore, crew: str) -> list[str]:
    """The runs of this crew that are under way, or whose process stopped them or died; not paused and failed ones."""
    if not isinstance(store, RunReader):
        text = f"The store {type(store).__name__} can't list its runs: it has no methods of RunReader. Use SQLiteStore."
        raise StoreError("", text)

    found: list[str] = []
    cursor: str | None = None

    while True:
        page = await store.runs(crew=crew, status="running", limit=200, cursor=cursor)
        found += [info.run_id for info in page.runs]

        if (cursor := page.cursor) is None:
            return found


async def recover_runs(
    active: ActiveRuns,
    load: Callable[[str], Awaitable[StoredRun]],
    resume: Callable[[str], Awaitable[RunResult]],
    crew: str,
    unfinished: Sequence[str] = (),
) -> dict[str, RunResult | CrewError]:
    """Resume the runs of this crew whose owner died, all at the same time; the outcome of each one.

    Also those of the `unfinished` runs that nothing drives.
    """
    outcomes: dict[str, RunResult | CrewError] = {}
    leases = active.leases

    if leases is None and not active.driver:
        return outcomes  # nothing says which runs have lost their owner

    abandoned = {} if leases is None else {lease.run_id: lease for lease in await leases.abandoned()}

    async def resume_unowned(run_id: str) -> None:
        try:
            if await active.is_owned(run_id):
                return

            state = (await load(run_id)).state

            if (state.crew, state.driver) == (crew, active.driver):
                outcomes[run_id] = await resume(run_id)
        except (RunActive, RunConflict):
            pass  # another process was faster
        except UnknownRun:
            if leases is not None and run_id in abandoned:
                await leases.discard(abandoned[run_id])  # its owner died after the last commit of the run

    async def recover(run_id: str) -> None:
        try:
            await resume_unowned(run_id)
        except CrewError as error:  # each run has its own outcome
            outcomes[run_id] = error

    async with asyncio.TaskGroup() as group:
        for run_id in dict.fromkeys([*abandoned, *unfinished]):
            group.create_task(recover(run_id))

    return outcomes
