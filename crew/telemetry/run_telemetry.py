"""Observes one run for telemetry: turns its events into spans, metrics and log lines, and runs calls in their span."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from time import perf_counter
from traceback import TracebackException
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from crew.interfaces import ModelRequest
from crew.messages import ToolCall, replace_surrogates
from crew.runs.event_text import event_text
from crew.runs.events import Event, RunFailed, RunFinished, ToolReturned
from crew.runs.interfaces import NO_CONTEXT
from crew.runs.state import RunState
from crew.secrets.scrubbing import Scrubber, scrub_and_cut
from crew.telemetry import names
from crew.telemetry.event_table import INTERRUPTED, LOG_ENTRIES, TOOL_RAISED
from crew.telemetry.run_metrics import RunMetrics
from crew.telemetry.span_attributes import instructions_json, messages_json
from crew.telemetry.span_builder import SpanBuilder
from crew.telemetry.span_tree import OpenSpan, SpanWriter

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

MAX_TRACEBACK_CHARS = 8_000
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class RunTelemetry:
    """The run observer of telemetry; parts that are turned off are None.

    A writer without a span builder has a root span that is not recorded: spans that libraries start inside the run
    are then not recorded either.
    """

    def __init__(
        self,
        run_id: str,
        traceparent: str,
        *,
        writer: SpanWriter | None = None,
        spans: SpanBuilder | None = None,
        logger: BoundLogger | None = None,
        metrics: RunMetrics | None = None,
        scrub: Scrubber | None = None,
    ) -> None:
        self.traceparent, self._scrub = traceparent, scrub
        self._run_id, self._writer, self._spans, self._logger, self._metrics = run_id, writer, spans, logger, metrics
        self._root = None if writer is None else OpenSpan(span=writer.root, began=writer.began)
        self._last_event_at, self._last_event_seen = 0.0, perf_counter()
        self._ended = False
        self._agents: dict[str, str] = {}
        self._tool_errors: dict[tuple[str, str], str] = {}

    def __call__(self, event: Event) -> None:
        if self._spans is not None:
            self._spans(event)

        if self._metrics is not None:
            self._metrics(event)

        if self._logger is not None:
            self._log(self._logger, event)

        self._last_event_at, self._last_event_seen = event.at, perf_counter()
        self._agents[event.run_id] = event.agent

        if isinstance(event, RunFinished | RunFailed) and event.run_id == self._run_id:
            self._ended = True

    def _now(self) -> float:
        """The time on the run's clock, without reading that clock: observers must not change how often it is read."""
        return self._last_event_at + perf_counter() - self._last_event_seen if self._last_event_at else 0.0

    # ------------------------------------------------------------------------------------------ log lines

    def _log(self, logger: BoundLogger, event: Event) -> None:
        level = LEVELS[event.severity]

        if not logger.isEnabledFor(level) or not (text := event_text(event)):
            return

        fields = self._log_ids(event.run_id, event.agent)

        if (entry := LOG_ENTRIES.get(type(event))) is None:
            logger.log(level, event.kind, **fields, text=text)
            return

        if isinstance(event, ToolReturned):
            fields |= self._tool_error_type(event)

        logger.log(level, entry.name, **fields, **entry.fields(event), text=text)

    def _tool_error_type(self, event: ToolReturned) -> dict[str, str]:
        """The class of what the tool raised; its message is content that only the model reads."""
        error_type = self._tool_errors.pop((event.run_id, event.result.call_id), "")
        return {"error_type": error_type} if error_type and event.result.outcome != "ok" else {}

    def _log_ids(self, run_id: str, agent: str) -> dict[str, str]:
        ids = {"agent": agent} if agent else {}

        if run_id != self._run_id:
            ids["branch"] = run_id.removeprefix(f"{self._run_id}/")

        if self._spans is not None:
            ids["span_id"] = self._spans.latest_id

        return ids

    # ------------------------------------------------------------------------------------------ calls

    def call_context(self, run_id: str, call: ModelRequest | ToolCall) -> AbstractContextManager[None]:
        """Make the span of this call the current one, so that spans started inside the call are its children."""
        is_silent = self._writer is None and self._logger is None and "structlog" not in sys.modules

        if is_silent and isinstance(call, ToolCall):
            return NO_CONTEXT

        open_span = self._root

        if isinstance(call, ModelRequest) and call.purpose == "summary" and self._metrics is not None:
            self._metrics.summary_requested(run_id, self._last_event_at)

        if self._spans is not None:
            open_span = self._open_span(self._spans, run_id, call)

        return _CallContext(self, self._writer, run_id, call, open_span, self._log_context(run_id, call, open_span))

    def _open_span(self, spans: SpanBuilder, run_id: str, call: ModelRequest | ToolCall) -> OpenSpan | None:
        if isinstance(call, ToolCall):
            return spans.open_tool_span(run_id, call.id)

        if call.purpose == "summary":
            open_span = spans.start_summary(run_id, call, self._last_event_at)  # the event that asked for the summary
        else:
            open_span = spans.start_request(run_id, call.agent, self._now())

        if spans.capture:
            _capture_request(open_span, call)

        return open_span

    def _log_context(self, run_id: str, call: ModelRequest | ToolCall, open_span: OpenSpan | None) -> Mapping[str, str]:
        """The ids that log lines inside the call carry."""
        if self._logger is None and "structlog" not in sys.modules:
            return {}

        ids = {"run_id": self._run_id, **self._log_ids(run_id, self._agents.get(run_id, ""))}

        if isinstance(call, ToolCall):
            ids["tool"] = call.name

        if open_span is not None and self._writer is not None:
            ids["trace_id"], ids["span_id"] = self._writer.ids(open_span.span)

        return ids

    def call_failed(
        self, run_id: str, call: ModelRequest | ToolCall, open_span: OpenSpan | None, error: BaseException
    ) -> None:
        """A call raised. A call that was cancelled, or stopped by Ctrl-C, is not an error."""
        if isinstance(error, asyncio.CancelledError | GeneratorExit | KeyboardInterrupt):
            return

        if isinstance(call, ToolCall):
            if self._logger is not None:
                self._tool_errors[run_id, call.id] = type(error).__name__
                self._log_traceback(self._logger, run_id, call, error)

            if self._spans is not None and open_span is not None:
                open_span.error_type = type(error).__name__

            return

        if self._spans is not None and open_span is not None:
            self._spans.chat_failed(run_id, open_span, error, self._now())

        if self._metrics is not None:
            self._metrics.chat_failed(run_id, error, self._now())

    def _log_traceback(self, logger: BoundLogger, run_id: str, call: ToolCall, error: BaseException) -> None:
        trace = TracebackException(type(error), error, _traceback_of_tool(error), compact=True)

        if len(str(trace)) > MAX_TRACEBACK_CHARS:  # each copy of a message of 100 MB would hold the event loop
            message = scrub_and_cut(self._scrub, str(trace), MAX_TRACEBACK_CHARS // 2)
            text = f"{''.join(trace.stack.format())}{type(error).__name__}: {message}"
        else:
            text = "".join(trace.format()).rstrip()

        text = replace_surrogates(scrub_and_cut(self._scrub, text, MAX_TRACEBACK_CHARS))
        ids = self._log_ids(run_id, self._agents.get(run_id, ""))
        fields = {"tool": call.name, "call": call.id, "error_type": type(error).__name__, "exception": text}
        logger.warning(TOOL_RAISED, **ids, **fields)

    # ------------------------------------------------------------------------------------------ the end

    def close(self, error: BaseException | None, state: RunState | None) -> None:
        """End open spans and record the run's totals; an error of one part does not keep the others from closing."""
        at = self._now()

        with ExitStack() as parts:  # called in reverse order
            if self._logger is not None and error is not None and not self._ended:
                parts.callback(self._logger.info, INTERRUPTED, error_type=type(error).__name__)

            if self._metrics is not None:
                parts.callback(self._metrics.close, error, at)

            if self._spans is not None:
                parts.callback(self._spans.close, error, at)
            elif self._writer is not None:
                parts.callback(self._writer.end, self._writer.root, at)

            if self._metrics is not None and state is not None:
                parts.callback(self._metrics.run_ended, state)

            if self._spans is not None and state is not None:
                parts.callback(self._spans.run_ended, state)


def _traceback_of_tool(error: BaseException) -> TracebackType | None:
    """The traceback without the frames of the engine that called the tool."""
    trace = error.__traceback__

    while trace is not None and trace.tb_next is not None and _is_engine_frame(trace.tb_frame):
        trace = trace.tb_next

    return trace


def _is_engine_frame(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("crew.engine.")


def _capture_request(open_span: OpenSpan, request: ModelRequest) -> None:
    messages, omitted = messages_json(request.messages)
    open_span.span.set_attribute(names.INPUT_MESSAGES, messages)
    open_span.span.set_attribute(names.INSTRUCTIONS, instructions_json(request.instructions))

    if omitted:
        open_span.span.set_attribute(names.OMITTED, omitted)


class _CallContext:
    """Attaches the span of one call, and binds the ids for log lines written inside it."""

    __slots__ = ("_bound", "_call", "_ids", "_open_span", "_run_id", "_telemetry", "_token", "_writer")

    def __init__(
        self,
        telemetry: RunTelemetry,
        writer: SpanWriter | None,
        run_id: str,
        call: ModelRequest | ToolCall,
        open_span: OpenSpan | None,
        ids: Mapping[str, str],
    ) -> None:
        self._telemetry, self._writer, self._run_id, self._call = telemetry, writer, run_id, call
        self._open_span, self._ids = open_span, ids
        self._token: object = None
        self._bound: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        if self._open_span is not None and self._writer is not None:
            self._token = self._writer.attach(self._open_span.span)

        if self._ids:
            from structlog.contextvars import bound_contextvars

            self._bound = bound_contextvars(**self._ids)
            self._bound.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An abandoned coroutine is closed in any context, perhaps one in which these tokens are not valid.
        if kind is GeneratorExit:
            return

        if self._bound is not None:
            self._bound.__exit__(None, None, None)

        if self._token is not None and self._writer is not None:
            self._writer.detach(self._token)

        if error is not None:
            self._telemetry.call_failed(self._run_id, self._call, self._open_span, error)
