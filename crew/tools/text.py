"""What a tool returned, in the words that the model reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic_core import to_json

from crew.messages import clean


def to_text(value: Any) -> str:
    """A string as it is, nothing as `null`, anything else as JSON; raises where there is no JSON for it."""
    if isinstance(value, str):
        return clean(value)

    if isinstance(value, Iterator):
        # It may never end, and reading it could take any time: that is the tool's own work.
        raise TypeError(f"a {type(value).__name__} is no result; return a list")

    return to_json(value, inf_nan_mode="strings").decode()


def cut(text: str, limit: int) -> str:
    """The text, or its beginning and end with a marker between them, never longer than the limit."""
    if len(text) <= limit:
        return text

    marker = f"\n[… {len(text) - limit} or more of {len(text)} characters cut …]\n"

    if len(marker) >= limit:
        return text[:limit]

    room = limit - len(marker)
    head = room - room // 4
    return text[:head] + marker + text[len(text) - (room - head) :]
