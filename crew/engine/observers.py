"""Delivers a run's events to its stream and observers, and isolates the run from observers that fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import lru_cache
from types import BuiltinMethodType, FunctionType, MethodType, TracebackType
from typing import TypeGuard

from crew.agents.crew import Crew
from crew.errors import describe
from crew.interfaces import ModelRequest
from crew.messages import ToolCall
from crew.runs.events import Event
from crew.runs.interfaces import (
    NO_CONTEXT,
    Observer,
    ObserverFactory,
    RunObserver,
)
from crew.runs.state import RunState
from crew.secrets.scrubbing import Scrubber, scrub_value

log = logging.getLogger("crew")

OBSERVER_ERRORS = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)
"""What an observer may raise. It is never awaited, so a CancelledError comes from the observer, not from the run."""


class Observers:
    """Publishes each event to the stream and to every observer; disables an observer that raises, with one warning."""

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
        # Tuples are replaced, never mutated: an observer may be disabled while another one handles the same event.
        self._active = tuple(observers)
        self._run_observers: tuple[RunObserver, ...] = tuple(filter(_is_run_observer, observers))

    def __call__(self, event: Event) -> None:
        self._publish(event)

        for observer in self._active:
            try:
                observer(event)
            except OBSERVER_ERRORS as error:  # the observer boundary: observers never change or break a run
                self.disable(observer, error)

    def call_context(self, run_id: str, call: ModelRequest | ToolCall) -> AbstractContextManager[None]:
        """The contexts of all run observers, as one."""
        return _CallContexts(self, self._run_observers, run_id, call) if self._run_observers else NO_CONTEXT

    def close(self, error: BaseException | None, state: RunState) -> None:
        """Close every run observer that is still active."""
        for observer in self._run_observers:
            try:
                observer.close(error, state)
            except OBSERVER_ERRORS as raised:  # the observer boundary: observers never change or break a run
                self._warn(observer, raised)

        self._active = self._run_observers = ()

    def disable(self, observer: Observer, error: BaseException) -> None:
        """Stop calling an observer that raised, and close it."""
        if observer not in self._active:
            return

        self._active = tuple(other for other in self._active if other is not observer)
        self._run_observers = tuple(other for other in self._run_observers if other is not observer)
        self._warn(observer, error)

        if _is_run_observer(observer):
            with suppress(*OBSERVER_ERRORS):  # the observer boundary; the warning was logged for the first error
                observer.close(error, None)

    def _warn(self, observer: Observer, error: BaseException) -> None:
        named = observer if isinstance(observer, FunctionType | MethodType | BuiltinMethodType) else type(observer)
        text = scrub_value(self._scrub, describe(error))

        with suppress(Exception):  # the failing observer may be a log handler
            log.warning("Observer %s failed and is disabled for run %s: %s", named.__qualname__, self._run_id, text)


def observers_for_run(
    observers: Sequence[Observer | ObserverFactory], crew: Crew, state: RunState, *, resumes: bool
) -> list[Observer]:
    """The observers of one run; each factory makes a new one."""
    found: list[Observer] = []

    for observer in observers:
        try:
            if _is_observer_factory(observer):
                found.append(observer.observe(crew, state, resumes=resumes))
            elif callable(observer):
                found.append(observer)
        except OBSERVER_ERRORS as error:  # the observer boundary: observers never change or break a run
            log.warning("An observer can't observe run %s: %s", state.run_id, describe(error))

    return found


# Python 3.11 takes 20 µs to check an instance against a Protocol, and these checks are made for every run.


@lru_cache(maxsize=1_000)
def implements(kind: type, protocol: type) -> bool:
    """Whether a class has the methods of a Protocol."""
    return issubclass(kind, protocol)


def _is_run_observer(observer: Observer) -> TypeGuard[RunObserver]:
    return implements(type(observer), RunObserver)


def _is_observer_factory(observer: Observer | ObserverFactory) -> TypeGuard[ObserverFactory]:
    return implements(type(observer), ObserverFactory)


class _CallContexts:
    """Enters the call contexts of all run observers; an error of one disables that observer and goes no further."""

    __slots__ = ("_call", "_entered", "_observers", "_run_id", "_run_observers")

    def __init__(
        self,
        observers: Observers,
        run_observers: tuple[RunObserver, ...],
        run_id: str,
        call: ModelRequest | ToolCall,
    ) -> None:
        self._observers, self._run_observers, self._run_id, self._call = observers, run_observers, run_id, call
        self._entered: list[tuple[RunObserver, AbstractContextManager[None]]] = []

    def __enter__(self) -> None:
        for observer in self._run_observers:
            try:
                context = observer.call_context(self._run_id, self._call)
                context.__enter__()
                self._entered.append((observer, context))
            except OBSERVER_ERRORS as error:  # the observer boundary: observers never change or break a run
                self._observers.disable(observer, error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for observer, context in reversed(self._entered):
            try:
                context.__exit__(kind, error, trace)
            except OBSERVER_ERRORS as raised:  # the observer boundary: observers never change or break a run
                self._observers.disable(observer, raised)
