"""Creates OpenTelemetry providers, with exporters that never raise, pause after a slow failure, and warn once."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crew.errors import ConfigError, describe
from crew.secrets.patterns import redact
from crew.telemetry.environment import Signal, otlp_endpoint, queue_size_is_set
from crew.telemetry.logs import warn
from crew.telemetry.names import SCOPE

if TYPE_CHECKING:  # imported with the first provider, not with this package
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from requests import PreparedRequest, Response, Session

    ExportResult = SpanExportResult | MetricExportResult

PAUSE_SECONDS = 10.0
SLOW_SECONDS = 1.0

SIGNAL_UNITS = {"traces": "Spans", "metrics": "Reports"}
NO_METRICS_HINT = (
    'This receiver takes no metrics (Jaeger does not): set metrics="off" or OTEL_METRICS_EXPORTER=none to stop sending.'
)
NOT_FOUND_HINT = "Check the address: the server there takes no traces at this path."
UNAUTHORIZED_HINT = "Check the key in OTEL_EXPORTER_OTLP_HEADERS."
UNREACHABLE_HINT = "Check that an OTLP receiver listens there for HTTP, usually on port 4318."

log = logging.getLogger("crew")

# ------------------------------------------------------------------------------------------------ failures


@dataclass(slots=True)
class HttpOutcome:
    """What the last HTTP request of an exporter came to: an answer, or an error."""

    status: int | None = None
    reason: str = ""
    error: Exception | None = None

    def describe(self) -> str:
        """The outcome in a few words; empty if no request was sent."""
        if self.status is not None:
            return f"{self.status} {self.reason}".strip()

        return "" if self.error is None else _connection_error_text(self.error)


def _connection_error_text(error: Exception) -> str:
    from requests.exceptions import Timeout

    if isinstance(error, Timeout):
        return "no answer in time"

    # The error of the operating system, such as "Connection refused", is the innermost cause.
    texts = [cause.strerror for cause in _causes(error) if isinstance(cause, OSError) and cause.strerror]
    return texts[-1] if texts else describe(error)[:300]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def recording_session(outcome: HttpOutcome) -> Session:
    """An HTTP session for an exporter that stores the outcome of each request."""
    import requests

    class RecordingSession(requests.Session):
        def send(self, request: PreparedRequest, **options: Any) -> Response:
            outcome.status, outcome.reason, outcome.error = None, "", None

            try:
                response = super().send(request, **options)
            except Exception as error:  # recorded and raised again
                outcome.error = error
                raise

            outcome.status, outcome.reason = response.status_code, (response.reason or "")[:200]
            return response

    return RecordingSession()


class ExportGuard:
    """Replaces an exporter's `export`: returns failures instead of raising, and pauses after a failure that took long.

    So flushing and the exit of the process do not both wait for a receiver that is down.
    """

    def __init__(
        self,
        export: Callable[..., ExportResult],
        results: type[ExportResult],
        signal: Signal,
        address: str,
        outcome: HttpOutcome | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._export, self._results, self._clock = export, results, clock
        self._signal, self._address, self._outcome = signal, address, outcome or HttpOutcome()
        self._lost, self._failing, self._paused_until = 0, False, clock()

    def __call__(self, batch: Sized, **options: float) -> ExportResult:
        """Send a batch."""
        size = len(batch) if self._signal == "traces" else 1
        began = self._clock()

        if began < self._paused_until:
            self._lost += size
            return self._results.FAILURE

        result, logged = self._try(batch, options)

        if result is self._results.SUCCESS:
            self._recovered()
            return result

        ended = self._clock()
        self._paused_until = ended + PAUSE_SECONDS if ended - began >= SLOW_SECONDS else ended
        self._failed(size, logged)
        return result

    def _try(self, batch: Sized, options: dict[str, float]) -> tuple[ExportResult, str]:
        logged: list[str] = []
        token = _LOGGED.set(logged)

        try:
            result = self._export(batch, **options)
        except Exception as error:  # the observer boundary: an error must not end the exporter's thread
            return self._results.FAILURE, describe(error)
        finally:
            _LOGGED.reset(token)

        return result, logged[0] if logged else ""

    def _failed(self, size: int, logged: str) -> None:
        self._lost += size

        if self._failing:
            return

        self._failing = True
        # Without an HTTP request (the batch is too large, or can't be encoded) only the exporter's log line says why.
        reason = self._outcome.describe() or logged[:300].rstrip(".") or "no answer in time"
        lost = f"{SIGNAL_UNITS[self._signal]} lost so far: {self._lost}."
        warn(redact(f"Can't export {self._signal} to {self._address}: {reason}. {lost} {self._hint()}"))

    def _hint(self) -> str:
        match self._outcome.status:
            case 404:
                return NO_METRICS_HINT if self._signal == "metrics" else NOT_FOUND_HINT
            case 401 | 403:
                return UNAUTHORIZED_HINT
            case _:
                return UNREACHABLE_HINT

    def _recovered(self) -> None:
        if self._failing:
            units, address = SIGNAL_UNITS[self._signal].lower(), redact(self._address)
            log.warning("Exporting %s to %s works again; %s lost: %d", self._signal, address, units, self._lost)

        self._failing, self._lost = False, 0


_LOGGED: ContextVar[list[str] | None] = ContextVar("logged", default=None)


class _CollectLogLines(logging.Filter):
    """Collects what an exporter logs while the guard calls it; log lines of the application's exporters pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        logged = _LOGGED.get()

        if logged is None:
            return True

        logged.append(record.getMessage())
        return False


def guard_exporter(
    exporter: OTLPSpanExporter | OTLPMetricExporter,
    results: type[ExportResult],
    signal: Signal,
    address: str,
    outcome: HttpOutcome,
) -> None:
    """Replace `export` of this exporter by a guard, whose one warning stands for the exporter's log lines."""
    logger = logging.getLogger(type(exporter).__module__)

    if not any(isinstance(known, _CollectLogLines) for known in logger.filters):
        logger.addFilter(_CollectLogLines())

    exporter.__dict__["export"] = ExportGuard(exporter.export, results, signal, address, outcome)


# ------------------------------------------------------------------------------------------------ providers

QUEUE_SIZE = 65_536
BATCH_SIZE = 2_048
DELAY_MS = 1_000
TIMEOUT_SECONDS = 4.0  # shorter than a flush, so that a flush does not time out before the exporter does

MISSING_EXTRA = (
    "exporting needs the extra `otlp`: pip install 'crew-executor[otlp]', "
    "or pip install opentelemetry-exporter-otlp-proto-http"
)


def create_tracer_provider(
    exporters: Iterable[str], endpoint: str | None, service_name: str | None, ratio: float | None
) -> TracerProvider:
    """A provider whose thread exports spans in batches; OTEL_* variables apply where an argument is None."""
    span_exporters = [_span_exporter(name, endpoint) for name in exporters]
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    sampler = None if ratio is None else ParentBased(TraceIdRatioBased(ratio))
    provider = TracerProvider(sampler=sampler, resource=_resource(service_name))
    queue_size, batch_size = (None, None) if queue_size_is_set() else (QUEUE_SIZE, BATCH_SIZE)

    for exporter in span_exporters:
        provider.add_span_processor(
            BatchSpanProcessor(
                exporter,
                schedule_delay_millis=DELAY_MS,
                max_queue_size=queue_size,
                max_export_batch_size=batch_size,
            )
        )

    return provider


def create_meter_provider(exporters: Iterable[str], endpoint: str | None, service_name: str | None) -> MeterProvider:
    """A provider whose thread exports metrics at intervals (OTEL_METRIC_EXPORT_INTERVAL)."""
    metric_exporters = [_metric_exporter(name, endpoint) for name in exporters]
    from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    # Exemplars would double the cost of a measurement.
    return MeterProvider(
        metric_readers=[PeriodicExportingMetricReader(exporter) for exporter in metric_exporters],
        resource=_resource(service_name),
        exemplar_filter=AlwaysOffExemplarFilter(),
    )


def _span_exporter(name: str, endpoint: str | None) -> SpanExporter:
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExportResult

    if name == "console":
        return ConsoleSpanExporter(out=sys.stdout)

    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError("telemetry", MISSING_EXTRA) from error

    address, outcome = _signal_url("traces", endpoint), HttpOutcome()
    exporter = OTLPSpanExporter(endpoint=address, timeout=TIMEOUT_SECONDS, session=_session("traces", outcome))
    guard_exporter(exporter, SpanExportResult, "traces", address, outcome)
    return exporter


def _metric_exporter(name: str, endpoint: str | None) -> MetricExporter:
    from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricExportResult

    if name == "console":
        return ConsoleMetricExporter(out=sys.stdout)

    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError as error:
        raise ConfigError("telemetry", MISSING_EXTRA) from error

    address, outcome = _signal_url("metrics", endpoint), HttpOutcome()
    exporter = OTLPMetricExporter(endpoint=address, timeout=TIMEOUT_SECONDS, session=_session("metrics", outcome))
    guard_exporter(exporter, MetricExportResult, "metrics", address, outcome)
    return exporter


def _session(signal: Signal, outcome: HttpOutcome) -> Session | None:
    """None if a variable names a credential provider: the exporter then takes the session from that one."""
    variables = (f"HTTP_{signal.upper()}", "HTTP")
    is_provided = any(os.environ.get(f"OTEL_PYTHON_EXPORTER_OTLP_{part}_CREDENTIAL_PROVIDER") for part in variables)
    return None if is_provided else recording_session(outcome)


def _signal_url(signal: Signal, endpoint: str | None) -> str:
    """The address of a signal: by the argument, else by OTEL_* variables, else the standard port on this host."""
    variable, given = otlp_endpoint(signal) or ("", "http://localhost:4318")

    if endpoint is None and signal.upper() in variable:
        return given  # a variable for one signal holds the full address

    base = (endpoint or given).rstrip("/").removesuffix("/v1/traces").removesuffix("/v1/metrics")
    return f"{base}/v1/{signal}"


def _resource(service_name: str | None) -> Resource:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource

    resource = Resource.create({SERVICE_NAME: service_name} if service_name is not None else {})
    is_unnamed = str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
    return resource.merge(Resource({SERVICE_NAME: SCOPE})) if is_unnamed else resource
