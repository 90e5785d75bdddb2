"""What is wrong with the arguments that turn telemetry on: every problem at once, with its value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from crew.errors import ConfigError, nearest
from crew.validation.addresses import WANTED, is_address

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
CHOICES = {"logs": ("off", "console", "json"), "metrics": ("otlp", "off"), "scope": ("crew", "global")}


def check(given: Mapping[str, Any]) -> None:
    """Refuse arguments of `configure` that say nothing, or something else than was meant."""
    if problems := [*_addresses(given), *_numbers(given), *_switches(given), *_choices(given)]:
        raise ConfigError("telemetry", problems)


def _addresses(given: Mapping[str, Any]) -> Iterator[str]:
    endpoint, service = given["otlp_endpoint"], given["service_name"]

    if endpoint is not None and not is_address(endpoint):
        yield f"otlp_endpoint {WANTED}, not {endpoint!r}"

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
            yield f"{name} can't be {given[name]!r}. {nearest(str(given[name]), known)}"

    level = given["log_level"]

    if not isinstance(level, str) or level.upper() not in LEVELS:
        yield f"log_level must be DEBUG, INFO, WARNING or ERROR, not {level!r}"
