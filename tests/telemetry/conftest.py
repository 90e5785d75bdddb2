"""A tracer provider that keeps what it gets, and a crew that does a little of everything."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from crew import Agent, Crew, Parallel, ScriptedProvider, call, tool
from crew.telemetry import Telemetry, reset


@dataclass
class Seen:
    """What was recorded."""

    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    provider: TracerProvider = field(default_factory=lambda: TracerProvider(shutdown_on_exit=False))

    def __post_init__(self) -> None:
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        return sorted(self.exporter.get_finished_spans(), key=lambda span: (span.start_time, -span.end_time))

    def named(self, prefix: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == prefix or span.name.startswith(f"{prefix} ")]

    def one(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.spans if span.name == name]
        return span

    def parent(self, span: ReadableSpan) -> ReadableSpan | None:
        if span.parent is None:
            return None

        (found,) = [other for other in self.spans if other.context.span_id == span.parent.span_id]
        return found

    def telemetry(self, *, capture_content: bool = False) -> Telemetry:
        return Telemetry(tracer_provider=self.provider, capture_content=capture_content)


@pytest.fixture
def seen() -> Iterator[Seen]:
    """A fresh recorder."""
    yield Seen()
    reset()


@tool
async def look(order_id: str) -> str:
    """Look an order up."""
    return f"order {order_id} is on its way"


@pytest.fixture
def support() -> Callable[..., Crew]:
    """Makes the crew."""
    return _support


def _support(calls: int = 8) -> Crew:
    """Triage hands over to billing, which calls a tool again and again, and then to a panel of two."""
    legal = Agent("legal", model=ScriptedProvider("Legal agrees."))
    finance = Agent("finance", model=ScriptedProvider("Finance agrees."))
    editor = Agent("editor", model=ScriptedProvider("The end."))
    panel = Parallel("panel", branches=[legal, finance], then=editor)
    script = [call("look", order_id=str(number)) for number in range(calls)]
    billing = Agent(
        "billing", model=ScriptedProvider(*script, call("transfer_to_panel")), tools=[look], handoffs=[panel]
    )
    triage = Agent("triage", model=ScriptedProvider(call("transfer_to_billing")), handoffs=[billing])
    return Crew("support", agents=[triage, billing, editor, legal, finance], groups=[panel])
