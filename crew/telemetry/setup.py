"""Turning telemetry on: one call makes providers and handlers; nothing global changes unless that is asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

from crew.errors import ConfigError
from crew.telemetry import environment, handlers
from crew.telemetry.checks import check
from crew.telemetry.environment import Signal
from crew.telemetry.exporting import meter_provider_for, tracer_provider_for
from crew.telemetry.notices import tell
from crew.telemetry.telemetry import Telemetry


class _Current:
    """The process's telemetry: what was configured, else what the environment asks for, else what is global."""

    configured: Telemetry | None = None
    found: Telemetry | None = None
    blocks: ClassVar[dict[tuple[tuple[str, Any], ...], Telemetry]] = {}


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
    scope: Literal["crew", "global"] = "crew",
) -> Telemetry:
    """Turn telemetry on for all executors of this process that were not given one of their own.

    Spans and metrics go to `otlp_endpoint` (or where the standard OTEL_* variables say), or to providers that are
    handed in. `console` prints lines for people to stderr, as `logs="console"` does; `logs="json"` prints JSON.
    `scope="global"` also makes the providers OpenTelemetry's global ones, for other libraries.
    """
    check(locals())
    ours: list[Signal] = ["traces"] if tracer_provider is None else []
    ours += ["metrics"] if meter_provider is None and metrics == "otlp" else []
    made = _providers(ours, otlp_endpoint, service_name, sample_ratio)
    tracer_provider, meter_provider = made.get("traces", tracer_provider), made.get("metrics", meter_provider)

    if console or logs != "off":
        handlers.attach("json" if logs == "json" else "console", log_level.upper())

    telemetry = Telemetry(
        tracer_provider=tracer_provider, meter_provider=meter_provider, capture_content=capture_content
    )

    if scope == "global":
        _make_global(tracer_provider, meter_provider)

    _Current.configured = telemetry
    return telemetry


def telemetry_from(block: Mapping[str, Any]) -> Telemetry:
    """What a block of a configuration file asks for; the same block is set up once, however often it is read."""
    key = tuple(sorted(block.items()))

    if key not in _Current.blocks:
        _Current.blocks[key] = configure(**block)

    return _Current.blocks[key]


def reset() -> None:
    """As if nothing had been configured; providers that were made go on until they are shut down."""
    handlers.detach()
    _Current.configured = _Current.found = None
    _Current.blocks.clear()


def current() -> Telemetry:
    """What watches where nothing else was said."""
    if _Current.configured is not None:
        return _Current.configured

    if _Current.found is None:
        _Current.found = _from_environment()

    return _Current.found


def _from_environment() -> Telemetry:
    api = sys.modules.get("opentelemetry.trace")
    taken = api is not None and not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)

    if taken:
        return Telemetry()

    try:
        made = _providers(("traces", "metrics"), None, None, None)
    except (ConfigError, ValueError) as error:
        why = "; ".join(error.problems) if isinstance(error, ConfigError) else str(error)
        tell(f"the OTEL_* variables ask for exporting, which is not possible: {why}")
        return Telemetry()

    return Telemetry(tracer_provider=made.get("traces"), meter_provider=made.get("metrics"))


def _providers(
    signals: Iterable[Signal], endpoint: str | None, service_name: str | None, ratio: float | None
) -> dict[Signal, Any]:
    """A provider for each of the signals that somebody wants exported."""
    used = {signal: _exporters(signal, endpoint) for signal in signals}
    by_variable = [signal for signal, names in used.items() if endpoint is None and "otlp" in names]
    problems = dict.fromkeys(problem for signal in by_variable for problem in environment.problems(signal))

    if problems:
        raise ConfigError("telemetry", list(problems))

    made: dict[Signal, Any] = {}

    if used.get("traces"):
        made["traces"] = tracer_provider_for(used["traces"], endpoint, service_name, ratio)

    if used.get("metrics"):
        made["metrics"] = meter_provider_for(used["metrics"], endpoint, service_name)

    for remark in dict.fromkeys(r for signal, names in used.items() for r in environment.remarks(signal, names)):
        tell(remark)

    return made


def _exporters(signal: Signal, endpoint: str | None) -> tuple[str, ...]:
    """What the variables say; an address in the code sends traces there in any case, and metrics unless they object."""
    named = environment.exporters(signal)

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
