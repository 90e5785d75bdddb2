"""Turning telemetry on: one call makes providers and handlers; nothing global changes unless that is asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from crew.errors import ConfigError, DefinitionError
from crew.settings import Accepts, HttpUrl, Ratio, setting_problems, value_problems
from crew.telemetry.environment import Signal, endpoint_problems, requested_exporters, unsupported_requests
from crew.telemetry.executor_telemetry import Telemetry
from crew.telemetry.export import create_meter_provider, create_tracer_provider
from crew.telemetry.logs import attach_handler, detach_handler, warn

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
    """The process's telemetry: what was configured, else what the environment asks for, else what is global."""

    configured: Telemetry | None = None
    found: Telemetry | None = None
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
    tracer_provider: Any = None,
    meter_provider: Any = None,
    scope: Scope = "crew",
) -> Telemetry:
    """Turn telemetry on for all executors of this process that were not given one of their own.

    Spans and metrics go to `otlp_endpoint` (or where the standard OTEL_* variables say), or to providers that are
    handed in. `console` prints lines for people to stderr, as `logs="console"` does; `logs="json"` prints JSON.
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

    ours: list[Signal] = ["traces"] if tracer_provider is None else []
    ours += ["metrics"] if meter_provider is None and metrics == "otlp" else []
    made = _create_providers(ours, otlp_endpoint, service_name, sample_ratio)
    tracer_provider, meter_provider = made.get("traces", tracer_provider), made.get("metrics", meter_provider)

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
    """As if nothing had been configured; providers that were made go on until they are shut down."""
    detach_handler()
    _ProcessTelemetry.configured = _ProcessTelemetry.found = None
    _ProcessTelemetry.by_settings.clear()


def current_telemetry() -> Telemetry:
    """What watches where nothing else was said."""
    if _ProcessTelemetry.configured is not None:
        return _ProcessTelemetry.configured

    if _ProcessTelemetry.found is None:
        _ProcessTelemetry.found = _from_environment()

    return _ProcessTelemetry.found


def _from_environment() -> Telemetry:
    api = sys.modules.get("opentelemetry.trace")
    taken = api is not None and not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)

    if taken:
        return Telemetry()

    try:
        made = _create_providers(("traces", "metrics"), None, None, None)
    except (ConfigError, ValueError) as error:
        why = "; ".join(error.problems) if isinstance(error, ConfigError) else str(error)
        warn(f"the OTEL_* variables ask for exporting, which is not possible: {why}")
        return Telemetry()

    return Telemetry(tracer_provider=made.get("traces"), meter_provider=made.get("metrics"))


def _create_providers(
    signals: Iterable[Signal], endpoint: str | None, service_name: str | None, ratio: float | None
) -> dict[Signal, Any]:
    """A provider for each of the signals that somebody wants exported."""
    used = {signal: _exporters(signal, endpoint) for signal in signals}
    by_variable = [signal for signal, names in used.items() if endpoint is None and "otlp" in names]
    problems = dict.fromkeys(problem for signal in by_variable for problem in endpoint_problems(signal))

    if problems:
        raise ConfigError("telemetry", list(problems))

    made: dict[Signal, Any] = {}

    if used.get("traces"):
        made["traces"] = create_tracer_provider(used["traces"], endpoint, service_name, ratio)

    if used.get("metrics"):
        made["metrics"] = create_meter_provider(used["metrics"], endpoint, service_name)

    for remark in dict.fromkeys(r for signal, names in used.items() for r in unsupported_requests(signal, names)):
        warn(remark)

    return made


def _exporters(signal: Signal, endpoint: str | None) -> tuple[str, ...]:
    """What the variables say; an address in the code sends traces there in any case, and metrics unless they object."""
    named = requested_exporters(signal)

    if endpoint is None:
        return named or ()

    if named is None:
        return ("otlp",)

    return named if signal == "metrics" or "otlp" in named else (*named, "otlp")


def _make_global(tracer_provider: Any, meter_provider: Any) -> None:
    from opentelemetry import metrics, trace

    if tracer_provider is not None:
        trace.set_tracer_provider(tracer_provider)

    if meter_provider is not None:
        metrics.set_meter_provider(meter_provider)
