"""What the environment says on telemetry, by the standard names."""

from __future__ import annotations

import os
from collections.abc import Mapping

from crew.telemetry.names import CAPTURE_VARIABLE

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
KEYS = ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")


def captures_content(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether what was said is exported too."""
    given = environment.get(CAPTURE_VARIABLE, "").strip().lower()
    return given not in ("", "0", "false", "no", "no_content", "off")


def exports(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the standard variables ask for exporting."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False

    wanted = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    return wanted in ("otlp", "console") or (wanted != "none" and any(environment.get(name) for name in ENDPOINTS))


def exports_metrics(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the standard variables leave metrics on."""
    return environment.get("OTEL_METRICS_EXPORTER", "").strip().lower() != "none"


def sizes_queue(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the standard variables size the queue of spans."""
    return bool(environment.get("OTEL_BSP_MAX_QUEUE_SIZE"))


def keys(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The providers' keys."""
    return tuple(held for name in KEYS if (held := environment.get(name, "").strip()))
