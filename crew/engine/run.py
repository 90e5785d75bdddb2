"""`ActiveRun`: a run under way, its newest state, and the one method that advances it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from crew.engine.concurrency import USER_CODE_ERRORS, carried_result, carry_errors, is_failure, wait_until_done
from crew.engine.fairness import CommitGate, RunOrder, next_order, take_turn
from crew.engine.held_leases import HeldLease
from crew.engine.observers import Observers
from crew.engine.token_meter import FactCounter, TokenMeter
from crew.errors import CrewError, StoreError, describe
from crew.fast_replace import fast_replace
from crew.interfaces import Delta, OnDelta, Provider, RetryPolicy, TokenCounter
from crew.runs.events import BaseEvent, Event, Replied, RunStarted, TextDelta, ToolProgress, Warned
from crew.runs.interfaces import EventLog, RunStore
from crew.runs.state import Finished, RunState
from crew.secrets.scrubbing import ScrubbedDeltas, Scrubber, scrub_value
from crew.transitions.advance import InputEvent, advance, find_run
from crew.transitions.plan import Plan

log = logging.getLogger("crew")

AnyEvent = TypeVar("AnyEvent", bound=BaseEvent)


class Providers(Protocol):
    """Finds the provider of a model: given as an object, or by a name such as `openai:gpt-5-mini`."""

    def get(self, model: str | Provider, retry: RetryPolicy | None = None) -> Provider: ...


@dataclass(slots=True, kw_only=True, eq=False)
class ActiveRun:
    """A run under way, with everything that its steps need.

    `clock` is the wall clock. It is read once, and `monotonic` measures from there: a wall clock that is set while the
    run is under way changes neither the order of its events nor its durations.
    `commits_immediately` is whether the store's `commit` never suspends. `errors` holds the error of each run
    that failed in this process: the state only has its text. `register_keys` registers API keys that were set
    meanwhile. `lease` makes this process the owner of the run, if the store has leases. `orphans` are the tools and
    models that go on although they were cancelled. `is_open` is whether observers still get events.
    """

    plan: Plan
    state: RunState
    store: RunStore
    clock: Callable[[], float]
    monotonic: Callable[[], float]
    observers: Observers
    providers: Providers
    meter: TokenMeter
    order: RunOrder = field(default_factory=next_order)
    commits: CommitGate = field(default_factory=CommitGate)
    version: int = 0
    deps: Any = None
    wants_deltas: bool = False
    commits_immediately: bool = False
    scrubber: Scrubber | None = None
    register_keys: Callable[[], None] = lambda: None
    errors: dict[str, BaseException] = field(default_factory=dict)
    orphans: list[str] = field(default_factory=list)
    lease: HeldLease | None = None
    is_open: bool = True
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _uncommitted: list[Event] = field(default_factory=list)
    _deferred: list[Event] = field(default_factory=list)
    _sequence: int = field(init=False)
    _clock_offset: float = field(init=False)
    _last_input_at: float | None = None

    def __post_init__(self) -> None:
        self._sequence = self.state.sequence
        self._clock_offset = self.clock() - self.monotonic()

    def provider(self, state: RunState) -> Provider:
        """The provider of the current agent: its model, or the backup that took over."""
        view = state.views.get(state.agent)
        backup = self.backup(state.agent) if view is not None and view.active_model == "backup" else None
        agent = self.plan.agents[state.agent]
        return self.providers.get(agent.model, agent.retry) if backup is None else backup

    def backup(self, name: str) -> Provider | None:
        """The provider of an agent's backup model, where it has one."""
        agent = self.plan.agents[name]
        return None if agent.backup is None else self.providers.get(agent.backup, agent.retry)

    def token_counter(self, state: RunState) -> TokenCounter:
        """Counts the tokens of the current agent's replies and results."""
        agent = self.plan.agents[state.agent]
        counter = self.meter.counter_for(agent, agent.model, state.parameters.max_tokens)
        return counter if self.meter.counter is None else FactCounter(counter)

    async def record(self, event: InputEvent) -> None:
        """Advance the state by this event, commit it, and notify observers."""
        try:
            await take_turn(self.order)
        except asyncio.CancelledError:
            # The event reports a fact, such as the result of a tool: it must not be lost.
            await self._record_now(event)
            raise

        await self._record_now(event)

    async def _record_now(self, event: InputEvent) -> None:
        async with self._lock:
            run = find_run(self.state, event.run_id)

            if run is None or isinstance(run.next, Finished):
                return  # the branch was stopped in the meantime

            event = self._stamp(event, run, since=self._last_input_at)
            state, emitted = self._advance(event)
            events = (*self._uncommitted, event, *emitted)

            try:
                await self._commit(events, state)
            finally:
                # Events emitted during the commit follow it, in number and in time.
                if self.state is state:
                    for committed in (event, *emitted):
                        self.observers(committed)

                while self._deferred:
                    self._emit_now(self._deferred.pop(0))

    def _advance(self, event: InputEvent) -> tuple[RunState, tuple[Event, ...]]:
        errors: dict[str, BaseException] = {}
        state, emitted = advance(self.plan, self.state, event, errors)

        if errors:
            # The texts of the errors come from user code: no event before held them.
            state, emitted = scrub_value(self.scrubber, (state, emitted))
            self.errors.update({id: e for id, e in errors.items() if (run := find_run(state, id)) and run.failure})

        return state, emitted

    async def _commit(self, events: tuple[Event, ...], state: RunState) -> None:
        try:
            if self.commits_immediately:  # it never suspends and can't be cancelled half-way, so it needs no task
                await self.store.commit(self.state.run_id, self.version, events, state)
            else:
                await self._finish_commit(events, state)
        except CrewError:
            raise
        except USER_CODE_ERRORS as error:  # the store boundary: distinguishes a failing store from a failing step
            if not is_failure(error):
                raise

            raise StoreError(self.state.run_id, f"The store failed: {describe(error)}") from error

        self._accept(state)

    async def _finish_commit(self, events: tuple[Event, ...], state: RunState) -> None:
        """Finish a commit even if this task is cancelled meanwhile; the cancellation is raised afterwards."""
        commit = asyncio.ensure_future(carry_errors(self._commit_in_order(events, state)))

        try:
            await asyncio.wait([commit])
        except asyncio.CancelledError:
            await wait_until_done(commit)

            if commit.exception() is None:
                self._accept(state)

            raise

        carried_result(commit)

    async def _commit_in_order(self, events: tuple[Event, ...], state: RunState) -> None:
        async with self.commits.entered(self.order):
            await self.store.commit(self.state.run_id, self.version, events, state)

    def _accept(self, state: RunState) -> None:
        self.state, self.version = state, self.version + 1
        self._sequence, self._last_input_at = state.sequence, state.last_event_at
        self._uncommitted.clear()

    async def store_last_events(self) -> None:
        """Store the events that no commit follows, where the store can; the run has ended here."""
        if not self._uncommitted or not self.version or not isinstance(self.store, EventLog):
            return

        try:
            await self.store.append_events(self.state.run_id, self.version, tuple(self._uncommitted))
        except Exception as error:  # the store boundary: the outcome of the run is known, and stays what it is
            log.warning("the last events of run %s could not be stored: %s", self.state.run_id, describe(error))

        self._uncommitted.clear()

    def emit(self, event: Event) -> None:
        """Emit an event that does not change the state; all but deltas and progress are stored with the next commit."""
        if self._lock.locked():
            self._deferred.append(event)
        else:
            self._emit_now(event)

    def _emit_now(self, event: Event) -> None:
        event = self._stamp(event, find_run(self.state, event.run_id) or self.state)

        if not isinstance(event, TextDelta | ToolProgress):
            self._uncommitted.append(event)

        self.observers(event)

    def abandon(self, run_id: str, name: str, outcome: asyncio.Future[Any]) -> None:
        """Continue without a tool or a model that goes on although it was cancelled; report its late outcome."""
        self.orphans.append(name)
        self.emit(Warned(run_id=run_id, text=f"{name} goes on although it was cancelled; the run continues without it"))

        def report(done: asyncio.Future[Any]) -> None:
            error = None if done.cancelled() else done.exception()
            how = "ended" if error is None else f"failed: {describe(error)}"
            text = scrub_value(self.scrubber, f"{name} {how} after the run had continued without it")

            if self.is_open:
                self.emit(Warned(run_id=run_id, text=text))
            else:
                log.warning("%s (run %s)", text, run_id)

        outcome.add_done_callback(report)

    def on_delta(self, run_id: str, is_active: Callable[[], bool]) -> OnDelta | None:
        """The callback for the pieces of a streamed reply; None where the caller does not stream."""
        if not self.wants_deltas:
            return None

        def emit_delta(delta: Delta) -> None:
            if not is_active():
                return  # a model that goes on although it was cancelled

            self.emit(TextDelta(run_id=run_id, text=delta.text, channel=delta.kind))

        return emit_delta if self.scrubber is None else ScrubbedDeltas(self.scrubber, emit_delta)

    def _stamp(self, event: AnyEvent, run: RunState, since: float | None = None) -> AnyEvent:
        """The event with its number and time; new messages in it get ids from their position in the transcript.

        Not from the number of the event: that also counts deltas and retries, and a run that is streamed, resumed or
        retried must produce the same messages.
        """
        self._sequence += 1
        now, position = self._clock_offset + self.monotonic(), len(run.transcript)
        elapsed = 0.0 if since is None else max(0.0, now - since)
        event = scrub_value(self.scrubber, event)
        agent = event.agent or run.agent

        if isinstance(event, Replied):
            message = fast_replace(event.message, id=f"{event.run_id}:{position}", time=now)
            return fast_replace(event, sequence=self._sequence, at=now, elapsed=elapsed, agent=agent, message=message)

        if isinstance(event, RunStarted):
            messages = tuple(
                m if m.id else fast_replace(m, id=f"{event.run_id}:{position + i}", time=m.time or now)
                for i, m in enumerate(event.messages)
            )
            return fast_replace(event, sequence=self._sequence, at=now, elapsed=elapsed, agent=agent, messages=messages)

        return fast_replace(event, sequence=self._sequence, at=now, elapsed=elapsed, agent=agent)
