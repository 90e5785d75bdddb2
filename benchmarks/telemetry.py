"""What watching costs: CPU for each model call with telemetry absent, off, and on with a batch exporter."""

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

from crew import Agent, CrewExecutor, ScriptedProvider, call, tool
from crew.telemetry import Telemetry

CALLS = 100
ROUNDS = 25

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
    """Stands where the lookout stands, and does nothing: the run without any telemetry at all."""

    scrub = None
    trace = ""

    def watch(self, state: Any, *, resumes: bool) -> "Nobody":
        return self

    def scrub_for(self, deps: Any) -> None:
        return None

    def __call__(self, event: Any) -> None:
        pass


@tool(effect="read")
async def look(order_id: str) -> str:
    """Look an order up."""
    return f"order {order_id} is on its way"


def executor(telemetry: Telemetry | None) -> CrewExecutor:
    """An agent that calls a tool again and again, and is pruned on the way."""
    script = [call("look", order_id=str(number)) for number in range(CALLS - 1)]
    agent = Agent("billing", instructions="Answer.", model=ScriptedProvider(*script, "Done."), tools=[look])
    made = CrewExecutor(agent, telemetry=telemetry or Telemetry(capture_content=False))

    if telemetry is None:
        made._lookout = Nobody()  # type: ignore[assignment]

    return made


def traced(exporter: SpanExporter) -> Telemetry:
    """Spans through a batch processor; metrics in memory."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=65_536, max_export_batch_size=2_048))
    meters = MeterProvider(metric_readers=[InMemoryMetricReader()], exemplar_filter=AlwaysOffExemplarFilter())
    return Telemetry(tracer_provider=provider, meter_provider=meters, capture_content=False)


async def spent(executor: CrewExecutor, telemetry: Telemetry | None) -> float:
    """Microseconds of CPU, of all threads, for each model call of one run."""
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
    off = Telemetry(capture_content=False)
    kinds = {
        "absent": (executor(None), None),
        "off": (executor(off), None),
        "on": (executor(on), on),
        "on, encoded as OTLP": (executor(sent), sent),
    }
    found: dict[str, list[float]] = {name: [] for name in kinds}

    for round_ in range(ROUNDS + 2):
        for name, (made, telemetry) in kinds.items():
            figure = await spent(made, telemetry)

            if round_ >= 2:
                found[name].append(figure)

    for name, figures in found.items():
        print(f"{name:20} {min(figures):8.1f} µs CPU a model call (median {statistics.median(figures):.1f})")

    print(f"a bare span of the SDK costs {bare_span():.1f} µs here; a quiet machine of today needs about 30")
    base = min(found["absent"])
    spread = statistics.median(found["absent"]) - base
    print(f"off costs {min(found['off']) - base:+.1f} µs; `absent` itself varies by {spread:.1f} µs")
    print(f"on costs {min(found['on']) - base:+.1f} µs (at most 200): chat span, tool span, metrics, prunings")


if __name__ == "__main__":
    asyncio.run(main())
