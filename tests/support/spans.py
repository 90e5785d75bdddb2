"""Spans recorded in memory, for tests of telemetry."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from crew.telemetry import Telemetry, reset


@dataclass
class RecordedSpans:
    """A tracer provider that keeps every finished span."""

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


@contextmanager
def recorded_spans() -> Iterator[RecordedSpans]:
    """A new recorder; telemetry is reset at the end."""
    yield RecordedSpans()
    reset()
