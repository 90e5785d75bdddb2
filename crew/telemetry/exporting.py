"""Providers of the OpenTelemetry SDK that export by OTLP over HTTP, with queues that hold a burst."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from crew.errors import ConfigError
from crew.telemetry import environment
from crew.telemetry.names import SCOPE

QUEUE = 65_536
BATCH = 2_048
DELAY_MS = 1_000
TIMEOUT_SECONDS = 5.0

log = logging.getLogger("crew")


def tracer_provider_for(endpoint: str | None, service_name: str | None, ratio: float | None) -> Any:
    """Spans go out in batches from a thread; the standard OTEL_* variables hold where nothing is said here."""
    exporter_class = _exporter("trace_exporter", "OTLPSpanExporter")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    sampler = None if ratio is None else ParentBased(TraceIdRatioBased(ratio))
    provider = TracerProvider(sampler=sampler, resource=_resource(service_name))
    sized = {} if environment.sizes_queue() else {"max_queue_size": QUEUE, "max_export_batch_size": BATCH}
    exporter = Reporting(exporter_class(endpoint=_path(endpoint, "v1/traces"), timeout=TIMEOUT_SECONDS), "traces")
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=DELAY_MS, **sized))  # type: ignore[arg-type]
    return provider


def meter_provider_for(endpoint: str | None, service_name: str | None) -> Any:
    """Metrics go out every so often (OTEL_METRIC_EXPORT_INTERVAL) from a thread."""
    exporter_class = _exporter("metric_exporter", "OTLPMetricExporter")
    from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    exporter = exporter_class(endpoint=_path(endpoint, "v1/metrics"), timeout=TIMEOUT_SECONDS)
    _once(type(exporter).__module__)
    # Exemplars would double the price of a measurement, and every span is there to be found anyway.
    return MeterProvider(
        metric_readers=[PeriodicExportingMetricReader(exporter)],
        resource=_resource(service_name),
        exemplar_filter=AlwaysOffExemplarFilter(),
    )


class Reporting:
    """An exporter that never raises, and says once that it can't get through."""

    def __init__(self, exporter: Any, what: str) -> None:
        self._exporter, self._what, self._said = exporter, what, False
        _once(type(exporter).__module__)

    def export(self, spans: Any) -> Any:
        """Send a batch."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            result = self._exporter.export(spans)
        except Exception as error:  # the observer boundary: an exporter that fails must not end the thread it runs on
            result, why = SpanExportResult.FAILURE, f"{type(error).__name__}: {error}"
        else:
            why = "the receiver does not answer, or refuses them"

        if result is not SpanExportResult.SUCCESS and not self._said:
            self._said = True
            log.warning("%s can't be exported, %d spans are lost so far: %s", self._what, len(spans), why)

        return result

    def shutdown(self) -> None:
        """No more."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 5_000) -> bool:
        """Nothing is held here."""
        return True


class _Once(logging.Filter):
    """Lets the first complaint through; the same exporter would repeat it with every batch."""

    def __init__(self) -> None:
        super().__init__()
        self._said = False

    def filter(self, record: logging.LogRecord) -> bool:
        said, self._said = self._said, True
        return not said


def _once(module: str) -> None:
    logger = logging.getLogger(module)

    if not any(isinstance(known, _Once) for known in logger.filters):
        logger.addFilter(_Once())


def _exporter(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(f"opentelemetry.exporter.otlp.proto.http.{module}"), name)
    except ImportError as error:
        raise ConfigError("telemetry", "exporting needs the extra `otlp`: pip install 'crew-executor[otlp]'") from error


def _path(endpoint: str | None, path: str) -> str | None:
    if endpoint is None:
        return None

    return endpoint if endpoint.rstrip("/").endswith(path) else f"{endpoint.rstrip('/')}/{path}"


def _resource(service_name: str | None) -> Any:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource

    named = {SERVICE_NAME: service_name} if service_name is not None else {}
    made = Resource.create(named)
    unnamed = str(made.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
    return made.merge(Resource({SERVICE_NAME: SCOPE})) if unnamed else made
