"""Tokens and cost of model calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens and cost. `input_tokens` includes cached tokens; `cost` in US dollars is None if any price is unknown."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = 0.0

    @property
    def total_tokens(self) -> int:
        """Input and output tokens."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            requests=self.requests + other.requests,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cost=add_costs(self.cost, other.cost),
        )


def add_costs(cost: float | None, other: float | None) -> float | None:
    """The sum of two costs; None if one is unknown."""
    return None if cost is None or other is None else cost + other
