"""Draws the spans of a run as text, without a server and independent of exporting and sampling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from crew.agents.crew import Crew
from crew.interfaces import ModelRequest
from crew.messages import ToolCall
from crew.runs.events import Event, Resumed, RunStarted
from crew.runs.state import RunState
from crew.telemetry import names
from crew.telemetry.run_telemetry import RunTelemetry
from crew.telemetry.span_builder import SpanBuilder
from crew.telemetry.span_tree import Attributes, AttributeValue, OpenSpan


@dataclass(slots=True, kw_only=True, eq=False)
class TextSpan:
    """One line of the tree."""

    name: str
    began: float
    ended: float | None = None
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    children: list[TextSpan] = field(default_factory=list)

    def set_attribute(self, key: str, value: AttributeValue, /) -> None:
        """Set one attribute."""
        self.attributes[key] = value

    def set_attributes(self, attributes: Attributes, /) -> None:
        """Set several attributes."""
        self.attributes |= attributes

    def update_name(self, name: str, /) -> None:
        """Replace the name."""
        self.name = name


class Tree:
    """An observer factory: `str(tree)` draws the spans of all runs of the executor that has it in `observers`."""

    def __init__(self) -> None:
        self._runs: list[RunTree] = []

    def observe(self, crew: Crew, state: RunState, *, resumes: bool) -> RunTree:
        """The observer of one run."""
        self._runs.append(RunTree(crew, state, resumes=resumes))
        return self._runs[-1]

    def __str__(self) -> str:
        return "\n".join(line for run in self._runs for line in run.lines())


class RunTree(RunTelemetry):
    """Observes one run for a tree; the root span starts at the first event, by the run's clock."""

    def __init__(self, crew: Crew, state: RunState, *, resumes: bool) -> None:
        super().__init__(state.run_id, "")
        self._crew, self._state, self._resumes = crew, state, resumes
        self._root_line: TextSpan | None = None

    def __call__(self, event: Event) -> None:
        if self._root_line is None:
            self._root_line = TextSpan(name=f"{names.INVOKE_WORKFLOW} {self._crew.name}", began=event.at)
            self._writer = TextSpanWriter(self._root_line)
            self._spans = SpanBuilder(self._writer, self._crew, self._state, capture=False, resumes=self._resumes)

        if isinstance(event, RunStarted | Resumed) and event.traceparent:
            self.traceparent = event.traceparent

        super().__call__(event)

    def _log_context(self, run_id: str, call: ModelRequest | ToolCall, open_span: OpenSpan | None) -> Mapping[str, str]:
        return {}  # log lines carry the ids of exported spans, not of these

    def lines(self) -> Iterator[str]:
        """The tree, and the trace id if the run is exported too."""
        if self._root_line is not None:
            yield from _lines(self._root_line)

        if self.traceparent:
            yield f"trace {self.traceparent[3:35]}"


class TextSpanWriter:
    """A span writer that collects `TextSpan`s; it attaches none, because the current span belongs to the exporter."""

    def __init__(self, root: TextSpan) -> None:
        self.root, self.began = root, root.began
        self.last_span: TextSpan | None = None

    def start(
        self,
        name: str,
        at: float,
        attributes: Attributes,
        *,
        parent: TextSpan,
        client: bool = False,
        links: Sequence[None] = (),
    ) -> TextSpan:
        """Add a line below another one."""
        span = TextSpan(name=name, began=at, attributes=dict(attributes))
        parent.children.append(span)
        return span

    def end(self, span: TextSpan, at: float) -> None:
        """Set the end time."""
        span.ended = at

    def fail(self, span: TextSpan, error_type: str, text: str = "") -> None:
        """Note the error on the line."""
        note = f"failed: {' '.join(text.split())}" if text else error_type.replace("tool_error", "error")

        if note not in span.notes:
            span.notes.append(note)

    def link(self, span: TextSpan, attributes: Attributes) -> None:
        """Links are not drawn."""

    def event(self, span: TextSpan, name: str, at: float, attributes: Attributes) -> None:
        """Note the event on the line."""
        if name in NOTES:
            span.notes.append(NOTES[name](attributes))

    def ids(self, span: TextSpan) -> tuple[str, str]:
        """Lines have no ids."""
        return "", ""

    def attach(self, span: TextSpan) -> None:
        """Nothing becomes current."""

    def detach(self, token: object) -> None:
        """Nothing was attached."""


def _pause_reasons(attributes: Attributes) -> str:
    pauses = attributes["pauses"]
    reasons = [str(pause).partition(" ")[0] for pause in pauses] if isinstance(pauses, Sequence) else []
    return ", ".join("a decision on a call in doubt" if reason == "in_doubt" else reason for reason in reasons)


NOTES: dict[str, Callable[[Attributes], str]] = {
    "crew.retry": lambda attributes: f"retried: {attributes['reason']}",
    "crew.fallback": lambda attributes: f"{attributes['model']} → {attributes['backup']}: {attributes['reason']}",
    "crew.too_long": lambda attributes: "too long, cut further",
    "crew.question": lambda attributes: "asked",
    "crew.paused": lambda attributes: f"waits for {_pause_reasons(attributes)}",
    "crew.limit_reached": lambda attributes: f"limit: {attributes['limit']}",
    "crew.branch_timed_out": lambda attributes: f"timed out after {attributes['seconds']:g} s",
}
"""The span events that are drawn."""


def _lines(span: TextSpan, first: str = "", rest: str = "") -> Iterator[str]:
    yield f"{first}{'  '.join((span.name, _duration_text(span), *_details(span), *_notes(span)))}"

    for number, child in enumerate(span.children):
        last = number == len(span.children) - 1
        yield from _lines(child, f"{rest}{'└─ ' if last else '├─ '}", f"{rest}{'   ' if last else '│  '}")


def _notes(span: TextSpan) -> Iterator[str]:
    """The notes, each once with its number; a run that ended no longer waits."""
    has_ended = span.attributes.get(names.STOP_REASON, "paused") != "paused"

    for note, count in Counter(span.notes).items():
        text = note.replace("waits for", "waited for", 1) if has_ended and note.startswith("waits for") else note
        yield text if count == 1 else f"{text} ({count} times)"


def _duration_text(span: TextSpan) -> str:
    if span.ended is None:
        return "in progress"

    seconds = span.ended - span.began
    return f"{seconds:.2f} s" if seconds >= 1 else f"{max(0.0, seconds) * 1000:.1f} ms"


def _details(span: TextSpan) -> Iterator[str]:
    attributes = span.attributes

    if span.name == names.PRUNE:
        reason = f"{attributes[names.HISTORY_POLICY]}: {attributes[names.PRUNING_REASON]}"
        yield f"{attributes[names.MESSAGES_BEFORE]} → {attributes[names.MESSAGES_AFTER]} messages ({reason})"

    outcome = str(attributes.get(names.BRANCH_OUTCOME) or attributes.get(names.STOP_REASON) or "")

    if outcome and not _is_implied(span, outcome):
        yield outcome

    for read, written, cached, cost in (
        (names.USAGE_INPUT, names.USAGE_OUTPUT, names.USAGE_CACHE_READ, names.USAGE_COST),
        (names.INPUT_TOKENS, names.OUTPUT_TOKENS, names.CACHE_READ_TOKENS, names.COST),
    ):
        if read in attributes:
            from_cache = f" ({attributes[cached]} cached)" if attributes.get(cached) else ""
            yield f"{attributes[read]}{from_cache} → {attributes[written]} tokens"

            if dollars := attributes.get(cost):
                yield f"${dollars:.4f}"


def _is_implied(span: TextSpan, outcome: str) -> bool:
    """Whether the line is clear without its outcome: a note has the failure, or a span inside the run completed."""
    is_noted = outcome == "failed" and any(note.startswith("failed: ") for note in span.notes)
    is_noted = is_noted or (outcome == "paused" and "asked" in span.notes)
    return is_noted or (outcome == "completed" and not span.name.startswith(names.INVOKE_WORKFLOW))
