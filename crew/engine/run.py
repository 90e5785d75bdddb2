"""One run under way: its newest state, and the one way in which it moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from crew.change import changed, put
from crew.engine.concurrency import wait_until_done
from crew.engine.observers import CallContext, no_call_context
from crew.errors import CrewError, StoreError, describe
from crew.history.tokens import ESTIMATOR
from crew.history.view import View
from crew.interfaces import Delta, OnDelta, Provider, TokenCounter
from crew.runs.events import Event, Replied, RunStarted, TextDelta, ToolProgress
from crew.runs.interfaces import RunStore, commits_immediately
from crew.runs.state import Finished, RunState
from crew.secrets.scrubbing import ScrubbedDeltas, Scrubber, scrub_value
from crew.transitions.advance import InputEvent, advance, find_run
from crew.transitions.plan import Plan


@dataclass(slots=True, kw_only=True, eq=False)
class ActiveRun:
    """A run and the doors through which its steps are performed.

    `around` is entered around every call of a model or tool, `scrub` takes out what must not enter a message, `closed`
    is called when the run is over here, on whichever way, with the state in which it is left.
    """

    plan: Plan
    state: RunState
    store: RunStore
    clock: Callable[[], float]
    observers: Callable[[Event], None]
    provider_for: Callable[[str], Provider]
    resolve: Callable[[str | Provider], Provider]
    backup_for: Callable[[str], Provider | None] = lambda agent: None
    meter: Callable[[str | Provider], TokenCounter] = lambda model: ESTIMATOR
    version: int = 0
    deps: Any = None
    wants_deltas: bool = False
    around: CallContext = no_call_context
    scrubber: Scrubber | None = None
    closed: Callable[[BaseException | None, RunState], None] = lambda error, state: None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _uncommitted: list[Event] = field(default_factory=list)
    _deferred: list[Event] = field(default_factory=list)

    _sequence: int = field(init=False)

    def __post_init__(self) -> None:
        self._sequence = self.state.sequence

    def provider(self, state: RunState) -> Provider:
        """Who answers the agent whose turn it is: its model, or the backup that took over."""
        if state.views.get(state.agent, View()).active_model == "backup" and (backup := self.backup_for(state.agent)):
            return backup

        return self.provider_for(state.agent)

    def token_counter(self, state: RunState) -> TokenCounter:
        """What counts the tokens of this agent's messages."""
        return self.meter(self.plan.agents[state.agent].model)

    async def record(self, event: InputEvent) -> None:
        """Advance, commit, tell."""
        async with self._lock:
            where = find_run(self.state, event.run_id)

            if where is None or isinstance(where.next, Finished):
                return  # a branch that was cut off while it worked: nobody waits for this any more

            event = self._stamp(event, where)
            state, told = advance(self.plan, self.state, event)
            events = (*self._uncommitted, event, *told)

            try:
                await self._commit(events, state)
            finally:
                # What was told while the commit was under way comes after it, in number and in time.
                if self.state is state:
                    for happened in (event, *told):
                        self.observers(happened)

                self._emit_deferred()

    async def _commit(self, events: tuple[Event, ...], state: RunState) -> None:
        commit = self.store.commit(self.state.run_id, self.version, events, state)

        try:
            # A commit that never suspends can't be cancelled half-way, so it needs no task.
            await (commit if commits_immediately(self.store) else self._finish_commit(commit, state))
        except CrewError:
            raise
        except Exception as error:  # a store may be anybody's code: what it raises is told from what a step raises
            raise StoreError(self.state.run_id, f"The store failed: {describe(error)}") from error

        self._accept(state)

    async def _finish_commit(self, committing: Coroutine[Any, Any, None], state: RunState) -> None:
        """A commit is not left half-way: a cancellation goes on once it is through."""
        commit = asyncio.ensure_future(committing)

        try:
            await asyncio.shield(commit)
        except asyncio.CancelledError:
            await wait_until_done(commit)

            if commit.exception() is None:
                self._accept(state)

            raise

    def _accept(self, state: RunState) -> None:
        self.state, self.version = state, self.version + 1
        self._sequence = state.sequence
        self._uncommitted.clear()

    def _emit_deferred(self) -> None:
        while self._deferred:
            self._emit_now(self._deferred.pop(0))

    def emit(self, event: Event) -> None:
        """Tell of what moves nothing; it is stored with the next step, unless it is only a piece of one."""
        if self._lock.locked():
            self._deferred.append(event)
        else:
            self._emit_now(event)

    def _emit_now(self, event: Event) -> None:
        where = find_run(self.state, event.run_id)
        event = self._stamp(event, where or self.state)

        if not isinstance(event, TextDelta | ToolProgress):
            self._uncommitted.append(event)

        self.observers(event)

    def on_delta(self, run_id: str) -> OnDelta | None:
        """Where the pieces of a reply go; None where nobody asked for them."""
        if not self.wants_deltas:
            return None

        def tell(delta: Delta) -> None:
            self.emit(TextDelta(run_id=run_id, text=delta.text, channel=delta.kind))

        return tell if self.scrubber is None else ScrubbedDeltas(self.scrubber, tell)

    def _stamp(self, event: Any, where: RunState) -> Any:
        """The event with its number and time; what is born with it is named after its place in the transcript.

        Not after the event's number: that counts pieces of text and retries too, and a run that is watched, resumed
        or unlucky must come to the same messages.
        """
        self._sequence += 1
        now, place = self.clock(), len(where.transcript)
        event = changed(
            scrub_value(self.scrubber, event), sequence=self._sequence, at=now, agent=event.agent or where.agent
        )

        # The event is still ours alone.
        if isinstance(event, Replied):
            put(event, message=changed(event.message, id=f"{event.run_id}:{place}", time=now))
        elif isinstance(event, RunStarted):
            named = (
                m if m.id else changed(m, id=f"{event.run_id}:{place + i}", time=m.time or now)
                for i, m in enumerate(event.messages)
            )
            put(event, messages=tuple(named))

        return event
