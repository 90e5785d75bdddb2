"""The activities of a worker: each performs one effect of a run and stores its outcome under the key of the effect."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from crew.engine.concurrency import USER_CODE_ERRORS, is_failure
from crew.engine.loop import perform_effect
from crew.engine.run import Effect, EffectKind
from crew.errors import describe
from crew.runs.interfaces import EffectRecords
from crew.runs.state import RunState
from crew.secrets.scrubbing import scrub_error
from crew.temporal.encoding import (
    APPEND,
    FIND,
    NOT_STARTED,
    PERFORM,
    SNAPSHOT,
    EffectInput,
    encode_outcome,
    encode_snapshot,
)
from crew.temporal.record_codec import reference
from crew.temporal.run_mirrors import RunMirrors
from crew.temporal.runtime import WorkerRuntime
from crew.tools.tool import Tool

Value = TypeVar("Value")

CACHED_RUNS = 256
STORE_SECONDS = 300.0
"""How long an outcome waits for a store that is not available."""
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.1, 5.0


@dataclass(slots=True, eq=False)
class _RunParts:
    """What a worker keeps of a run: its deps, and the tools that its toolsets listed."""

    deps: Any = None
    has_deps: bool = False
    tools: dict[str, Mapping[str, Tool]] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class CrewActivities:
    """Performs the effects of a crew's runs. An effect that was performed before returns its stored outcome."""

    def __init__(self, runtime: WorkerRuntime, records: EffectRecords) -> None:
        self._runtime, self._records = runtime, records
        self._mirrors = RunMirrors(plan=runtime.plan, store=runtime.store, records=records)
        self._runs: OrderedDict[str, _RunParts] = OrderedDict()

    @property
    def all(self) -> list[Callable[..., Any]]:
        """The activities to register."""
        return [self.perform, self.append, self.snapshot, self.find]

    @activity.defn(name=PERFORM)
    async def perform(self, given: EffectInput) -> RawValue:
        """Store what the run recorded before, and perform its effect; returns a reference to the outcome."""
        async with _heartbeats(given.heartbeat_seconds):
            state = await self._catch_up(given)

            # A worker may have been lost after it stored the outcome and before it reported it.
            if await _before_effect(self._records.get(given.run_id, given.key)) is None:
                await self._store_outcome(given, await self._perform(given, state))

        return reference(given.run_id, given.key)

    @activity.defn(name=APPEND)
    async def append(self, given: EffectInput) -> None:
        """Store what the run recorded."""
        async with _heartbeats(given.heartbeat_seconds):
            await self._catch_up(given)

    @activity.defn(name=SNAPSHOT)
    async def snapshot(self, given: EffectInput) -> None:
        """Store the state of the run under the key, for the next execution of its workflow."""
        async with _heartbeats(given.heartbeat_seconds):
            state = await self._catch_up(given)
            # Events after the last input event are stored too, and their numbers are not used again.
            newest = max([state.sequence, *(entry[1] for entry in given.entries)])
            await self._records.put(given.run_id, given.key, encode_snapshot(replace(state, sequence=newest)))

    @activity.defn(name=FIND)
    async def find(self, given: EffectInput) -> bool:
        """Store what the run recorded, and say whether the outcome of an effect is stored."""
        async with _heartbeats(given.heartbeat_seconds):
            # The worker that was lost may not have stored anything.
            await self._catch_up(given)
            return await self._records.get(given.run_id, given.key) is not None

    async def _catch_up(self, given: EffectInput) -> RunState:
        if given.fingerprint != self._runtime.fingerprint:
            raise ApplicationError(self._runtime.mismatch(given.run_id, given.fingerprint), type=NOT_STARTED)

        return await _before_effect(self._mirrors.catch_up(given.run_id, given.entries))

    async def _store_outcome(self, given: EffectInput, outcome: bytes) -> None:
        """Store an outcome, also if the store is away for a while: without it a write would be in doubt."""
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE_SECONDS
        give_up_at = loop.time() + STORE_SECONDS

        while True:
            try:
                await self._records.put(given.run_id, given.key, outcome)
                return
            except USER_CODE_ERRORS as error:  # a store may be user code
                if not is_failure(error) or loop.time() >= give_up_at:
                    raise

                activity.logger.warning("The outcome of %s is not stored yet: %s", given.key, describe(error))

            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_PAUSE_SECONDS)

    async def _perform(self, given: EffectInput, state: RunState) -> bytes:
        failure: BaseException | None = None
        run = self._runtime.effect_run(state, None)  # if its deps can't be built
        kind: EffectKind = given.kind  # type: ignore[assignment]  # the workflow sends no other

        try:
            parts = await self._parts_of(state)
            run = self._runtime.effect_run(state, parts.deps)
            run.bound_tools = parts.tools

            with self._runtime.effect_span(given, activity.info().attempt):
                await perform_effect(run, Effect(kind=kind, run_id=given.path, call_key=given.call_key))
        except USER_CODE_ERRORS as error:  # an effect that fails is an outcome: the workflow raises its error
            if not is_failure(error):
                raise

            scrub_error(run.scrubber, error)
            failure = error

        return encode_outcome(run.journal, failure)

    async def _parts_of(self, state: RunState) -> _RunParts:
        """The deps and tools of a run, made once in this worker, also if several effects need them at the same time."""
        parts = self._runs.setdefault(state.run_id, _RunParts())
        self._runs.move_to_end(state.run_id)

        if len(self._runs) > CACHED_RUNS:
            self._runs.popitem(last=False)

        async with parts.lock:
            if not parts.has_deps:
                parts.deps, parts.has_deps = await self._runtime.build_deps(state), True

        return parts


async def _before_effect(request: Awaitable[Value]) -> Value:
    """The answer of the store. An error says that no effect was performed, so that the activity can be repeated."""
    try:
        return await request
    except USER_CODE_ERRORS as error:  # a store may be user code
        if not is_failure(error):
            raise

        raise ApplicationError(describe(error), type=NOT_STARTED) from error


@asynccontextmanager
async def _heartbeats(seconds: float) -> AsyncIterator[None]:
    """Report to the server that this activity is alive, several times within its heartbeat timeout."""

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(seconds / 4)

    task = asyncio.create_task(beat())

    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
