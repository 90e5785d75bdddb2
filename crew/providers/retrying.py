"""A provider that asks again where that is worth it: by the error's type, as the service asks, within a deadline."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from crew.errors import MalformedReply, ProviderError, Unavailable, describe
from crew.interfaces import Delta, ModelReply, ModelRequest, ModelSettings, OnDelta, Provider, RetryAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how long: `attempts` in all, `timeout` for one of them, `deadline` for all with their waits.

    The waits double from `first_wait` to `longest_wait`, each shortened by chance, so that many who fail together do
    not come back together. A service that asks for a longer wait gets it, up to `longest_retry_after`.
    """

    attempts: int = 8
    timeout: float = 300.0
    deadline: float = 900.0
    first_wait: float = 0.5
    longest_wait: float = 30.0
    longest_retry_after: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """Wraps a provider; the random number, the sleep and the clock can be given."""

    provider: Provider = field(kw_only=False)
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    random: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic

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
    def secrets(self) -> tuple[str, ...]:
        """What the provider holds and nobody may see."""
        return getattr(self.provider, "secrets", ())

    def check(self, settings: ModelSettings) -> None:
        """Whether the provider knows these settings."""
        if check := getattr(self.provider, "check", None):
            check(settings)

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        """Ask until there is a reply, an error that asking again can't mend, or no time left."""
        end = self.clock() + self.policy.deadline
        attempt = 1

        while True:
            told = _DeltaTracker(on_delta) if on_delta is not None else None

            try:
                return await self._attempt(request, told, end)
            except (Unavailable, MalformedReply) as error:
                wait = self._wait(error, attempt, end)

                if request.on_retry is not None:
                    request.on_retry(RetryAttempt(attempt=attempt, reason=describe(error), wait=wait))

            if told is not None and told.started:
                told.on_delta(Delta(text="", kind="restart"))

            await self.sleep(wait)
            attempt += 1

    async def _attempt(self, request: ModelRequest, told: _DeltaTracker | None, end: float) -> ModelReply:
        seconds = min(self.policy.timeout, max(0.001, end - self.clock()))

        try:
            async with asyncio.timeout(seconds) as limit:
                return await self.provider.complete(request, told)
        except TimeoutError as error:
            if not limit.expired():
                raise

            raise Unavailable(
                f"{self.name} ({self.model}) did not answer within {seconds:g} s.", provider=self.name, model=self.model
            ) from error

    def _wait(self, error: ProviderError, attempt: int, end: float) -> float:
        """The seconds until the next attempt; the error itself, if there is none."""
        policy = self.policy

        if attempt >= policy.attempts:
            error.add_note(f"It was asked {attempt} times.")
            raise error

        asked = error.retry_after

        if asked is not None and asked > policy.longest_retry_after:
            error.add_note(
                f"The service asks to wait {asked:.0f} s, which is more than the {policy.longest_retry_after:g} s that "
                "longest_retry_after allows."
            )
            raise error

        grown = min(policy.longest_wait, policy.first_wait * 2.0 ** (attempt - 1))
        wait = max(grown * (0.5 + self.random() / 2), asked or 0.0)

        if self.clock() + wait >= end:
            error.add_note(f"The deadline of {policy.deadline:g} s leaves no time to ask again.")
            raise error

        return wait

    async def aclose(self) -> None:
        """Close the provider, if it can be closed."""
        if close := getattr(self.provider, "aclose", None):
            await close()


class _DeltaTracker:
    """Passes the pieces of a reply on, and remembers whether there were any."""

    __slots__ = ("on_delta", "started")

    def __init__(self, on_delta: OnDelta) -> None:
        self.on_delta, self.started = on_delta, False

    def __call__(self, delta: Delta) -> None:
        self.started = True
        self.on_delta(delta)
