"""The cost of requests, with a prompt cache that matches the longest known prefix."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from crew.history.tokens import estimate_message_tokens
from crew.interfaces import ModelReply, ModelRequest
from crew.messages import AssistantMessage, Message, ToolMessage
from crew.providers.anthropic_render import MAX_BLOCKS_APART, MESSAGE_BREAKPOINTS
from crew.settings import NonNegativeNumber, PositiveInt, check_settings
from crew.simulator.recorded_bills import RecordedBills

CACHED_FROM = 1_024
"""Providers do not cache shorter prefixes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars per million tokens. The defaults are those of a mid-sized Anthropic model.

    `cache_step`: a service that caches any prefix reads multiples of so many tokens (OpenAI: 128). 1: a service that
    caches up to the breakpoints of a request (Anthropic), which Crew sets at its end.
    """

    input: NonNegativeNumber = 3.0
    output: NonNegativeNumber = 15.0
    cache_read: NonNegativeNumber = 0.3
    cache_write: NonNegativeNumber = 3.75
    cache_step: PositiveInt = 1

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


@dataclass(slots=True, kw_only=True)
class PromptCacheBilling:
    """Bills requests in order; each one can read the prefixes of earlier ones from the cache, which never expires.

    `overheads` are the tokens of the instructions and tools of each agent.
    """

    counts: RecordedBills
    overheads: Mapping[str, int]
    cache_step: int = 1
    _cached: dict[str, set[int]] = field(default_factory=dict)
    _last: dict[str, tuple[Message, ...]] = field(default_factory=dict)

    def bill(self, request: ModelRequest, reply: ModelReply) -> BilledRequest:
        """Bill the next request."""
        messages, overhead = request.messages, self.overheads[request.agent]
        counts = [self.counts.count(message) for message in messages]
        total = round(overhead + sum(counts))
        same = self._read_cache(request)
        prefix = round(overhead + sum(counts[:same])) // self.cache_step * self.cache_step if same >= 0 else 0
        cached = prefix if prefix >= CACHED_FROM else 0
        written = total - cached if total >= CACHED_FROM else 0
        prefix_broken = False

        if request.purpose == "reply":
            last = self._last.get(request.agent)
            prefix_broken = last is not None and _common_messages(messages, last) < len(last)
            self._last[request.agent] = messages

        return BilledRequest(
            purpose=request.purpose,
            agent=request.agent,
            input_tokens=total,
            cached_tokens=cached,
            written_tokens=written,
            output_tokens=self.counts.count_output(reply),
            prefix_broken=prefix_broken,
        )

    def _read_cache(self, request: ModelRequest) -> int:
        """The number of messages in the longest cached prefix, -1 if none is cached; then caches this request."""
        prefixes = [*accumulate(request.messages, _hash_prefix, initial=0)]
        cached = self._cached.setdefault(request.agent, set())
        same = next((n for n in range(len(prefixes) - 1, -1, -1) if prefixes[n] in cached), -1)
        stored = range(len(prefixes)) if self.cache_step > 1 else (0, *_breakpoints(request.messages))
        cached.update(prefixes[n] for n in stored)
        return same


def _hash_prefix(before: int, message: Message) -> int:
    """The hash of a prefix with one more message; the tokens differ for a masked or shortened form of a message."""
    return hash((before, message.id, estimate_message_tokens(message)))


def _breakpoints(messages: Sequence[Message]) -> list[int]:
    """The lengths of the prefixes that end at a breakpoint of a request, as Crew sets them for Anthropic."""
    ends = [*accumulate(map(_block_count, messages))]
    last = ends[-1] if ends else 0
    wanted = [last - number * MAX_BLOCKS_APART for number in range(MESSAGE_BREAKPOINTS)]
    return [bisect_right(ends, end) for end in wanted if end > 0]


def _block_count(message: Message) -> int:
    match message:
        case AssistantMessage():
            return len(message.calls) + bool(message.text)
        case ToolMessage():
            return len(message.results)
        case _:
            return 1


def _common_messages(one: Sequence[Message], other: Sequence[Message]) -> int:
    """The number of equal messages at the start of both."""
    count = 0

    for a, b in zip(one, other, strict=False):
        if a is not b and a != b:
            break

        count += 1

    return count
