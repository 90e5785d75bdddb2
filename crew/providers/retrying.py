"""Retries failed requests to a provider, with backoff, within a deadline."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from crew.errors import MalformedReply, ProviderError, ReplyTooLarge, Unavailable, Unreachable, describe
from crew.interfaces import (
    AsyncClosable,
    ChecksSettings,
    Delta,
    HasSecrets,
    ModelReply,
    ModelRequest,
    ModelSettings,
    OnDelta,
    Provider,
    RetryAttempt,
    RetryPolicy,
)
from crew.providers.rate_limits import ModelLimiter

UNREACHABLE_ATTEMPTS = 4
"""The attempts to reach a server that never answered: some 4 seconds with the default waits."""


@dataclass(kw_only=True, eq=False)
class Retrying:
    """A `RemoteProvider` that wraps any provider and repeats requests that fail with Unavailable or MalformedReply.

    A server that never answered and can't be reached is given up after a few attempts: its address may be wrong.
    `limits` let each attempt wait for the rate limits; that wait does not count in the deadline.
    `random`, `sleep` and `clock` are replaceable for tests.
    """

    provider: Provider = field(kw_only=False)
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    random: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    limits: ModelLimiter | None = None
    _answered: bool = field(default=False, init=False, repr=False)

    @property
    def name(self) -> str:
        return self.provider.name

    @property
    def model(self) -> str:
        return self.provider.model

    @property
    def profile(self) -> str:
        return self.provider.profile

    @property
    def secrets(self) -> Sequence[object]:
        """The secrets of the wrapped provider."""
        return () if self._secret_holder is None else self._secret_holder.secrets

    @cached_property  # read for every request, and isinstance with a Protocol is slow
    def _secret_holder(self) -> HasSecrets | None:
        return self.provider if isinstance(self.provider, HasSecrets) else None

    def check(self, settings: ModelSettings) -> None:
        """Check the settings with the wrapped provider, if it can."""
        if isinstance(self.provider, ChecksSettings):
            self.provider.check(settings)

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        """Return the first reply; raise if an error is not retryable or no attempt or time is left."""
        end = self.clock() + self.policy.deadline
        attempt = 1

        while True:
            deltas = _DeltaTracker(on_delta) if on_delta is not None else None
            began = self.clock()
            ticket = None if self.limits is None else await self.limits.admit(request)
            end += self.clock() - began

            try:
                reply = await self._attempt(request, deltas, end)
                self._answered = True

                if self.limits is not None and ticket is not None:
                    self.limits.replied(ticket, reply)

                return reply
            except (Unavailable, MalformedReply) as error:
                if ticket is not None:
                    ticket.failed(error)

                if not isinstance(error, Unreachable):
                    self._answered = True

                wait = self._wait(error, attempt, end)

                if request.on_retry is not None:
                    request.on_retry(RetryAttempt(attempt=attempt, reason=describe(error), wait=wait))

            if deltas is not None and deltas.started:
                deltas.on_delta(Delta(text="", kind="restart"))

            await self.sleep(wait)
            attempt += 1

    async def _attempt(self, request: ModelRequest, deltas: _DeltaTracker | None, end: float) -> ModelReply:
        seconds = min(self.policy.timeout, max(0.001, end - self.clock()))

        try:
            async with asyncio.timeout(seconds) as limit:
                return await self.provider.complete(request, deltas)
        except TimeoutError as error:
            if not limit.expired():
                raise

            raise Unavailable(
                f"{self.name} ({self.model}) did not respond within {seconds:g} s.",
                provider=self.name,
                model=self.model,
            ) from error

    def _wait(self, error: ProviderError, attempt: int, end: float) -> float:
        """Return the seconds until the next attempt; raise the error if there is no next attempt."""
        if isinstance(error, ReplyTooLarge) or not error.may_retry:
            raise error

        policy = self.policy
        now = self.clock()
        elapsed = now - (end - policy.deadline)
        history = f"{attempt} attempt{'' if attempt == 1 else 's'} in {elapsed:.0f} s"

        never_reached = isinstance(error, Unreachable) and not self._answered

        if attempt >= (min(UNREACHABLE_ATTEMPTS, policy.attempts) if never_reached else policy.attempts):
            raise _with_reason(error, history)

        asked = error.retry_after

        if asked is not None and asked > policy.longest_retry_after:
            raise _with_reason(
                error,
                f"{history}; the service asks to wait {asked:.0f} s, more than "
                f"longest_retry_after={policy.longest_retry_after:g} allows",
            )

        backoff = min(policy.longest_wait, policy.first_wait * 2.0 ** (attempt - 1))
        wait = max(backoff * (0.5 + self.random() / 2), asked or 0.0)

        if now + wait >= end:
            raise _with_reason(error, f"{history}; the deadline of {policy.deadline:g} s leaves no time for another")

        return wait

    async def aclose(self) -> None:
        """Close the wrapped provider, if it can be closed."""
        if isinstance(self.provider, AsyncClosable):
            await self.provider.aclose()


def _with_reason(error: ProviderError, reason: str) -> ProviderError:
    """Append to the message why there is no further attempt; callers that print only the message see it too."""
    error.args = (f"{error} ({reason})",)
    return error


class _DeltaTracker:
    """Forwards deltas and records whether there were any."""

    __slots__ = ("on_delta", "started")

    def __init__(self, on_delta: OnDelta) -> None:
        self.on_delta, self.started = on_delta, False

    def __call__(self, delta: Delta) -> None:
        self.started = True
        self.on_delta(delta)
