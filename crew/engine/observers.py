"""Those who watch a run: told of every event, let in around calls, told when it is over; and harmless."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from types import TracebackType
from typing import Any

from crew.agents.crew import Crew
from crew.errors import describe
from crew.interfaces import ModelRequest
from crew.messages import ToolCall
from crew.runs.events import Event
from crew.runs.interfaces import Observer
from crew.runs.state import RunState
from crew.secrets.scrubbing import Scrubber, scrub_value

log = logging.getLogger("crew")

CallContext = Callable[[str, ModelRequest | ToolCall], AbstractContextManager[None]]

OBSERVER_ERRORS = (Exception, asyncio.CancelledError)
"""What an observer may come to: it is never awaited, so that a cancellation is of its own making."""

_NO_CONTEXT: AbstractContextManager[None] = nullcontext()


def no_call_context(run_id: str, what: ModelRequest | ToolCall) -> AbstractContextManager[None]:
    """Around a call that nobody looks at."""
    return _NO_CONTEXT


class Observers:
    """Publishes to the stream and to those who watch; one that fails is switched off for this run, with one warning.

    Beside being called, an observer may have `call_context(run_id, request or call)`, a context in which the model is
    asked
    or the tool called, `left(state)`, told how the run stands when it is over here, and `close(error)`, called once
    after that, on whichever way. One that has `observe(crew, state, resumes=…)` makes an observer of each run instead.
    """

    __slots__ = ("_active", "_publish", "_run_id", "_run_observers", "_scrub")

    def __init__(
        self,
        run_id: str,
        observers: Sequence[Observer],
        publish: Callable[[Event], None],
        scrub: Scrubber | None = None,
    ) -> None:
        self._run_id, self._scrub = run_id, scrub
        self._publish = publish
        # Replaced, never changed: one may be switched off while the others are told.
        self._active = tuple(observers)
        self._run_observers = tuple(observer for observer in observers if hasattr(observer, "call_context"))

    def __call__(self, event: Event) -> None:
        self._publish(event)

        for observer in self._active:
            try:
                observer(event)
            except OBSERVER_ERRORS as error:  # the observer boundary: watching never changes or breaks a run
                self._disable(observer, error)

    def call_context(self, run_id: str, what: ModelRequest | ToolCall) -> AbstractContextManager[None]:
        """The contexts of all who want to be around this call."""
        return _CallContexts(self, run_id, what) if self._run_observers else _NO_CONTEXT

    def close(self, error: BaseException | None, state: RunState) -> None:
        """The run is over, and left in this state."""
        for observer in self._active:
            if raised := _close_observer(observer, error, state):
                self._warn(observer, raised)

        self._active = self._run_observers = ()

    def _disable(self, observer: Observer, error: BaseException) -> None:
        if observer in self._active:
            self._active = tuple(other for other in self._active if other is not observer)
            self._run_observers = tuple(other for other in self._run_observers if other is not observer)
            self._warn(observer, error)
            _close_observer(observer, error)

    def _warn(self, observer: Observer, error: BaseException) -> None:
        name = getattr(observer, "__qualname__", type(observer).__qualname__)
        words = scrub_value(self._scrub, describe(error))

        with suppress(Exception):  # a handler may be the very thing that fails
            log.warning("the observer %s failed and is switched off for run %s: %s", name, self._run_id, words)


def observers_for_run(observers: Sequence[Observer], crew: Crew, state: RunState, *, resumes: bool) -> list[Observer]:
    """Those who watch this run: an observer that has `observe(crew, state, resumes=…)` makes one for each run."""
    found: list[Observer] = []

    for observer in observers:
        try:
            make = getattr(observer, "observe", None)
            found.append(observer if make is None else make(crew, state, resumes=resumes))
        except Exception as error:  # the observer boundary: watching never changes or breaks a run
            log.warning("an observer can't watch run %s: %s", state.run_id, describe(error))

    return found


def _close_observer(
    observer: Observer, error: BaseException | None, state: RunState | None = None
) -> BaseException | None:
    """Tell it that the run is over for it, and return what it raised first; it is closed whatever it raised before."""
    raised: list[BaseException] = []

    for name, told in (("left", state), ("close", error)):
        try:
            if (name == "close" or state is not None) and (tell := getattr(observer, name, None)):
                tell(told)
        except OBSERVER_ERRORS as one:  # the observer boundary: watching never changes or breaks a run
            raised.append(one)

    return raised[0] if raised else None


class _CallContexts:
    """Around one call, everybody's context; what fails on the way in or out stays here."""

    __slots__ = ("_entered", "_of", "_run_id", "_what")

    def __init__(self, of: Observers, run_id: str, what: ModelRequest | ToolCall) -> None:
        self._of, self._run_id, self._what = of, run_id, what
        self._entered: list[tuple[Any, AbstractContextManager[None]]] = []

    def __enter__(self) -> None:
        for observer in self._of._run_observers:
            try:
                context = observer.call_context(self._run_id, self._what)
                context.__enter__()
                self._entered.append((observer, context))
            except OBSERVER_ERRORS as error:  # the observer boundary: watching never changes or breaks a run
                self._of._disable(observer, error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for observer, context in reversed(self._entered):
            try:
                context.__exit__(kind, error, trace)
            except OBSERVER_ERRORS as raised:  # the observer boundary: watching never changes or breaks a run
                self._of._disable(observer, raised)
