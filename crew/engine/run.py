"""`ActiveRun`: a run under way, its newest state, and the one method that advances it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from crew.engine.concurrency import (
    USER_CODE_ERRORS,
    acquire_lock,
    carried_result,
    carry_errors,
    is_failure,
    wait_until_done,
)
from crew.engine.event_stamps import AnyEvent, stamp
from crew.engine.fairness import CommitGate, RunOrder, next_order, take_turn
from crew.engine.held_deltas import HeldDeltas
from crew.engine.held_leases import HeldLease
from crew.engine.observers import Observers, implements
from crew.engine.run_overrides import apply_overrides
from crew.engine.token_meter import FactCounter, TokenMeter
from crew.engine.unstored_events import UnstoredEvents
from crew.errors import CrewError, StoreError, describe
from crew.fast_replace import fast_replace
from crew.interfaces import Delta, OnDelta, Provider, RetryPolicy, TokenCounter
from crew.runs.events import Event, Replied, TextDelta, ToolProgress, Warned
from crew.runs.interfaces import EventLog, RunStore
from crew.runs.leases import LeasingStore
from crew.runs.state import CheckOutput, Finished, RunState
from crew.secrets.scrubbing import ScrubbedDeltas, Scrubber, scrub_value
from crew.tools.tool import Tool
from crew.tools.toolset import Toolset
from crew.transitions.advance import InputEvent, advance, find_run
from crew.transitions.plan import Plan, Toolkit

log = logging.getLogger("crew")


class RunEnded(Exception):
    """A tool ended the whole run, which is recorded: everything that is under way stops."""


class Providers(Protocol):
    """Finds the provider of a model: given as an object, or by a name such as `openai:gpt-5-mini`."""

    def get(self, model: str | Provider, retry: RetryPolicy | None = None) -> Provider: ...


EffectKind = Literal[
    "ask_model",
    "make_summary",
    "start_calls",
    "run_call",
    "prepare_agent",
    "check_input",
    "check_output",
    "check_calls",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A step with I/O: its kind, its run or branch, and for a call of a tool the key of the call."""

    kind: EffectKind
    run_id: str
    call_key: str = ""


class RemoteEffects(Protocol):
    """Performs the effects of a run outside the loop, such as in the activities of a workflow."""

    async def before_step(self) -> None:
        """Wait until the next step of a run or branch may start."""

    async def perform(self, run: ActiveRun, effect: Effect) -> None:
        """Perform an effect and record its outcome."""


class ToolsetOpener(Protocol):
    """Opens toolsets, which belong to an executor and its event loop."""

    async def open(self, toolset: Toolset) -> None: ...


@dataclass(slots=True, kw_only=True, eq=False)
class ActiveRun:
    """A run under way, with everything that its steps need.

    `clock` is the wall clock. It is read once, and `monotonic` measures from there: a wall clock that is set while the
    run is under way changes neither the order of its events nor its durations.
    `commits_immediately` is whether the store's `commit` never suspends. `errors` holds the error of each run
    that failed in this process: the state only has its text. `register_keys` registers API keys that were set
    meanwhile. `lease` makes this process the owner of the run, if the store has leases. `orphans` are the tools and
    models that go on although they were cancelled. `is_open` is whether observers still get events. With `effects`,
    steps with I/O are performed there, else here. `bound_tools` are the tools of the toolsets that were listed in this
    process, by toolset and name. `held_deltas` are the pieces of replies that guardrails did not accept yet, by run.
    """

    plan: Plan
    state: RunState
    store: RunStore
    clock: Callable[[], float]
    monotonic: Callable[[], float]
    observers: Observers
    providers: Providers
    meter: TokenMeter
    toolsets: ToolsetOpener
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
    effects: RemoteEffects | None = None
    is_open: bool = True
    bound_tools: dict[str, Mapping[str, Tool]] = field(default_factory=dict)
    held_deltas: HeldDeltas = field(default_factory=HeldDeltas)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the run is written to the store."""
    _is_committing: bool = False
    _uncommitted: UnstoredEvents = field(default_factory=UnstoredEvents)
    _deferred: list[Event] = field(default_factory=list)
    _sequence: int = field(init=False)
    _clock_offset: float = field(init=False)
    _last_input_at: float | None = None
    _toolkits: dict[str, tuple[Toolkit, Toolkit]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plan, self.meter = apply_overrides(self.plan, self.meter, self.state.overrides)
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

    def toolkit(self, state: RunState) -> Toolkit:
        """The instructions and tools of the current agent, as they were prepared."""
        prepared, toolkit = state.prepared.get(state.agent), self.plan.toolkits[state.agent]

        if prepared is None:
            return toolkit

        known = self._toolkits.get(prepared.head)

        if known is None or known[0] is not toolkit:
            content = self.state.preparation
            text = content.texts[prepared.instructions] if prepared.instructions else toolkit.instructions
            specs = (*toolkit.specs, *(content.specs[tool.digest] for tool in prepared.tools))
            known = toolkit, replace(toolkit, instructions=text, specs=specs, head=prepared.head)
            self._toolkits[prepared.head] = known

        return known[1]

    def token_counter(self, state: RunState) -> TokenCounter:
        """Counts the tokens of the current agent's replies and results."""
        agent = self.plan.agents[state.agent]
        counter = self.meter.counter_for(agent, agent.model, state.parameters.max_tokens)
        return counter if self.meter.counter is None else FactCounter(counter)

    async def record(self, event: InputEvent) -> None:
        """Advance the state by this event, commit it, and notify observers.

        The event reports a fact, such as the result of a tool: it is not lost if this task is cancelled meanwhile. The
        cancellation is raised afterwards.
        """
        cancelled = False

        try:
            await take_turn(self.order)
        except asyncio.CancelledError:
            cancelled = True

        cancelled |= await acquire_lock(self._lock)

        try:
            await self._record_locked(event)
        finally:
            self._lock.release()

        if cancelled:
            raise asyncio.CancelledError

    async def _record_locked(self, event: InputEvent) -> None:
        run = find_run(self.state, event.run_id)

        if run is None or isinstance(run.next, Finished):
            return  # the branch was stopped in the meantime

        event = self._stamp(event, run, since=self._last_input_at)
        state, emitted = self._advance(event)
        event = _withheld(event, state) if isinstance(event, Replied) else event
        events = (*self._uncommitted.events, event, *emitted)
        self._is_committing = True

        try:
            await self._commit(events, state)
        finally:
            self._is_committing = False

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
            if self.version or self.lease is None:
                await self.store.commit(self.state.run_id, self.version, events, state)
            else:
                assert isinstance(self.store, LeasingStore)
                await self.store.commit_first(self.state.run_id, events, state, self.lease.lease)

    def _accept(self, state: RunState) -> None:
        self.state, self.version = state, self.version + 1
        self._sequence, self._last_input_at = state.sequence, state.last_event_at
        self._uncommitted.clear()

    async def store_events(self) -> None:
        """Append the events that wait for a commit to the newest one; if that fails, they wait on."""
        async with self._lock:
            events = self._uncommitted.take()

            if not events:
                return

            try:
                assert isinstance(self.store, EventLog)
                await self.store.append_events(self.state.run_id, self.version, events)
            except BaseException as error:  # the store boundary: the run goes on, its next commit fails or has them
                self._uncommitted.put_back(events)

                if not isinstance(error, Exception):
                    raise

                log.warning("events of run %s could not be stored: %s", self.state.run_id, describe(error))

    async def store_last_events(self) -> None:
        """Store the events that no commit follows, where the store can; the run has ended here."""
        await self._uncommitted.stop()

        if self._uncommitted.events and self.version and self._is_event_log():
            await self.store_events()

    def stop_storing_events(self) -> None:
        """Stop the timer of the events, where the run can't await any more."""
        self._uncommitted.stop_timer()

    def _is_event_log(self) -> bool:
        return implements(type(self.store), EventLog)

    def emit(self, event: Event) -> None:
        """Emit an event that does not change the state.

        All but deltas and progress are stored with the next commit, or without it if none comes soon.
        """
        if self._is_committing:
            self._deferred.append(event)
        else:
            self._emit_now(event)

    def _emit_now(self, event: Event) -> None:
        event = self._stamp(event, find_run(self.state, event.run_id) or self.state)

        if not isinstance(event, TextDelta | ToolProgress):
            self._uncommitted.add(event)

            # Events before the first commit are stored with it.
            if self.version and self.is_open and self._is_event_log():
                self._uncommitted.store_soon(self.store_events)

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

            event = TextDelta(run_id=run_id, text=delta.text, channel=delta.kind)

            if not self.held_deltas.keep(event):
                self.emit(event)

        return emit_delta if self.scrubber is None else ScrubbedDeltas(self.scrubber, emit_delta)

    def release_deltas(self, run_id: str) -> None:
        """Emit the pieces of streamed replies that were held back."""
        for event in self.held_deltas.take(run_id):
            self.emit(event)

    def _stamp(self, event: AnyEvent, run: RunState, since: float | None = None) -> AnyEvent:
        """The event with its number and time; new messages in it get ids from their position in the transcript.

        Not from the number of the event: that also counts deltas and retries, and a run that is streamed, resumed or
        retried must produce the same messages.
        """
        self._sequence += 1
        now = self._clock_offset + self.monotonic()
        elapsed = 0.0 if since is None else max(0.0, now - since)
        event = scrub_value(self.scrubber, event)
        return stamp(event, run, sequence=self._sequence, at=now, elapsed=elapsed)


def _withheld(event: Replied, state: RunState) -> Replied:
    """The event without the text of the reply, if guardrails have to accept it first: observers must not see it yet."""
    run = find_run(state, event.run_id)

    if run is None or not isinstance(run.next, CheckOutput):
        return event

    message = fast_replace(event.message, text="", provider_data=None)
    return fast_replace(event, message=message, withheld=True)
