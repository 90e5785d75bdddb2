"""What watching costs: CPU for each model call and tool call, telemetry absent, off, and on with a batch exporter."""

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


class Taking(SpanExporter):
    """Takes batches."""

    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.SUCCESS


class Encoding(SpanExporter):
    """Does what an OTLP exporter does on its thread, up to the socket."""

    def export(self, spans: Any) -> SpanExportResult:
        if encode_spans is not None:
            encode_spans(spans).SerializeToString()

        return SpanExportResult.SUCCESS


class Nobody:
    """Stands where the lookout stands, and watches nothing; what keeps secrets out of messages is the run's own."""

    trace = ""

    def __init__(self, lookout: Any) -> None:
        self.scrub, self.scrub_for = lookout.scrub, lookout.scrub_for

    def start_run(self, state: Any, *, resumes: bool) -> "Nobody":
        return self

    def __call__(self, event: Any) -> None:
        pass


@tool(effect="read")
async def look(order_id: str) -> str:
    """Look an order up."""
    return f"order {order_id} is on its way"


def executor(telemetry: Telemetry | None, tools: int = 1) -> CrewExecutor:
    """An agent that calls a tool again and again, so many times in a reply, and is pruned on the way."""
    script = [[call("look", order_id=f"{number}-{n}") for n in range(tools)] for number in range(CALLS - 1)]
    agent = Agent("billing", instructions="Answer.", model=ScriptedProvider(*script, "Done."), tools=[look])
    watched = telemetry or Telemetry(capture_content=False)
    made = CrewExecutor(agent, telemetry=watched, limits=Limits(rounds=CALLS + 1))

    if telemetry is None:
        made._executor_telemetry = Nobody(made._executor_telemetry)  # type: ignore[assignment]

    return made


def traced(exporter: SpanExporter) -> Telemetry:
    """Spans through a batch processor; metrics in memory."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=65_536, max_export_batch_size=2_048))
    meters = MeterProvider(metric_readers=[InMemoryMetricReader()], exemplar_filter=AlwaysOffExemplarFilter())
    return Telemetry(tracer_provider=provider, meter_provider=meters, capture_content=False)


async def spent(executor: CrewExecutor, telemetry: Telemetry | None) -> float:
    """Microseconds of CPU, of all threads, for each model call of one run, with what it exports."""
    gc.collect()
    began = time.process_time()
    await executor.execute("Where are my orders?")

    if telemetry is not None:
        await telemetry.flush()

    return (time.process_time() - began) / CALLS * 1e6


def bare_span() -> float:
    """What the SDK takes for one span with a few attributes: how busy, or slow, this machine is."""
    tracer = TracerProvider().get_tracer("bare")
    attributes = {f"key{number}": number for number in range(8)}

    def one() -> None:
        tracer.start_span("bare", attributes=attributes).end()

    return min(timeit.repeat(one, number=1_000, repeat=5)) * 1e3


async def main() -> None:
    """Interleaved, so that a busy moment of the machine hits all alike."""
    on, sent = traced(Taking()), traced(Encoding())
    kinds = {"absent": None, "off": Telemetry(capture_content=False), "on": on, "on, encoded as OTLP": sent}
    made = {(name, tools): executor(watcher, tools) for name, watcher in kinds.items() for tools in TOOLS}
    found: dict[tuple[str, int], list[float]] = {key: [] for key in made}

    for round_ in range(ROUNDS + 2):
        for (name, tools), one in made.items():
            figure = await spent(one, kinds[name] if name.startswith("on") else None)

            if round_ >= 2:
                found[name, tools].append(figure)

    print(f"CPU for each of {CALLS} model calls of a run, with 1 and with {TOOLS[1]} tool calls each; what it adds:\n")
    print(f"{'telemetry':20} {'1 tool':>9} {f'{TOOLS[1]} tools':>9} {'a model call':>14} {'a tool call':>13}")
    least = {key: min(figures) for key, figures in found.items()}

    for name in kinds:
        one, more = (least[name, tools] for tools in TOOLS)
        added, added_more = (least[name, tools] - least["absent", tools] for tools in TOOLS)
        for_tool = (added_more - added) / (TOOLS[1] - TOOLS[0])
        print(f"{name:20} {one:6.0f} µs {more:6.0f} µs {added - for_tool:+11.0f} µs {for_tool:+10.0f} µs")

    spread = statistics.median(found["absent", 1]) - least["absent", 1]
    print(f"\n`absent` itself varies by {spread:.0f} µs; a bare span of the SDK costs {bare_span():.0f} µs here.")
    print("A model call is its chat span, three measurements, and its part of the run's spans, prunings and export.")


if __name__ == "__main__":
    asyncio.run(main())
