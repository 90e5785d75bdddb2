"""The progress that a tool emits, in one line for a terminal or a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from crew.control_characters import escape_controls

TEXT_KEYS, DONE_KEYS = ("message", "text", "status"), ("progress", "done", "current")


def progress_text(data: object) -> str:
    """A text as it is, a share of 1 in percent, `message`, `progress` and `total` as `Copying: 3/10`, else JSON."""
    if isinstance(data, str):
        return escape_controls(data)

    if isinstance(data, float) and 0 <= data <= 1:
        return f"{data:.0%}"

    counted = _counted(data) if isinstance(data, Mapping) else ""
    return counted or escape_controls(json.dumps(data, ensure_ascii=False, default=str))


def _counted(data: Mapping[Any, Any]) -> str:
    """The text and the numbers of a mapping that holds nothing else; empty for other mappings."""
    text = next((data[key] for key in TEXT_KEYS if isinstance(data.get(key), str)), "")
    done = next((data[key] for key in DONE_KEYS if _is_number(data.get(key))), None)
    total = data.get("total")

    if set(data) - {*TEXT_KEYS, *DONE_KEYS, "total"} or (not text and done is None):
        return ""

    numbers = "" if done is None else f"{done:g}/{total:g}" if _is_number(total) else f"{done:g}"
    return ": ".join(part for part in (escape_controls(text), numbers) if part)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
