"""A run's spans as text: for a terminal, with no server, and whatever is exported or sampled elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from crew.agents.crew import Crew
from crew.runs.events import Event
from crew.runs.state import RunState
from crew.telemetry import names
from crew.telemetry.run_telemetry import RunTelemetry
from crew.telemetry.span_builder import SpanBuilder
from crew.telemetry.span_tree import Attributes


@dataclass(slots=True, kw_only=True, eq=False)
class TextSpan:
    """One line of the tree: a span, with what was told of it."""

    name: str
    began: float
    ended: float | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    children: list[TextSpan] = field(default_factory=list)

    def set_attribute(self, key: str, value: Any, /) -> None:
        """One fact more."""
        self.attributes[key] = value

    def set_attributes(self, attributes: Attributes, /) -> None:
        """Some facts more."""
        self.attributes |= attributes

    def update_name(self, name: str, /) -> None:
        """It is known by now what it is."""
        self.name = name


class Tree:
    """The spans of all runs of an executor that has this among its `observers`; its text is there at any time."""

    def __init__(self) -> None:
        self._runs: list[RunTree] = []

    def observe(self, crew: Crew, state: RunState, *, resumes: bool) -> RunTree:
        """What watches one run."""
        self._runs.append(RunTree(crew, state, resumes=resumes))
        return self._runs[-1]

    def __str__(self) -> str:
        return "\n".join(line for run in self._runs for line in run.lines())


class RunTree(RunTelemetry):
    """Watches one run for a tree, from its first event on: by the run's own clock."""

    def __init__(self, crew: Crew, state: RunState, *, resumes: bool) -> None:
        super().__init__(state.run_id, "")
        self._crew, self._state, self._resumes = crew, state, resumes

    def __call__(self, event: Event) -> None:
        if self._pen is None:
            root = TextSpan(name=f"{names.INVOKE_WORKFLOW} {self._crew.name}", began=event.at)
            self._pen = TextSpanWriter(root)
            self._spans = SpanBuilder(self._pen, self._crew, self._state, capture=False, resumes=self._resumes)

        self.trace = getattr(event, "traceparent", "") or self.trace
        super().__call__(event)

    def _log_context(self, run_id: str, what: Any, open: Any) -> dict[str, Any]:
        return {}  # the ids that lines bear are those of the exported spans

    def lines(self) -> Iterator[str]:
        """The tree, and the id to look it up by where it is exported too."""
        if self._pen is not None:
            yield from _lines(self._pen.root)

        if self.trace:
            yield f"trace {self.trace[3:35]}"


class TextSpanWriter:
    """A pen that draws twigs; it attaches nothing, because whatever is current belongs to those who export."""

    def __init__(self, root: TextSpan) -> None:
        self.root, self.began = root, root.began
        self.last_span: Any = None

    def start(
        self,
        name: str,
        at: float,
        told: Attributes,
        *,
        parent: TextSpan,
        client: bool = False,
        links: Sequence[Any] = (),
    ) -> TextSpan:
        """A line below another one."""
        twig = TextSpan(name=name, began=at, attributes=dict(told))
        parent.children.append(twig)
        return twig

    def end(self, span: TextSpan, at: float) -> None:
        """It has ended."""
        span.ended = at

    def fail(self, span: TextSpan, kind: str, text: str = "") -> None:
        """It came to an error."""
        note = f"failed: {' '.join(text.split())}" if text else kind.replace("tool_error", "error")

        if note not in span.notes:
            span.notes.append(note)

    def link(self, span: TextSpan, told: Attributes) -> None:
        """Lines point nowhere."""

    def event(self, span: TextSpan, name: str, at: float, told: Attributes) -> None:
        """Something that happened within it."""
        if name in NOTES:
            span.notes.append(NOTES[name](told))

    def ids(self, span: TextSpan) -> tuple[str, str]:
        """Nobody looks for a line."""
        return "", ""

    def attach(self, span: TextSpan) -> None:
        """Nothing becomes current."""

    def detach(self, token: Any) -> None:
        """Nothing was."""


NOTES: dict[str, Callable[[Attributes], str]] = {
    "crew.retry": lambda told: f"tried again: {told['reason']}",
    "crew.fallback": lambda told: f"{told['model']} → {told['backup']}: {told['reason']}",
    "crew.too_long": lambda told: "too long, cut further",
    "crew.paused": lambda told: f"for {', '.join(pause.partition(' ')[0] for pause in told['pauses'])}",
    "crew.limit_reached": lambda told: f"limit: {told['limit']}",
    "crew.branch_timed_out": lambda told: f"timed out after {told['seconds']:g} s",
}


def _lines(twig: TextSpan, first: str = "", rest: str = "") -> Iterator[str]:
    yield f"{first}{'  '.join((twig.name, _duration_text(twig), *_details(twig), *twig.notes))}"

    for number, below in enumerate(twig.children):
        last = number == len(twig.children) - 1
        yield from _lines(below, f"{rest}{'└─ ' if last else '├─ '}", f"{rest}{'   ' if last else '│  '}")


def _duration_text(twig: TextSpan) -> str:
    if twig.ended is None:
        return "under way"

    seconds = twig.ended - twig.began
    return f"{seconds:.2f} s" if seconds >= 1 else f"{max(0.0, seconds) * 1000:.1f} ms"


def _details(twig: TextSpan) -> Iterator[str]:
    told = twig.attributes

    if twig.name == names.PRUNE:
        why = f"{told[names.HISTORY_POLICY]}: {told[names.PRUNING_REASON]}"
        yield f"{told[names.MESSAGES_BEFORE]} → {told[names.MESSAGES_AFTER]} messages ({why})"

    if (outcome := told.get(names.BRANCH_OUTCOME) or told.get(names.STOP_REASON)) and not _goes_without_saying(
        twig, outcome
    ):
        yield outcome

    if names.USAGE_INPUT in told:
        yield from _usage_text(told, names.USAGE_INPUT, names.USAGE_OUTPUT, names.USAGE_CACHE_READ, names.USAGE_COST)
    elif names.INPUT_TOKENS in told:
        yield from _usage_text(told, names.INPUT_TOKENS, names.OUTPUT_TOKENS, names.CACHE_READ_TOKENS, names.COST)


def _goes_without_saying(twig: TextSpan, outcome: str) -> bool:
    """Whether that goes without saying; of the whole run it is said in any case."""
    told = outcome == "failed" and any(note.startswith("failed: ") for note in twig.notes)
    return told or (outcome == "completed" and not twig.name.startswith(names.INVOKE_WORKFLOW))


def _usage_text(told: Attributes, read: str, written: str, cached: str, money: str) -> Iterator[str]:
    from_cache = f" ({told[cached]} cached)" if told.get(cached) else ""
    yield f"{told[read]}{from_cache} → {told[written]} tokens"

    if told.get(money):
        yield f"${told[money]:.4f}"
