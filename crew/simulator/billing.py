"""What requests cost, with a prompt cache that keeps the longest prefix it has seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from crew.history.tokens import estimate_message_tokens
from crew.interfaces import ModelRequest
from crew.messages import Message

CACHED_FROM = 1_024
"""Providers cache no prefix that is shorter."""

REMEMBERED_REQUESTS = 3
"""How many of an agent's requests the cache still knows: the last reply, and a summary or two since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars for a million tokens. The defaults are those of a mid-sized Anthropic model."""

    input: float = 3.0
    output: float = 15.0
    cache_read: float = 0.3
    cache_write: float = 3.75


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledRequest:
    """One request as it would be billed."""

    purpose: str
    agent: str
    input_tokens: int
    cached_tokens: int
    written_tokens: int
    output_tokens: int
    prefix_broken: bool

    def cost(self, prices: Prices) -> float:
        """In dollars."""
        plain = self.input_tokens - self.cached_tokens - self.written_tokens
        parts = (
            (plain, prices.input),
            (self.cached_tokens, prices.cache_read),
            (self.written_tokens, prices.cache_write),
            (self.output_tokens, prices.output),
        )
        return sum(tokens * price for tokens, price in parts) / 1_000_000


@dataclass(slots=True)
class PromptCacheBilling:
    """Bills requests one after the other."""

    _seen: dict[str, list[tuple[Message, ...]]] = field(default_factory=dict)
    _last: dict[str, tuple[Message, ...]] = field(default_factory=dict)

    def bill(self, request: ModelRequest, fixed: int, output: int) -> BilledRequest:
        """What this request costs after those before it."""
        messages = request.messages
        counts = [estimate_message_tokens(message) for message in messages]
        total = fixed + sum(counts)
        known = self._seen.setdefault(request.agent, [])
        same = max((_common_messages(messages, before) for before in known), default=-1)
        front = fixed + sum(counts[:same]) if same >= 0 else 0
        cached = front if front >= CACHED_FROM else 0
        written = total - cached if total >= CACHED_FROM else 0
        broke = False

        if request.purpose == "reply":
            before = self._last.get(request.agent)
            broke = before is not None and _common_messages(messages, before) < len(before)
            self._last[request.agent] = messages

        self._seen[request.agent] = [*known, messages][-REMEMBERED_REQUESTS:]
        return BilledRequest(
            purpose=request.purpose,
            agent=request.agent,
            input_tokens=total,
            cached_tokens=cached,
            written_tokens=written,
            output_tokens=output,
            prefix_broken=broke,
        )


def _common_messages(one: Sequence[Message], other: Sequence[Message]) -> int:
    count = 0

    for a, b in zip(one, other, strict=False):
        if a is not b and a != b:
            break

        count += 1

    return count
