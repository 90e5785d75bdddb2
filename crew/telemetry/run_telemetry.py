"""One run as telemetry sees it: its events become spans, figures and lines, and its calls run inside their span."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from time import perf_counter
from types import TracebackType
from typing import Any

from crew.interfaces import ModelRequest
from crew.messages import ToolCall
from crew.runs.events import Event, ToolReturned
from crew.runs.state import RunState
from crew.telemetry import names
from crew.telemetry.event_table import LINES, adjusted_level
from crew.telemetry.run_metrics import RunMetrics
from crew.telemetry.span_attributes import instructions_json, messages_json
from crew.telemetry.span_builder import SpanBuilder
from crew.telemetry.span_tree import OpenSpan, SpanWriter


class RunTelemetry:
    """Watches one run; the parts that nobody asked for are None.

    A pen without spans has a root that is not recorded: what is started within the run is not recorded either.
    """

    def __init__(
        self,
        run_id: str,
        trace: str,
        *,
        pen: SpanWriter | None = None,
        spans: SpanBuilder | None = None,
        lines: Any = None,
        measures: RunMetrics | None = None,
        before_asking: Callable[[], None] | None = None,
    ) -> None:
        self.trace = trace
        self._run_id, self._pen, self._spans, self._lines, self._measures = run_id, pen, spans, lines, measures
        self._root = None if pen is None else OpenSpan(span=pen.root, began=pen.began)
        self._last, self._seen = 0.0, perf_counter()
        self._ended, self._before_asking = False, before_asking
        self._agents: dict[str, str] = {}
        self._errors: dict[tuple[str, str], str] = {}

    def __call__(self, event: Event) -> None:
        if self._spans is not None:
            self._spans(event)

        if self._measures is not None:
            self._measures(event)

        if self._lines is not None:
            self._log(event)

        self._last, self._seen = event.at, perf_counter()
        self._agents[event.run_id] = event.agent

        if event.kind in ("run_finished", "run_failed") and event.run_id == self._run_id:
            self._ended = True

    def _now(self) -> float:
        """The run's time, without asking its clock: that is the run's, and a watched run must read it as often."""
        return self._last + perf_counter() - self._seen if self._last else 0.0

    def _log(self, event: Event) -> None:
        if (line := LINES.get(type(event))) is None:
            return

        name, fields = line
        level = adjusted_level(event, self._run_id) or names.LOG_EVENTS[name][0]

        if self._lines.isEnabledFor(LEVELS[level]):
            told = self._ids(event.run_id, event.agent) | fields(event)
            getattr(self._lines, level)(name, **told, **self._error_of(event))

    def _error_of(self, event: Event) -> dict[str, str]:
        """What a tool raised; its words are the model's, its class is anybody's."""
        if not isinstance(event, ToolReturned):
            return {}

        kind = self._errors.pop((event.run_id, event.result.call_id), "")
        return {"error_type": kind} if kind and event.result.outcome == "error" else {}

    def _ids(self, run_id: str, agent: str) -> dict[str, Any]:
        told: dict[str, Any] = {"agent": agent} if agent else {}

        if run_id != self._run_id:
            told["branch"] = run_id.removeprefix(f"{self._run_id}/")

        if self._spans is not None:
            told["span_id"] = self._spans.latest_id

        return told

    def call_context(self, run_id: str, what: ModelRequest | ToolCall) -> AbstractContextManager[None]:
        """The call runs inside its span, so that what it starts is below it."""
        if isinstance(what, ModelRequest):
            if self._before_asking is not None:
                self._before_asking()
        elif self._pen is None and self._lines is None and "structlog" not in sys.modules:
            return NO_CONTEXT  # nobody to tell what a tool does

        spans, open = self._spans, self._root
        call_id = what.id if isinstance(what, ToolCall) else None

        if isinstance(what, ModelRequest) and what.purpose == "summary" and self._measures is not None:
            self._measures.summary_requested(run_id, self._last)

        if spans is not None:
            open = self._open_span(spans, run_id, what)

        return _CallContext(self, self._pen, run_id, call_id, open, self._log_context(run_id, what, open))

    def _open_span(self, spans: SpanBuilder, run_id: str, what: ModelRequest | ToolCall) -> OpenSpan | None:
        if isinstance(what, ToolCall):
            return spans.open_tool_span(run_id, what.id)

        if what.purpose == "summary":
            open = spans.start_summary(run_id, what, self._last)  # which led to it, a moment ago
        else:
            open = spans.start_request(run_id, what.agent, self._now())

        if spans.capture:
            _capture_request(open, what)

        return open

    def _log_context(self, run_id: str, what: ModelRequest | ToolCall, open: OpenSpan | None) -> dict[str, Any]:
        if self._lines is None and "structlog" not in sys.modules:
            return {}

        told = {"run_id": self._run_id, **self._ids(run_id, self._agents.get(run_id, ""))}

        if isinstance(what, ToolCall):
            told["tool"] = what.name

        if open is not None and self._pen is not None:
            told["trace_id"], told["span_id"] = self._pen.ids(open.span)

        return told

    def call_failed(self, run_id: str, call_id: str | None, open: OpenSpan | None, error: BaseException) -> None:
        """A call raised; cancellation is not an error of its own."""
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            return

        if call_id is not None:
            if self._lines is not None:
                self._errors[run_id, call_id] = type(error).__name__

            if self._spans is not None and open is not None:
                open.details["error"] = type(error).__name__

            return

        if self._spans is not None and open is not None:
            self._spans.chat_failed(run_id, open, error, self._now())

        if self._measures is not None:
            self._measures.chat_failed(run_id, error, self._now())

    def close(self, error: BaseException | None, state: RunState | None) -> None:
        """End open spans and record the run's totals; an error of one part does not keep the others from closing."""
        at = self._now()

        with ExitStack() as parts:  # called in reverse order
            if self._lines is not None and error is not None and not self._ended:
                parts.callback(self._lines.info, "run.interrupted", error_type=type(error).__name__)

            if self._measures is not None:
                parts.callback(self._measures.close, error, at)

            if self._spans is not None:
                parts.callback(self._spans.close, error, at)
            elif self._pen is not None:
                parts.callback(self._pen.end, self._pen.root, at)

            if self._measures is not None and state is not None:
                parts.callback(self._measures.run_ended, state)

            if self._spans is not None and state is not None:
                parts.callback(self._spans.run_ended, state)


def _capture_request(open: OpenSpan, request: ModelRequest) -> None:
    shown, omitted = messages_json(request.messages)
    told = {names.INPUT_MESSAGES: shown, names.INSTRUCTIONS: instructions_json(request.instructions)}
    open.span.set_attributes(told | ({names.OMITTED: omitted} if omitted else {}))


NO_CONTEXT: AbstractContextManager[None] = nullcontext()

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class _CallContext:
    """Attaches a span, and the ids for whoever logs inside, for the length of one call."""

    __slots__ = ("_bound", "_call_id", "_logged", "_open", "_pen", "_run_id", "_token", "_watch")

    def __init__(
        self,
        watch: RunTelemetry,
        pen: SpanWriter | None,
        run_id: str,
        call_id: str | None,
        open: OpenSpan | None,
        bound: dict[str, Any],
    ) -> None:
        self._watch, self._pen, self._run_id, self._call_id = watch, pen, run_id, call_id
        self._open, self._bound = open, bound
        self._token: Any = None
        self._logged: AbstractContextManager[Any] | None = None

    def __enter__(self) -> None:
        if self._open is not None and self._pen is not None:
            self._token = self._pen.attach(self._open.span)

        if self._bound:
            from structlog.contextvars import bound_contextvars

            self._logged = bound_contextvars(**self._bound)
            self._logged.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Thrown into a coroutine that nobody awaits any more, maybe from a context that is not ours to restore.
        if kind is GeneratorExit:
            return

        if self._logged is not None:
            self._logged.__exit__(None, None, None)

        if self._token is not None and self._pen is not None:
            self._pen.detach(self._token)

        if error is not None:
            self._watch.call_failed(self._run_id, self._call_id, self._open, error)
