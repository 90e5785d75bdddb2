"""The cost of requests, with a prompt cache that matches the longest known prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from crew.history.tokens import estimate_message_tokens
from crew.interfaces import ModelRequest
from crew.messages import Message
from crew.settings import NonNegativeNumber, check_settings

CACHED_FROM = 1_024
"""Providers do not cache shorter prefixes."""

REMEMBERED_REQUESTS = 3
"""How many of an agent's last requests the cache holds: the last one for a reply, and up to two for summaries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars per million tokens. The defaults are those of a mid-sized Anthropic model."""

    input: NonNegativeNumber = 3.0
    output: NonNegativeNumber = 15.0
    cache_read: NonNegativeNumber = 0.3
    cache_write: NonNegativeNumber = 3.75

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledRequest:
    """The simulated bill of one request."""

    purpose: str
    agent: str
    input_tokens: int
    cached_tokens: int
    written_tokens: int
    output_tokens: int
    prefix_broken: bool

    def cost(self, prices: Prices) -> float:
        """The cost in dollars."""
        uncached = self.input_tokens - self.cached_tokens - self.written_tokens
        parts = (
            (uncached, prices.input),
            (self.cached_tokens, prices.cache_read),
            (self.written_tokens, prices.cache_write),
            (self.output_tokens, prices.output),
        )
        return sum(tokens * price for tokens, price in parts) / 1_000_000


@dataclass(slots=True)
class PromptCacheBilling:
    """Bills requests in order; each one can read the prefixes of earlier ones from the cache."""

    _cached: dict[str, list[tuple[Message, ...]]] = field(default_factory=dict)
    _last: dict[str, tuple[Message, ...]] = field(default_factory=dict)

    def bill(self, request: ModelRequest, overhead: int, output: int) -> BilledRequest:
        """Bill the next request; `overhead` are the tokens of instructions and tools, `output` those of the reply."""
        messages = request.messages
        counts = [estimate_message_tokens(message) for message in messages]
        total = overhead + sum(counts)
        earlier = self._cached.setdefault(request.agent, [])
        same = max((_common_messages(messages, other) for other in earlier), default=-1)
        prefix = overhead + sum(counts[:same]) if same >= 0 else 0
        cached = prefix if prefix >= CACHED_FROM else 0
        written = total - cached if total >= CACHED_FROM else 0
        prefix_broken = False

        if request.purpose == "reply":
            last = self._last.get(request.agent)
            prefix_broken = last is not None and _common_messages(messages, last) < len(last)
            self._last[request.agent] = messages

        self._cached[request.agent] = [*earlier, messages][-REMEMBERED_REQUESTS:]
        return BilledRequest(
            purpose=request.purpose,
            agent=request.agent,
            input_tokens=total,
            cached_tokens=cached,
            written_tokens=written,
            output_tokens=output,
            prefix_broken=prefix_broken,
        )


def _common_messages(one: Sequence[Message], other: Sequence[Message]) -> int:
    """The number of equal messages at the start of both."""
    count = 0

    for a, b in zip(one, other, strict=False):
        if a is not b and a != b:
            break

        count += 1

    return count
