"""Usage with its price."""

from __future__ import annotations

from dataclasses import replace

from crew.messages import Usage
from crew.models import cost_of


def billed(
    provider: str, model: str, *, input: int, output: int, read: int = 0, write: int = 0, reasoning: int = 0
) -> Usage:
    """What one request used and cost; `input` includes what was read from and written to a cache."""
    usage = Usage(
        requests=1,
        input_tokens=input,
        output_tokens=output,
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=reasoning,
    )
    # A service that bills nothing in tokens has told us nothing about money either.
    return replace(usage, cost=cost_of(provider, model, usage) if input or output else None)
