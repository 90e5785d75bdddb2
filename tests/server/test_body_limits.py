"""Bodies that are too large or too slow are refused, without being held in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from crew import Agent, CrewExecutor, ScriptedProvider
from tests.support.http_service import client_of


def greeter() -> CrewExecutor:
    return CrewExecutor(Agent("greeter", model=ScriptedProvider(lambda request: "Hello.")))


async def test_a_declared_length_is_refused_before_the_body_is_read() -> None:
    """413 by the header alone."""
    async with client_of(greeter(), max_body_bytes=1_000) as client:
        answer = await client.post("/runs", content=b"x" * 1_001)
        assert (answer.status_code, answer.json()["error"]["type"]) == (413, "body_too_large")
        assert answer.headers["connection"] == "close"


async def test_a_chunked_body_is_counted_as_it_arrives() -> None:
    """The body has no declared length: reading stops at the limit."""
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent

        for _ in range(10_000):
            sent += 100
            yield b"x" * 100

    async with client_of(greeter(), max_body_bytes=1_000) as client:
        answer = await client.post("/runs", content=chunks())
        assert answer.status_code == 413
        assert sent <= 1_200


async def test_a_slow_body_is_refused() -> None:
    """408 after the time for the whole body, however often a piece of it arrives."""

    async def chunks() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.02)

    async with client_of(greeter(), body_seconds=0.1) as client:
        answer = await client.post("/runs", content=chunks())
        assert (answer.status_code, answer.json()["error"]["type"]) == (408, "body_timeout")
