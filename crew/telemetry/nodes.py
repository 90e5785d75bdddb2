"""The open spans of one run, as a tree: for the run and each of its branches, who works and on what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # loaded with the first run that is traced, not with this package
    from opentelemetry.trace import Link, Span, Tracer

Attributes = Mapping[str, Any]


def nanoseconds(at: float) -> int:
    """A time of an event as spans count it."""
    return int(at * 1_000_000) * 1_000


@dataclass(slots=True, kw_only=True, eq=False)
class Open:
    """A span that has not ended."""

    span: Span
    began: float
    name: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """One run or branch: the span that it stands under, its agent's, and those of what is under way."""

    run_id: str
    base: Span
    agent: Open | None = None
    chat: Open | None = None
    group: Open | None = None
    compact: Open | None = None
    tools: dict[str, Open] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    last: float = 0.0
    before: float = 0.0

    @property
    def idle(self) -> bool:
        return self.chat is None and not self.tools and self.group is None

    @property
    def innermost(self) -> Span:
        return self.agent.span if self.agent is not None else self.base

    def take(self) -> Iterator[Open]:
        """Everything that is open here, the inner ones first; none of it is open here any more."""
        yield from (
            open for open in (self.chat, self.compact, *self.tools.values(), self.agent, self.group) if open is not None
        )
        self.chat = self.compact = self.agent = self.group = None
        self.tools.clear()


class Pen:
    """Starts and ends spans with parents and times of their own; nothing is ever attached here."""

    def __init__(self, tracer: Tracer) -> None:
        from opentelemetry import trace

        self._api = trace
        self._tracer = tracer
        self.latest: Span | None = None

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
        """A span under another one."""
        kind = self._api.SpanKind.CLIENT if client else self._api.SpanKind.INTERNAL
        # An empty context: whatever is current here belongs to somebody else.
        context = self._api.set_span_in_context(parent, {})  # type: ignore[arg-type]
        self.latest = self._tracer.start_span(
            name, context=context, kind=kind, attributes=attributes, links=links, start_time=nanoseconds(at)
        )
        return self.latest

    def end(self, span: Span, at: float) -> None:
        """It has ended."""
        self.latest = span
        span.end(end_time=nanoseconds(at))

    def fail(self, span: Span, kind: str, text: str = "") -> None:
        """It came to an error."""
        span.set_attribute("error.type", kind)
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, text or None))

    def link(self, span: Span, attributes: Attributes) -> Link:
        """A pointer to another span."""
        return self._api.Link(span.get_span_context(), attributes)

    def event(self, span: Span, name: str, at: float, attributes: Attributes) -> None:
        """Something that happened within a span."""
        self.latest = span
        span.add_event(name, attributes, timestamp=nanoseconds(at))


@cache
def _contexts() -> tuple[Any, Any, Any]:
    from opentelemetry import context, trace

    return context.attach, context.detach, trace.set_span_in_context


def attach(span: Span) -> Any:
    """Make a span the current one; returns what `detach` takes."""
    attach, _, within = _contexts()
    return attach(within(span))


def detach(token: Any) -> None:
    """What was current before is current again."""
    _contexts()[1](token)
