"""Turning telemetry on: one call makes providers and handlers; nothing global changes unless that is asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal

from crew.errors import ConfigError, suggest
from crew.settings import URL_HINT, is_http_url
from crew.telemetry.environment import Signal, endpoint_problems, requested_exporters, unsupported_requests
from crew.telemetry.executor_telemetry import Telemetry
from crew.telemetry.export import create_meter_provider, create_tracer_provider
from crew.telemetry.logs import attach_handler, detach_handler, warn

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
CHOICES = {"logs": ("off", "console", "json"), "metrics": ("otlp", "off"), "scope": ("crew", "global")}


def check(given: Mapping[str, Any]) -> None:
    """Refuse arguments of `configure` that say nothing, or something else than was meant."""
    if problems := [*_addresses(given), *_numbers(given), *_switches(given), *_choices(given)]:
        raise ConfigError("telemetry", problems)


def _addresses(given: Mapping[str, Any]) -> Iterator[str]:
    endpoint, service = given["otlp_endpoint"], given["service_name"]

    if endpoint is not None and not is_http_url(endpoint):
        yield f"otlp_endpoint {URL_HINT}, not {endpoint!r}"

    if service is not None and not isinstance(service, str):
        yield f"service_name must be a text, not {service!r}"


def _numbers(given: Mapping[str, Any]) -> Iterator[str]:
    ratio = given["sample_ratio"]
    is_number = isinstance(ratio, int | float) and not isinstance(ratio, bool)

    if ratio is not None and not (is_number and 0 <= ratio <= 1):
        yield f"sample_ratio must be a number from 0 to 1, not {ratio!r}"


def _switches(given: Mapping[str, Any]) -> Iterator[str]:
    console, capture = given["console"], given["capture_content"]

    if not isinstance(console, bool):
        yield f"console must be True or False, not {console!r}"

    # A text such as "false" is true, and would send out everything that was said.
    if capture is not None and not isinstance(capture, bool):
        yield f"capture_content must be True, False or None, not {capture!r}"


def _choices(given: Mapping[str, Any]) -> Iterator[str]:
    for name, known in CHOICES.items():
        if given[name] not in known:
            yield f"{name} can't be {given[name]!r}. {suggest(str(given[name]), known)}"

    level = given["log_level"]

    if not isinstance(level, str) or level.upper() not in LEVELS:
        yield f"log_level must be DEBUG, INFO, WARNING or ERROR, not {level!r}"


class _ProcessTelemetry:
    """The process's telemetry: what was configured, else what the environment asks for, else what is global."""

    configured: Telemetry | None = None
    found: Telemetry | None = None
    by_settings: ClassVar[dict[tuple[tuple[str, Any], ...], Telemetry]] = {}


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


def telemetry_from_settings(block: Mapping[str, Any]) -> Telemetry:
    """What a block of a configuration file asks for; the same block is set up once, however often it is read."""
    key = tuple(sorted(block.items()))

    if key not in _ProcessTelemetry.by_settings:
        _ProcessTelemetry.by_settings[key] = configure(**block)

    return _ProcessTelemetry.by_settings[key]


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
