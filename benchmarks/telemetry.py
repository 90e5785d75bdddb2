"""Measures the cost of telemetry per model call and tool call: absent, off, and on with a batch exporter."""

import asyncio
import gc
import statistics
import time
import timeit
from typing import Any

from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from crew import Agent, CrewExecutor, Limits, ScriptedProvider, call, tool
from crew.telemetry import Telemetry

CALLS = 100
ROUNDS = 25
TOOLS = (1, 4)

try:
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
except ImportError:
    encode_spans = None


class DiscardingExporter(SpanExporter):
    """Discards the spans."""

    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.SUCCESS


class EncodingExporter(SpanExporter):
    """Encodes the spans like an OTLP exporter, but does not send them."""

    def export(self, spans: Any) -> SpanExportResult:
        if encode_spans is not None:
            encode_spans(spans).SerializeToString()

        return SpanExportResult.SUCCESS


class NoTelemetry:
    """Replaces `ExecutorTelemetry` and observes nothing."""

    traceparent = ""

    def start_run(self, state: Any, *, resumes: bool) -> "NoTelemetry":
        return self

    def __call__(self, event: Any) -> None:
        pass


@tool(effect="read")
async def look(order_id: str) -> str:
    """Look up an order."""
    return f"order {order_id} is on its way"


def executor(telemetry: Telemetry | None, tools: int = 1) -> CrewExecutor:
    """An agent that makes `tools` tool calls in every reply; its history is pruned several times."""
    script = [[call("look", order_id=f"{number}-{n}") for n in range(tools)] for number in range(CALLS - 1)]
    agent = Agent("billing", instructions="Answer.", model=ScriptedProvider(*script, "Done."), tools=[look])
    created = CrewExecutor(
        agent, telemetry=telemetry or Telemetry(capture_content=False), limits=Limits(rounds=CALLS + 1)
    )

    if telemetry is None:
        created._executor_telemetry = NoTelemetry()  # type: ignore[assignment]

    return created


def traced(exporter: SpanExporter) -> Telemetry:
    """Telemetry with a batch span processor and metrics in memory."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=65_536, max_export_batch_size=2_048))
    meters = MeterProvider(metric_readers=[InMemoryMetricReader()], exemplar_filter=AlwaysOffExemplarFilter())
    return Telemetry(tracer_provider=provider, meter_provider=meters, capture_content=False)


async def cpu_per_call(executor: CrewExecutor, telemetry: Telemetry | None) -> float:
    """CPU microseconds per model call of one run, of all threads, including the export."""
    gc.collect()
    start = time.process_time()
    await executor.execute("Where are my orders?")

    if telemetry is not None:
        await telemetry.flush()

    return (time.process_time() - start) / CALLS * 1e6


def bare_span() -> float:
    """Microseconds that the OpenTelemetry SDK needs for one span with a few attributes; a measure of this machine."""
    tracer = TracerProvider().get_tracer("bare")
    attributes = {f"key{number}": number for number in range(8)}

    def one() -> None:
        tracer.start_span("bare", attributes=attributes).end()

    return min(timeit.repeat(one, number=1_000, repeat=5)) * 1e3


async def main() -> None:
    """Measure all variants interleaved, so that other load on the machine affects them alike."""
    on, encoded = traced(DiscardingExporter()), traced(EncodingExporter())
    variants = {"absent": None, "off": Telemetry(capture_content=False), "on": on, "on, encoded as OTLP": encoded}
    executors = {(name, tools): executor(telemetry, tools) for name, telemetry in variants.items() for tools in TOOLS}
    found: dict[tuple[str, int], list[float]] = {key: [] for key in executors}

    for round_ in range(ROUNDS + 2):
        for (name, tools), one in executors.items():
            figure = await cpu_per_call(one, variants[name] if name.startswith("on") else None)

            if round_ >= 2:
                found[name, tools].append(figure)

    print(
        f"CPU per model call of a run with {CALLS} calls and 1 or {TOOLS[1]} tool calls each; the cost of telemetry:\n"
    )
    print(f"{'telemetry':20} {'1 tool':>9} {f'{TOOLS[1]} tools':>9} {'a model call':>14} {'a tool call':>13}")
    least = {key: min(figures) for key, figures in found.items()}

    for name in variants:
        one, more = (least[name, tools] for tools in TOOLS)
        added, added_more = (least[name, tools] - least["absent", tools] for tools in TOOLS)
        for_tool = (added_more - added) / (TOOLS[1] - TOOLS[0])
        print(f"{name:20} {one:6.0f} µs {more:6.0f} µs {added - for_tool:+11.0f} µs {for_tool:+10.0f} µs")

    spread = statistics.median(found["absent", 1]) - least["absent", 1]
    print(f"\nThe noise of `absent` is {spread:.0f} µs; a bare span of the SDK costs {bare_span():.0f} µs here.")
    print("A model call has its chat span, three measurements, and a share of the run's spans, prunings and export.")


if __name__ == "__main__":
    asyncio.run(main())
