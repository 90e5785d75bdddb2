"""The pen that writes spans of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from crew.telemetry.span_tree import Attributes

if TYPE_CHECKING:  # loaded with the first run that is traced, not with this package
    from opentelemetry.trace import Link, Span, Tracer


def to_nanoseconds(at: float) -> int:
    """A time of an event as spans count it."""
    return int(at * 1_000_000) * 1_000


class OTelSpanWriter:
    """Spans go to a tracer; whatever is current around here belongs to somebody else, and is never their parent."""

    def __init__(self, tracer: Tracer, root: Span, began: float) -> None:
        from opentelemetry import context, trace

        self._api, self._context = trace, context
        self._tracer = tracer
        self.root, self.began = root, began
        self.last_span: Any = None

    @property
    def traceparent(self) -> str:
        """The root, as the W3C writes it."""
        context = self.root.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def start(
        self,
        name: str,
        at: float,
        told: Attributes,
        *,
        parent: Span,
        client: bool = False,
        links: Sequence[Link] = (),
    ) -> Span:
        """A span under another one."""
        kind = self._api.SpanKind.CLIENT if client else self._api.SpanKind.INTERNAL
        context = self._api.set_span_in_context(parent, {})  # type: ignore[arg-type]
        span = self._tracer.start_span(
            name, context=context, kind=kind, attributes=told, links=links, start_time=to_nanoseconds(at)
        )
        self.last_span = span
        return span

    def end(self, span: Span, at: float) -> None:
        """It has ended."""
        self.last_span = span
        span.end(end_time=to_nanoseconds(at))

    def fail(self, span: Span, kind: str, text: str = "") -> None:
        """It came to an error."""
        span.set_attribute("error.type", kind)
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, text or None))

    def link(self, span: Span, told: Attributes) -> Link:
        """A pointer to another span."""
        return self._api.Link(span.get_span_context(), told)

    def event(self, span: Span, name: str, at: float, told: Attributes) -> None:
        """Something that happened within a span."""
        self.last_span = span
        span.add_event(name, told, timestamp=to_nanoseconds(at))

    def ids(self, span: Span) -> tuple[str, str]:
        """The ids by which a backend finds it."""
        context = span.get_span_context()
        return f"{context.trace_id:032x}", f"{context.span_id:016x}"

    def attach(self, span: Span) -> Any:
        """What starts from here on is below it."""
        return self._context.attach(self._api.set_span_in_context(span))

    def detach(self, token: Any) -> None:
        """What was current before is current again."""
        self._context.detach(token)
