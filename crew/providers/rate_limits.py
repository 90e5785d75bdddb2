"""Keeps requests under the limits of a service: requests and tokens a minute, over all runs that share a limiter."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from crew.errors import DefinitionError, ProviderError, abbreviate, suggest
from crew.history.tokens import estimate_message_tokens, estimate_tokens
from crew.interfaces import ModelReply, ModelRequest, OnDelta, Provider, RequestDelay
from crew.messages import Usage
from crew.settings import PositiveInt, setting_problems

WINDOW_SECONDS = 61.0
"""A second more than a minute, because requests take different times to the service."""
REPORTED_SECONDS = 1.0
"""A wait that lasts longer is reported."""
FIRST_OUTPUT_TOKENS = 500
_ACCOUNTS = {"openai-responses": "openai"}
"""Providers whose requests count in the limits of another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """The requests and tokens (input and output) that a service accepts in any minute; None: no limit."""

    requests_per_minute: PositiveInt | None = None
    tokens_per_minute: PositiveInt | None = None

    def __post_init__(self) -> None:
        problems = [*setting_problems(self)]

        if not problems and self.requests_per_minute is None and self.tokens_per_minute is None:
            problems.append("set requests_per_minute, tokens_per_minute, or both")

        if problems:
            raise DefinitionError("RateLimit", problems)


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


@dataclass(slots=True, eq=False)
class _Sent:
    at: float
    tokens: int


@dataclass(slots=True, eq=False)
class _Window:
    """What was sent under one limit in the last minute, and until when the service asked to wait."""

    name: str
    limit: RateLimit
    seconds: float
    held_until: float = float("-inf")
    _sent: deque[_Sent] = field(default_factory=deque)
    _tokens: int = 0

    def wait(self, now: float, tokens: int) -> float:
        """The seconds until a request with so many tokens may be sent; 0 if it may be sent now."""
        while self._sent and now - self._sent[0].at >= self.seconds:
            self._tokens -= self._sent.popleft().tokens

        requests, most = self.limit.requests_per_minute, self.limit.tokens_per_minute
        free_at = max(now, self.held_until)

        if requests is not None and len(self._sent) >= requests:
            free_at = max(free_at, self._sent[len(self._sent) - requests].at + self.seconds)

        if most is not None:
            # A request that is larger than the limit is sent alone: it would wait for ever.
            over = self._tokens + min(tokens, most) - most

            for sent in self._sent:
                if over <= 0:
                    break

                over -= sent.tokens
                free_at = max(free_at, sent.at + self.seconds)

        return free_at - now

    def add(self, now: float, tokens: int) -> _Sent:
        sent = _Sent(now, tokens)
        self._sent.append(sent)
        self._tokens += tokens
        return sent

    def correct(self, sent: _Sent, tokens: int) -> None:
        """Count what the service billed in place of the estimate, unless that is over a minute ago."""
        if self._sent and sent.at >= self._sent[0].at:
            self._tokens += tokens - sent.tokens
            sent.tokens = tokens


Names = tuple[str, ...]


class _Waiter:
    """A request that waits for its turn, in its event loop."""

    __slots__ = ("_event", "_loop", "names", "order", "tokens")

    def __init__(self, order: tuple[int, int], names: Names, tokens: int) -> None:
        self.order, self.names, self.tokens = order, names, tokens
        self._loop, self._event = asyncio.get_running_loop(), asyncio.Event()

    def __lt__(self, other: _Waiter) -> bool:
        return self.order < other.order

    def wake(self) -> None:
        """Let the request look again; callable from every thread."""
        with suppress(RuntimeError):  # its event loop has ended
            self._loop.call_soon_threadsafe(self._event.set)

    async def sleep(self, seconds: float | None) -> None:
        """Wait until `wake`, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            pass

        self._event.clear()


class RateLimiter:
    """Limits by the name of a provider (`openai`) or of a model (`openai:gpt-5`), for all runs that share it.

    Limits of `openai` apply to `openai-responses` too: both are APIs of the same account. A request waits until it fits
    in every limit that applies to it, those of the oldest run first. Pass one limiter to several executors that use the
    same account. `clock` must measure the time in which the event loop waits.
    """

    def __init__(
        self,
        limits: Mapping[str, RateLimit],
        *,
        window_seconds: float = WINDOW_SECONDS,
        clock: Callable[[], float] = _loop_time,
    ) -> None:
        if problems := [*_limit_problems(limits)]:
            raise DefinitionError("rate_limits", problems)

        self._clock = clock
        self._lock = threading.Lock()
        self._windows = {name: _Window(name, limit, window_seconds) for name, limit in limits.items()}
        self._queues: dict[Names, list[_Waiter]] = {}
        self._arrivals = itertools.count()

    @property
    def names(self) -> Names:
        """The names that have a limit."""
        return tuple(self._windows)

    def check_providers(self, known: Iterable[str]) -> None:
        """Raise `DefinitionError` for a name whose provider is unknown."""
        known = {*known}

        for name in self._windows:
            provider = name.partition(":")[0]

            if provider not in known:
                raise DefinitionError("rate_limits", f"unknown provider {provider!r}. {suggest(provider, known)}")

    def names_for(self, provider: Provider) -> Names:
        """The limits that apply to requests of this provider, the most specific one last."""
        kinds = (_ACCOUNTS.get(provider.name, provider.name), provider.name)
        names = (*kinds, *(f"{kind}:{provider.model}" for kind in kinds), provider.model)
        return tuple(dict.fromkeys(name for name in names if name in self._windows))

    async def admit(
        self, names: Names, tokens: int, order: int = 0, on_wait: Callable[[RequestDelay], None] | None = None
    ) -> Ticket:
        """Wait until a request with so many tokens may be sent, and count it. A cancelled wait counts nothing."""
        with self._lock:
            queue, place = self._queues.setdefault(names, []), (order, next(self._arrivals))

            if not queue and self._wait(names, tokens) <= 0 and not self._held_up(names, place):
                return self._take(names, tokens)

            waiter = _Waiter(place, names, tokens)
            heappush(queue, waiter)

        began, is_reported = self._clock(), False

        try:
            while True:
                with self._lock:
                    expected, is_first = self._wait(names, tokens), queue[0] is waiter
                    held_up = self._held_up(names, place) if is_first else 0.0

                    if is_first and expected <= 0 and not held_up:
                        return self._take(names, tokens)

                elapsed = self._clock() - began

                if elapsed >= REPORTED_SECONDS and not is_reported and on_wait is not None:
                    is_reported = True
                    on_wait(RequestDelay(limit=names[-1], wait=elapsed + max(0.0, expected)))

                left = max(0.0, REPORTED_SECONDS - elapsed) if not is_reported and on_wait is not None else None
                again = max(expected, held_up) if is_first and held_up < inf else None
                await waiter.sleep(min((time for time in (left, again) if time is not None), default=None))
        finally:
            with self._lock:
                self._remove(queue, waiter)
                self._wake_first()

    def _wait(self, names: Names, tokens: int) -> float:
        now = self._clock()
        return max(self._windows[name].wait(now, tokens) for name in names)

    def _held_up(self, names: Names, place: tuple[int, int]) -> float:
        """How long older requests with other limits hold up one with these limits; `inf`: until one of them is sent.

        They share a limit. One that waits for its other limits alone holds up nothing.
        """
        now, held_up = self._clock(), 0.0

        for older in (queue[0] for queue in self._queues.values() if queue and queue[0].order < place):
            waits = {name: self._windows[name].wait(now, older.tokens) for name in older.names}
            shared = [wait for name, wait in waits.items() if name in names]

            if older.names != names and shared and (max(shared) > 0 or max(waits.values()) <= 0):
                held_up = max(held_up, max(shared) if max(shared) > 0 else inf)

        return held_up

    def _take(self, names: Names, tokens: int) -> Ticket:
        now = self._clock()
        return Ticket(self, names, tuple((self._windows[n], self._windows[n].add(now, tokens)) for n in names))

    @staticmethod
    def _remove(queue: list[_Waiter], waiter: _Waiter) -> None:
        if queue[0] is waiter:
            heappop(queue)
        else:
            queue.remove(waiter)
            queue.sort()

    def _wake_first(self) -> None:
        for queue in self._queues.values():
            if queue:
                queue[0].wake()

    def correct(self, parts: Iterable[tuple[_Window, _Sent]], tokens: int) -> None:
        """Count the billed tokens of a request in place of the estimate."""
        with self._lock:
            for window, sent in parts:
                window.correct(sent, tokens)

            self._wake_first()

    def hold(self, names: Names, seconds: float) -> None:
        """Send nothing under the most specific of these limits for so long: the service asked for it."""
        with self._lock:
            window = self._windows[names[-1]]
            window.held_until = max(window.held_until, self._clock() + seconds)


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A request that was admitted, until its outcome is known."""

    limiter: RateLimiter
    names: Names
    parts: tuple[tuple[_Window, _Sent], ...]

    def replied(self, usage: Usage) -> None:
        """The service billed these tokens."""
        self.limiter.correct(self.parts, usage.input_tokens + usage.output_tokens)

    def failed(self, error: BaseException) -> None:
        """The request failed; the estimate stays, and a `Retry-After` of the service applies to all requests."""
        if isinstance(error, ProviderError) and error.retry_after:
            self.limiter.hold(self.names, error.retry_after)


@dataclass(slots=True, eq=False)
class ModelLimiter:
    """The limits of one model: admits its requests, and learns how long its replies are."""

    limiter: RateLimiter
    names: Names
    _output_tokens: float = FIRST_OUTPUT_TOKENS

    async def admit(self, request: ModelRequest) -> Ticket:
        """Wait until the request may be sent."""
        tokens = request.estimated_tokens or _estimate(request)
        output = min(self._output_tokens, request.settings.max_output_tokens or self._output_tokens)
        return await self.limiter.admit(self.names, tokens + round(output), request.order, request.on_wait)

    def replied(self, ticket: Ticket, reply: object) -> None:
        """Count what the reply cost."""
        if not isinstance(reply, ModelReply):
            return  # a custom provider may return anything; the run checks it and raises

        self._output_tokens += (reply.usage.output_tokens - self._output_tokens) / 10
        ticket.replied(reply.usage)


def _estimate(request: ModelRequest) -> int:
    return estimate_tokens(request.instructions) + sum(map(estimate_message_tokens, request.messages))


@dataclass(frozen=True, slots=True, eq=False)
class Limited:
    """A provider without retries whose requests wait for their limits."""

    provider: Provider
    limits: ModelLimiter

    @property
    def name(self) -> str:
        return self.provider.name

    @property
    def model(self) -> str:
        return self.provider.model

    @property
    def profile(self) -> str:
        return self.provider.profile

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        """Send the request when its limits allow it."""
        ticket = await self.limits.admit(request)

        try:
            reply = await self.provider.complete(request, on_delta)
        except ProviderError as error:
            ticket.failed(error)
            raise

        self.limits.replied(ticket, reply)
        return reply


def _limit_problems(limits: object) -> Iterable[str]:
    if not isinstance(limits, Mapping) or not limits:
        yield f"must be a mapping such as {{'openai': RateLimit(requests_per_minute=500)}}, not {abbreviate(limits)}"
        return

    for name, limit in limits.items():
        if not isinstance(name, str) or not all(part.strip() for part in name.split(":", 1)):
            yield f"the name {abbreviate(name)} must be that of a provider or a model, such as 'openai:gpt-5'"

        if not isinstance(limit, RateLimit):
            yield f"{name!r} must have a RateLimit(...), not {abbreviate(limit)}"
