"""What stands between the SDK and an exporter: it never raises, rests after a failure, and says what is wrong once."""

from __future__ import annotations

import importlib
import logging
import re
import sys
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

from crew.errors import ConfigError, describe
from crew.secrets.patterns import redact
from crew.telemetry.environment import Signal, otlp_endpoint, queue_size_is_set
from crew.telemetry.logs import warn
from crew.telemetry.names import SCOPE

PAUSE_SECONDS = 10.0
SLOW_SECONDS = 1.0

SIGNAL_UNITS = {"traces": "spans", "metrics": "reports"}
NO_METRICS_HINT = (
    'This receiver takes no metrics (Jaeger does not): metrics="off", or OTEL_METRICS_EXPORTER=none, ends this.'
)
NOT_FOUND_HINT = "Check the address: the server that answers there takes no traces at this path."
UNAUTHORIZED_HINT = "Check the key that OTEL_EXPORTER_OTLP_HEADERS must hold."
UNREACHABLE_HINT = "Check that an OTLP receiver listens there for HTTP, usually on port 4318."

log = logging.getLogger("crew")


class ExportGuard:
    """An exporter's `export`; after a failure that took its time, nothing is tried for some seconds.

    Whoever waits for an export, at closing and again at the exit of the process, waits for a dead receiver once.
    """

    def __init__(
        self,
        export: Callable[..., Any],
        results: Any,
        signal: Signal,
        address: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._export, self._results, self._clock = export, results, clock
        self._signal, self._address = signal, address
        self._dropped, self._failing, self._paused_until = 0, False, clock()

    def __call__(self, batch: Any, **options: Any) -> Any:
        """Send a batch."""
        size = len(batch) if self._signal == "traces" else 1
        began = self._clock()

        if began < self._paused_until:
            self._dropped += size
            return self._results.FAILURE

        result, words = self._try(batch, options)

        if result is self._results.SUCCESS:
            self._recover()
            return result

        ended = self._clock()
        self._paused_until = ended + PAUSE_SECONDS if ended - began >= SLOW_SECONDS else ended
        self._fail(size, words)
        return result

    def _try(self, batch: Any, options: dict[str, Any]) -> tuple[Any, str]:
        heard: list[str] = []
        token = _HEARD.set(heard)

        try:
            result = self._export(batch, **options)
        except Exception as error:  # the observer boundary: an exporter that fails must not end the thread it runs on
            return self._results.FAILURE, describe(error)
        finally:
            _HEARD.reset(token)

        return result, heard[0] if heard else ""

    def _fail(self, size: int, words: str) -> None:
        self._dropped += size

        if self._failing:
            return

        self._failing = True
        status, reason = _read(words)
        where = f"{self._signal} can't be exported to {self._address} ({reason})"
        warn(redact(f"{where}; {SIGNAL_UNITS[self._signal]} lost so far: {self._dropped}. {self._hint(status)}"))

    def _hint(self, status: int | None) -> str:
        if status == 404:
            return NO_METRICS_HINT if self._signal == "metrics" else NOT_FOUND_HINT

        return UNAUTHORIZED_HINT if status in (401, 403) else UNREACHABLE_HINT

    def _recover(self) -> None:
        if self._failing:
            unit, address = SIGNAL_UNITS[self._signal], redact(self._address)
            log.warning("%s get through to %s again; %s lost meanwhile: %d", self._signal, address, unit, self._dropped)

        self._failing, self._dropped = False, 0


def guard_exporter(exporter: Any, results: Any, signal: Signal, address: str) -> Any:
    """The same exporter, guarded; what it has to say itself is taken into our own line."""
    logger = logging.getLogger(type(exporter).__module__)

    if not any(isinstance(known, _Overhears) for known in logger.filters):
        logger.addFilter(_Overhears())

    exporter.export = ExportGuard(exporter.export, results, signal, address)
    return exporter


_HEARD: ContextVar[list[str] | None] = ContextVar("heard", default=None)


class _Overhears(logging.Filter):
    """Keeps an exporter's complaints while we call it; those of exporters that are not ours pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        heard = _HEARD.get()

        if heard is None:
            return True

        heard.append(record.getMessage())
        return False


def _read(words: str) -> tuple[int | None, str]:
    """The status in an exporter's complaint, if it was answered at all, and the complaint in short."""
    if answered := re.search(r"code: (\d{3}), reason: (.*)", words):
        return int(answered[1]), f"it answers {answered[1]} {answered[2][:200]}".strip()

    if refused := re.search(r"\[Errno -?\d+\] ([^'\")]+)", words):
        return None, refused[1]

    if "timeout" in words or not words:
        return None, "it does not answer in time"

    return None, words[:300].rstrip(".")


QUEUE_SIZE = 65_536
BATCH_SIZE = 2_048
DELAY_MS = 1_000
TIMEOUT_SECONDS = 4.0  # less than a flush waits, which then need not give up on an exporter that is about to

MISSING_EXTRA = (
    "exporting needs the extra `otlp`: pip install 'crew-executor[otlp]', "
    "or what is in it: pip install opentelemetry-exporter-otlp-proto-http"
)


def create_tracer_provider(
    exporters: Iterable[str], endpoint: str | None, service_name: str | None, ratio: float | None
) -> Any:
    """Spans go out in batches from a thread; the standard OTEL_* variables hold where nothing is said here."""
    made = [_span_exporter(name, endpoint) for name in exporters]
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    sampler = None if ratio is None else ParentBased(TraceIdRatioBased(ratio))
    provider = TracerProvider(sampler=sampler, resource=_resource(service_name))
    sized = {} if queue_size_is_set() else {"max_queue_size": QUEUE_SIZE, "max_export_batch_size": BATCH_SIZE}

    for exporter in made:
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=DELAY_MS, **sized))  # type: ignore[arg-type]

    return provider


def create_meter_provider(exporters: Iterable[str], endpoint: str | None, service_name: str | None) -> Any:
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

    address = _signal_url("traces", endpoint)
    exporter = _otlp_exporter_class("trace_exporter", "OTLPSpanExporter")(endpoint=address, timeout=TIMEOUT_SECONDS)
    return guard_exporter(exporter, SpanExportResult, "traces", address)


def _metric_exporter(name: str, endpoint: str | None) -> Any:
    from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricExportResult

    if name == "console":
        return ConsoleMetricExporter(out=sys.stdout)

    address = _signal_url("metrics", endpoint)
    exporter = _otlp_exporter_class("metric_exporter", "OTLPMetricExporter")(endpoint=address, timeout=TIMEOUT_SECONDS)
    return guard_exporter(exporter, MetricExportResult, "metrics", address)


def _otlp_exporter_class(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(f"opentelemetry.exporter.otlp.proto.http.{module}"), name)
    except ImportError as error:
        raise ConfigError("telemetry", MISSING_EXTRA) from error


def _signal_url(signal: Signal, endpoint: str | None) -> str:
    """Where a signal goes: what the code says, else the variables, else where the standard looks for a receiver."""
    variable, given = otlp_endpoint(signal) or ("", "http://localhost:4318")

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
