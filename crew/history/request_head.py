"""The head of a request: its instructions and tools, identified by their hashes."""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal

from pydantic_core import to_json

from crew.interfaces import ToolSpec


def text_digest(text: str) -> str:
    """A hash of a text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def spec_digest(spec: ToolSpec) -> str:
    """A hash of the name, the description and the schema of a tool."""
    parts = to_json([spec.name, spec.description, dict(spec.parameters)], fallback=str)
    return blake2b(parts, digest_size=8).hexdigest()


def request_head(instructions: str, specs: tuple[ToolSpec, ...]) -> str:
    """Identifies the part of a request before its messages: a hash of the tools, and one of the instructions."""
    return text_digest("".join(map(spec_digest, specs))) + text_digest(instructions)


def head_change(before: str, now: str) -> Literal["", "instructions", "tools"]:
    """What differs between the heads of two requests; an empty head, of an older state, is not compared."""
    if not before or not now or before == now:
        return ""

    half = len(now) // 2
    return "instructions" if before[:half] == now[:half] else "tools"
