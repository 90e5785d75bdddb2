"""Scripted providers that record or check the requests they receive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from crew import ScriptedProvider
from crew.interfaces import ModelReply, ModelRequest, OnDelta
from crew.message_rules import validate
from crew.messages import Message
from tests.support.invariants import request_violations

Before = Callable[[ModelRequest], Awaitable[None]]


class RecordingProvider(ScriptedProvider):
    """Keeps every request it receives."""

    def __init__(self, *lines: Any, **options: Any) -> None:
        super().__init__(*lines, **options)
        self.requests: list[ModelRequest] = []

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        self.requests.append(request)
        return await super().complete(request, on_delta)

    @property
    def shown(self) -> list[tuple[Message, ...]]:
        """The messages of each request."""
        return [request.messages for request in self.requests]

    @property
    def replies(self) -> list[ModelRequest]:
        """The requests for a reply."""
        return [request for request in self.requests if request.purpose == "reply"]

    @property
    def summaries(self) -> list[ModelRequest]:
        """The requests for a summary."""
        return [request for request in self.requests if request.purpose == "summary"]


class ReplyingProvider(RecordingProvider):
    """Answers every request with `reply`, or `summary` if a summary is requested; both may be functions.

    A request that breaks a message rule fails the run.
    """

    def __init__(self, reply: Any = "The answer.", summary: Any = "What was said before.") -> None:
        super().__init__(self._answer, summary=summary)
        self.reply = reply

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        assert not validate(request.messages)
        return await super().complete(request, on_delta)

    def _answer(self, request: ModelRequest) -> Any:
        chosen = self.summary if request.purpose == "summary" else self.reply
        return chosen(request) if callable(chosen) else chosen


class HangingProvider:
    """Never answers; `asked` is set when a request arrives."""

    name = model = "hanging"
    profile = "strictest"

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        self.asked.set()
        await hang()
        raise AssertionError("unreachable")


class CheckedModels:
    """Makes the scripted models of a crew, records their requests together and checks each one."""

    def __init__(self, limit: int | None = 50) -> None:
        self.limit = limit
        self.requests: list[ModelRequest] = []
        self.violations: list[str] = []

    def scripted(self, *lines: Any, before: Before | None = None) -> CheckedModel:
        """A scripted model; `before` is awaited before each of its replies."""
        return CheckedModel(self, lines, before)

    def requests_of(self, agent: str) -> list[ModelRequest]:
        """The requests of one agent, in order."""
        return [request for request in self.requests if request.agent == agent]

    @property
    def turns(self) -> list[str]:
        """The run, agent and turn of each request, in order; a turn that was requested twice is listed twice."""
        return [f"{request.run_id}:{request.agent}:{request.turn}" for request in self.requests]


class CheckedModel(ScriptedProvider):
    """A scripted model whose requests are recorded and checked by `CheckedModels`."""

    def __init__(self, models: CheckedModels, lines: tuple[Any, ...], before: Before | None) -> None:
        super().__init__(*lines)
        self.models, self.before = models, before

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        self.models.requests.append(request)
        where = f"request {len(self.models.requests)} of {request.agent}"
        self.models.violations += [f"{where}: {v}" for v in request_violations(request, self.models.limit)]

        if self.before is not None:
            await self.before(request)

        return await super().complete(request, on_delta)


async def hang(request: ModelRequest | None = None) -> None:
    """Wait until cancelled."""
    await asyncio.get_running_loop().create_future()
