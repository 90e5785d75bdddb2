"""The arguments of a tool call as a person reads them: parsed, one per line, escaped and shortened."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from crew.control_characters import escape_controls

MAX_VALUE_CHARS = 500
MAX_LINES = 50


def parse_json_object(text: str) -> dict[str, Any] | None:
    """The JSON object in this text; None if it holds anything else."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None

    return value if isinstance(value, dict) else None


def argument_lines(arguments: Mapping[str, Any] | None, text: str) -> Iterator[str]:
    """One line for each argument; without parsed arguments, one line with the text that the model wrote."""
    if arguments is None:
        yield _shorten(json.dumps(text, ensure_ascii=False))
        return

    for name, value in list(arguments.items())[:MAX_LINES]:
        yield f"{_shorten(name)}: {_shorten(json.dumps(value, ensure_ascii=False))}"

    if len(arguments) > MAX_LINES:
        yield f"… and {len(arguments) - MAX_LINES} more arguments"


def describe_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What differs between the arguments that a model wrote and those of a person, in one line."""

    def shown(value: object) -> str:
        return _shorten(json.dumps(value, ensure_ascii=False))

    changes = [
        *(
            f"{name}: {shown(before[name])} → {shown(value)}" if name in before else f"{name}: {shown(value)} added"
            for name, value in after.items()
            if name not in before or before[name] != value
        ),
        *(f"{name}: {shown(value)} removed" for name, value in before.items() if name not in after),
    ]
    more = f"; and {len(changes) - MAX_LINES} more" if len(changes) > MAX_LINES else ""
    return "; ".join(changes[:MAX_LINES]) + more


def _shorten(text: str) -> str:
    line = escape_controls(text).replace("\n", "\\n").replace("\t", "\\t")
    return line if len(line) <= MAX_VALUE_CHARS else f"{line[:MAX_VALUE_CHARS]}… ({len(line):,} characters)"
