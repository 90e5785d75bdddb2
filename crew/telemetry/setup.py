"""Turns telemetry on: creates providers and handlers from arguments, a configuration file or the environment."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from crew.errors import ConfigError, DefinitionError
from crew.settings import Accepts, HttpUrl, Ratio, setting_problems, value_problems
from crew.telemetry.environment import Signal, endpoint_problems, requested_exporters, unsupported_requests
from crew.telemetry.executor_telemetry import Telemetry
from crew.telemetry.export import create_meter_provider, create_tracer_provider
from crew.telemetry.logs import attach_handler, detach_handler, warn

if TYPE_CHECKING:  # imported with the first provider, not with this package
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

LogLevel = Annotated[str, Field(pattern="^(?i:debug|info|warning|error)$"), Accepts("DEBUG, INFO, WARNING or ERROR")]
Scope = Literal["crew", "global"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """Where traces, metrics and logs go; `configure` checks and applies them."""

    otlp_endpoint: HttpUrl | None = None
    service_name: str | None = None
    console: bool = False
    sample_ratio: Ratio | None = None
    capture_content: bool | None = None
    logs: Literal["off", "console", "json"] = "off"
    log_level: LogLevel = "INFO"
    metrics: Literal["otlp", "off"] = "otlp"


class _ProcessTelemetry:
    """The telemetry of the process: configured, else from the environment, else OpenTelemetry's global providers."""

    configured: Telemetry | None = None
    from_environment: Telemetry | None = None
    by_settings: ClassVar[dict[TelemetrySettings, Telemetry]] = {}


def configure(
    *,
    otlp_endpoint: str | None = None,
    service_name: str | None = None,
    console: bool = False,
    sample_ratio: float | None = None,
    capture_content: bool | None = None,
    logs: Literal["off", "console", "json"] = "off",
    log_level: str = "INFO",
    metrics: Literal["otlp", "off"] = "otlp",
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    scope: Scope = "crew",
) -> Telemetry:
    """Turn telemetry on for all executors of this process that have no `telemetry` argument.

    Spans and metrics go to `otlp_endpoint`, or to the endpoint in the standard OTEL_* variables, or to the given
    providers. `console=True` and `logs="console"` print readable log lines to stderr; `logs="json"` prints JSON.
    `scope="global"` also makes the providers OpenTelemetry's global ones, for other libraries.
    """
    settings = TelemetrySettings(
        otlp_endpoint=otlp_endpoint,
        service_name=service_name,
        console=console,
        sample_ratio=sample_ratio,
        capture_content=capture_content,
        logs=logs,
        log_level=log_level,
        metrics=metrics,
    )

    if problems := [*setting_problems(settings), *value_problems(Scope, {"scope": scope})]:
        raise DefinitionError("telemetry", problems)

    signals: list[Signal] = ["traces"] if tracer_provider is None else []
    signals += ["metrics"] if meter_provider is None and metrics == "otlp" else []
    created = _create_providers(signals, otlp_endpoint, service_name, sample_ratio)
    tracer_provider = created.tracer if tracer_provider is None else tracer_provider
    meter_provider = created.meter if meter_provider is None else meter_provider

    if console or logs != "off":
        attach_handler("json" if logs == "json" else "console", log_level.upper())

    telemetry = Telemetry(
        tracer_provider=tracer_provider, meter_provider=meter_provider, capture_content=capture_content
    )

    if scope == "global":
        _make_global(tracer_provider, meter_provider)

    _ProcessTelemetry.configured = telemetry
    return telemetry


def telemetry_from_settings(settings: TelemetrySettings) -> Telemetry:
    """The telemetry that a configuration file describes; equal settings are set up once per process."""
    if settings not in _ProcessTelemetry.by_settings:
        _ProcessTelemetry.by_settings[settings] = configure(**asdict(settings))

    return _ProcessTelemetry.by_settings[settings]


def reset() -> None:
    """Forget what was configured; providers that were created keep exporting until they are shut down."""
    detach_handler()
    _ProcessTelemetry.configured = _ProcessTelemetry.from_environment = None
    _ProcessTelemetry.by_settings.clear()


def current_telemetry() -> Telemetry:
    """The telemetry of executors that have no `telemetry` argument."""
    if _ProcessTelemetry.configured is not None:
        return _ProcessTelemetry.configured

    if _ProcessTelemetry.from_environment is None:
        _ProcessTelemetry.from_environment = _from_environment()

    return _ProcessTelemetry.from_environment


def _from_environment() -> Telemetry:
    api = sys.modules.get("opentelemetry.trace")

    if api is not None and not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return Telemetry()  # the application set a global provider

    try:
        created = _create_providers(("traces", "metrics"), None, None, None)
    except (ConfigError, ValueError) as error:
        reason = "; ".join(error.problems) if isinstance(error, ConfigError) else str(error)
        warn(f"Can't export as the OTEL_* variables ask: {reason}")
        return Telemetry()

    return Telemetry(tracer_provider=created.tracer, meter_provider=created.meter)


class _Providers(NamedTuple):
    tracer: TracerProvider | None
    meter: MeterProvider | None


def _create_providers(
    signals: Iterable[Signal], endpoint: str | None, service_name: str | None, ratio: float | None
) -> _Providers:
    """A provider for each of these signals that has an exporter."""
    exporters = {signal: _exporters(signal, endpoint) for signal in signals}
    by_variable = [signal for signal, names in exporters.items() if endpoint is None and "otlp" in names]
    problems = dict.fromkeys(problem for signal in by_variable for problem in endpoint_problems(signal))

    if problems:
        raise ConfigError("telemetry", list(problems))

    traces, metrics = exporters.get("traces"), exporters.get("metrics")
    created = _Providers(
        create_tracer_provider(traces, endpoint, service_name, ratio) if traces else None,
        create_meter_provider(metrics, endpoint, service_name) if metrics else None,
    )

    for text in dict.fromkeys(
        text for signal, names in exporters.items() for text in unsupported_requests(signal, names)
    ):
        warn(text)

    return created


def _exporters(signal: Signal, endpoint: str | None) -> tuple[str, ...]:
    """The exporters that the variables name; with an endpoint, also `otlp`, unless they name others for metrics."""
    named = requested_exporters(signal)

    if endpoint is None:
        return named or ()

    if named is None:
        return ("otlp",)

    return named if signal == "metrics" or "otlp" in named else (*named, "otlp")


def _make_global(tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None) -> None:
    from opentelemetry import metrics, trace

    if tracer_provider is not None:
        trace.set_tracer_provider(tracer_provider)

    if meter_provider is not None:
        metrics.set_meter_provider(meter_provider)
