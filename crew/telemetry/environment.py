"""Reads the standard OTEL_* environment variables."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Literal

from crew.settings import HttpUrl, value_problems
from crew.telemetry.names import CAPTURE_VARIABLE

EXPORTERS = ("otlp", "console", "none")
PROTOCOL = "http/protobuf"

Signal = Literal["traces", "metrics"]


def content_capture_enabled(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether message content is exported."""
    given = environment.get(CAPTURE_VARIABLE, "").strip().lower()
    return given not in ("", "0", "false", "no", "no_content", "off")


def requested_exporters(signal: Signal, environment: Mapping[str, str] = os.environ) -> tuple[str, ...] | None:
    """The exporters that the variables name; None if they name none."""
    if _is_disabled(environment):
        return ()

    if given := _named_exporters(signal, environment):
        return tuple(name for name in sorted(EXPORTERS) if name in given and name != "none")

    return ("otlp",) if otlp_endpoint(signal, environment) else None


def otlp_endpoint(signal: Signal, environment: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """The variable that sets the OTLP endpoint of a signal, and its value."""
    return _first_variable(signal, "ENDPOINT", environment)


def endpoint_problems(signal: Signal, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Why the endpoint in the variables can't be used."""
    found = otlp_endpoint(signal, environment)

    if found:
        yield from value_problems(HttpUrl, {found[0]: found[1]})


def unsupported_requests(
    signal: Signal, used: Collection[str], environment: Mapping[str, str] = os.environ
) -> Iterator[str]:
    """What the variables ask for that is not supported, given the exporters in use."""
    for name in () if _is_disabled(environment) else _named_exporters(signal, environment):
        if name not in EXPORTERS:
            known = ", ".join(EXPORTERS)
            yield f"{_variable(signal)} names the unknown exporter {name!r}. Available: {known}."

    found = _first_variable(signal, "PROTOCOL", environment)

    if found and found[1].lower() != PROTOCOL and "otlp" in used:
        yield (
            f"{found[0]} is {found[1]!r}, but only OTLP over HTTP ({PROTOCOL}) is supported: "
            "use the receiver's HTTP port, usually 4318."
        )


def queue_size_is_set(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a variable sets the size of the span queue."""
    return bool(environment.get("OTEL_BSP_MAX_QUEUE_SIZE"))


def _is_disabled(environment: Mapping[str, str]) -> bool:
    return environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _variable(signal: Signal) -> str:
    return f"OTEL_{signal.upper()}_EXPORTER"


def _named_exporters(signal: Signal, environment: Mapping[str, str]) -> tuple[str, ...]:
    given = environment.get(_variable(signal), "").lower().split(",")
    return tuple(dict.fromkeys(name.strip() for name in given if name.strip()))


def _first_variable(signal: Signal, what: str, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """A variable for one signal takes precedence over the one for all signals."""
    for name in (f"OTEL_EXPORTER_OTLP_{signal.upper()}_{what}", f"OTEL_EXPORTER_OTLP_{what}"):
        if given := environment.get(name, "").strip():
            return name, given

    return None
