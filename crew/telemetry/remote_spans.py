"""Spans of work that another process does for a run, in the trace of that run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from crew.errors import describe
from crew.secrets.patterns import redact
from crew.telemetry import names
from crew.telemetry.executor_telemetry import Telemetry

log = logging.getLogger("crew")


@contextmanager
def remote_span(
    telemetry: Telemetry, name: str, traceparent: str, run_id: str, attributes: Mapping[str, str | int]
) -> Iterator[None]:
    """A span around work for a run whose W3C traceparent is known; spans started inside are its children.

    The client of the run exports the spans of its events; this one adds where the work was done, and carries no
    `gen_ai` attributes, so that nothing is counted twice. Without a traceparent or a tracer there is no span.
    """
    try:
        tracer = telemetry.tracer() if traceparent else None
    except Exception as error:  # the observer boundary: tracer providers are user code
        log.warning("%s of run %s is not traced: %s", name, run_id, redact(describe(error)))
        tracer = None

    if tracer is None:
        yield
        return

    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    _, trace_id, span_id, flags = traceparent.split("-")
    parent = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    context = set_span_in_context(NonRecordingSpan(parent))

    with tracer.start_as_current_span(name, context=context, attributes={names.RUN_ID: run_id, **attributes}):
        yield
