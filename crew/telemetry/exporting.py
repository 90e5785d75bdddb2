"""Providers of the OpenTelemetry SDK that export by OTLP over HTTP or print, with queues that hold a burst."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import Any

from crew.errors import ConfigError
from crew.telemetry import environment
from crew.telemetry.environment import Signal
from crew.telemetry.guarding import guard
from crew.telemetry.names import SCOPE

QUEUE = 65_536
BATCH = 2_048
DELAY_MS = 1_000
TIMEOUT_SECONDS = 4.0  # less than a flush waits, which then need not give up on an exporter that is about to

MISSING = (
    "exporting needs the extra `otlp`: pip install 'crew-executor[otlp]', "
    "or what is in it: pip install opentelemetry-exporter-otlp-proto-http"
)


def tracer_provider_for(
    exporters: Iterable[str], endpoint: str | None, service_name: str | None, ratio: float | None
) -> Any:
    """Spans go out in batches from a thread; the standard OTEL_* variables hold where nothing is said here."""
    made = [_span_exporter(name, endpoint) for name in exporters]
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    sampler = None if ratio is None else ParentBased(TraceIdRatioBased(ratio))
    provider = TracerProvider(sampler=sampler, resource=_resource(service_name))
    sized = {} if environment.sizes_queue() else {"max_queue_size": QUEUE, "max_export_batch_size": BATCH}

    for exporter in made:
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=DELAY_MS, **sized))  # type: ignore[arg-type]

    return provider


def meter_provider_for(exporters: Iterable[str], endpoint: str | None, service_name: str | None) -> Any:
    """Metrics go out every so often (OTEL_METRIC_EXPORT_INTERVAL) from a thread."""
    made = [_metric_exporter(name, endpoint) for name in exporters]
    from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    # Exemplars would double the price of a measurement, and every span is there to be found anyway.
    return MeterProvider(
        metric_readers=[PeriodicExportingMetricReader(exporter) for exporter in made],
        resource=_resource(service_name),
        exemplar_filter=AlwaysOffExemplarFilter(),
    )


def _span_exporter(name: str, endpoint: str | None) -> Any:
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExportResult

    if name == "console":
        return ConsoleSpanExporter(out=sys.stdout)

    address = _address("traces", endpoint)
    exporter = _otlp("trace_exporter", "OTLPSpanExporter")(endpoint=address, timeout=TIMEOUT_SECONDS)
    return guard(exporter, SpanExportResult, "traces", address)


def _metric_exporter(name: str, endpoint: str | None) -> Any:
    from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricExportResult

    if name == "console":
        return ConsoleMetricExporter(out=sys.stdout)

    address = _address("metrics", endpoint)
    exporter = _otlp("metric_exporter", "OTLPMetricExporter")(endpoint=address, timeout=TIMEOUT_SECONDS)
    return guard(exporter, MetricExportResult, "metrics", address)


def _otlp(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(f"opentelemetry.exporter.otlp.proto.http.{module}"), name)
    except ImportError as error:
        raise ConfigError("telemetry", MISSING) from error


def _address(signal: Signal, endpoint: str | None) -> str:
    """Where a signal goes: what the code says, else the variables, else where the standard looks for a receiver."""
    variable, given = environment.endpoint(signal) or ("", "http://localhost:4318")

    if endpoint is None and signal.upper() in variable:
        return given  # a signal's own variable holds the whole address

    base = (endpoint or given).rstrip("/").removesuffix("/v1/traces").removesuffix("/v1/metrics")
    return f"{base}/v1/{signal}"


def _resource(service_name: str | None) -> Any:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource

    named = {SERVICE_NAME: service_name} if service_name is not None else {}
    made = Resource.create(named)
    unnamed = str(made.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
    return made.merge(Resource({SERVICE_NAME: SCOPE})) if unnamed else made
