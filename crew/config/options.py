"""From settings to what `CrewExecutor` takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from crew.config.crews import history_from, parameters_from
from crew.config.settings import Settings
from crew.runs import Limits
from crew.validation import InputValidator


def options_from(settings: Settings, path: str) -> dict[str, Any]:
    """The executor's arguments as a file describes them; telemetry aside, which is turned on, not handed over."""
    limits = Limits(**settings.limits.model_dump())

    if settings.execution.max_iterations is not None:
        limits = replace(limits, rounds=settings.execution.max_iterations)

    return {
        "max_messages_per_request": settings.max_messages_per_request,
        "prune_to": settings.prune_to,
        "history": history_from(settings, path),
        "sanitize_output": settings.sanitize_output,
        "limits": limits,
        "parameters": parameters_from(settings, path),
        "validator": InputValidator(**settings.validator.model_dump()),
    }
