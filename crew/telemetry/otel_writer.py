"""Writes spans to an OpenTelemetry tracer."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Token
from typing import TYPE_CHECKING

from crew.telemetry.span_tree import Attributes

if TYPE_CHECKING:  # imported with the first traced run, not with this package
    from opentelemetry.trace import Link, Span, Tracer


def to_nanoseconds(at: float) -> int:
    """The time of an event in the unit of spans."""
    return int(at * 1_000_000) * 1_000


class OTelSpanWriter:
    """A span writer for a tracer; parents are always explicit, because the current span may be another library's."""

    def __init__(self, tracer: Tracer, root: Span, began: float) -> None:
        from opentelemetry import context, trace

        self._api, self._context = trace, context
        self._tracer = tracer
        self.root, self.began = root, began
        self.last_span: Span | None = None

    @property
    def traceparent(self) -> str:
        """The root span in the W3C format."""
        context = self.root.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def start(
        self,
        name: str,
        at: float,
        attributes: Attributes,
        *,
        parent: Span,
        client: bool = False,
        links: Sequence[Link] = (),
    ) -> Span:
        """Start a span below `parent`."""
        kind = self._api.SpanKind.CLIENT if client else self._api.SpanKind.INTERNAL
        context = self._api.set_span_in_context(parent, {})  # type: ignore[arg-type]
        span = self._tracer.start_span(
            name, context=context, kind=kind, attributes=attributes, links=links, start_time=to_nanoseconds(at)
        )
        self.last_span = span
        return span

    def end(self, span: Span, at: float) -> None:
        """End the span."""
        self.last_span = span
        span.end(end_time=to_nanoseconds(at))

    def fail(self, span: Span, error_type: str, text: str = "") -> None:
        """Mark the span as failed."""
        span.set_attribute("error.type", error_type)
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, text or None))

    def link(self, span: Span, attributes: Attributes) -> Link:
        """A link to the span."""
        return self._api.Link(span.get_span_context(), attributes)

    def event(self, span: Span, name: str, at: float, attributes: Attributes) -> None:
        """Add an event to the span."""
        self.last_span = span
        span.add_event(name, attributes, timestamp=to_nanoseconds(at))

    def ids(self, span: Span) -> tuple[str, str]:
        """The trace id and the span id in hexadecimal."""
        context = span.get_span_context()
        return f"{context.trace_id:032x}", f"{context.span_id:016x}"

    def attach(self, span: Span) -> object:
        """Make the span the current one."""
        return self._context.attach(self._api.set_span_in_context(span))

    def detach(self, token: object) -> None:
        """Make the previously current span current again."""
        if isinstance(token, Token):
            self._context.detach(token)
