"""Turning telemetry on: one call makes providers and handlers; nothing global changes unless that is asked for."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from crew.errors import ConfigError
from crew.telemetry import environment, handlers
from crew.telemetry.exporting import meter_provider_for, tracer_provider_for
from crew.telemetry.telemetry import Telemetry

log = logging.getLogger("crew")


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
    _check(otlp_endpoint, sample_ratio, log_level)
    exports = otlp_endpoint is not None or environment.exports()

    if tracer_provider is None and exports:
        tracer_provider = tracer_provider_for(otlp_endpoint, service_name, sample_ratio)

    if meter_provider is None and exports and metrics == "otlp" and environment.exports_metrics():
        meter_provider = meter_provider_for(otlp_endpoint, service_name)

    if console or logs != "off":
        handlers.attach("json" if logs == "json" else "console", log_level.upper())

    made = Telemetry(tracer_provider=tracer_provider, meter_provider=meter_provider, capture_content=capture_content)

    if scope == "global":
        _make_global(tracer_provider, meter_provider)

    _Current.configured = made
    return made


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

    if not environment.exports() or taken:
        return Telemetry()

    try:
        metered = environment.exports_metrics()
        return Telemetry(
            tracer_provider=tracer_provider_for(None, None, None),
            meter_provider=meter_provider_for(None, None) if metered else None,
        )
    except (ConfigError, ValueError) as error:
        log.warning("the OTEL_* variables ask for exporting, which is not possible: %s", error)
        return Telemetry()


def _check(endpoint: str | None, ratio: float | None, level: str) -> None:
    problems = []

    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        problems.append(f"otlp_endpoint must be an address such as http://127.0.0.1:4318, not {endpoint!r}")

    if ratio is not None and not 0.0 <= ratio <= 1.0:
        problems.append(f"sample_ratio must be from 0 to 1, not {ratio!r}")

    if level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        problems.append(f"log_level must be DEBUG, INFO, WARNING or ERROR, not {level!r}")

    if problems:
        raise ConfigError("telemetry", problems)


def _make_global(tracer_provider: Any, meter_provider: Any) -> None:
    from opentelemetry import metrics, trace

    if tracer_provider is not None:
        trace.set_tracer_provider(tracer_provider)

    if meter_provider is not None:
        metrics.set_meter_provider(meter_provider)
