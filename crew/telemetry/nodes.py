"""The open spans of one run, as a tree: for the run and each of its branches, who works and on what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from crew.messages import ToolCall

Attributes = Mapping[str, Any]

MOMENT = 2e-6
"""What has no length of its own is given this one, of which a microsecond is left when it is cut to those.

Backends take a span of no length for a broken one.
"""


class Span(Protocol):
    """What is started, told things, and ended."""

    def set_attribute(self, key: str, value: Any, /) -> None: ...

    def set_attributes(self, attributes: Attributes, /) -> None: ...

    def update_name(self, name: str, /) -> None: ...


class Pen(Protocol):
    """Starts and ends spans, with parents and times of their own; `latest` is the one that it wrote of last."""

    root: Any
    began: float
    latest: Any

    def start(
        self, name: str, at: float, told: Attributes, *, parent: Any, client: bool = False, links: Sequence[Any] = ()
    ) -> Any: ...

    def end(self, span: Any, at: float) -> None: ...

    def fail(self, span: Any, kind: str, text: str = "") -> None: ...

    def link(self, span: Any, told: Attributes) -> Any: ...

    def event(self, span: Any, name: str, at: float, told: Attributes) -> None: ...

    def ids(self, span: Any) -> tuple[str, str]:
        """The span's trace and its own id."""

    def attach(self, span: Any) -> Any:
        """Make it the current one; returns what `detach` takes."""

    def detach(self, token: Any) -> None: ...


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
    summary: Open | None = None
    tools: dict[str, Open] = field(default_factory=dict)
    calls: dict[str, ToolCall] = field(default_factory=dict)
    links: list[Any] = field(default_factory=list)
    last: float = 0.0
    before: float = 0.0
    failed: bool = False

    @property
    def idle(self) -> bool:
        return self.chat is None and self.compact is None and not self.tools and self.group is None

    @property
    def innermost(self) -> Span:
        return self.agent.span if self.agent is not None else self.base

    @property
    def asking(self) -> Span:
        """The question that is under way, if one is."""
        asked = self.chat or self.summary
        return asked.span if asked is not None else self.innermost

    def call(self, id: str, name: str) -> ToolCall:
        """The call of this id, with its arguments where those may be told."""
        return self.calls.get(id) or ToolCall(id=id, name=name, arguments="")

    def moment(self, at: float) -> float:
        """When something that ends now and takes no time began."""
        return max(self.agent.began, at - MOMENT) if self.agent is not None else at - MOMENT

    def take(self) -> Iterator[Open]:
        """Everything that is open here, the inner ones first; none of it is open here any more."""
        found = (self.chat, self.summary, self.compact, *self.tools.values(), self.agent, self.group)
        yield from (open for open in found if open is not None)
        self.chat = self.summary = self.compact = self.agent = self.group = None
        self.tools.clear()
