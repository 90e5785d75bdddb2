"""Bodies that are too large or too slow are refused, without being held in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from crew import Agent, CrewExecutor, ScriptedProvider
from crew.server import serve_process
from tests.support.http_service import client_of, served


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


UNFINISHED = b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"


async def test_a_request_that_is_answered_before_its_body_is_complete_has_little_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client without a token can't keep a connection open by a byte of the body now and then."""
    monkeypatch.setattr(serve_process, "HEAD_SECONDS", 0.2)

    async with served(greeter()) as url, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(UNFINISHED)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401")

        rest = asyncio.create_task(reader.read())

        while not rest.done():  # for ever, if nothing closed the connection
            writer.write(b"x")
            await asyncio.sleep(0.02)

        with suppress(ConnectionResetError):  # a byte of the body arrived after the server had closed
            assert b"HTTP/1.1" not in await rest, "one answer for one request"

        writer.transport.abort()


async def test_a_body_that_follows_its_answer_does_not_end_the_connection() -> None:
    """A client that sends head and body apart gets the answer, and sends its next request on the same connection."""
    async with served(greeter()) as url, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))

        for _ in range(2):
            writer.write(UNFINISHED)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 401")
            length = next(line for line in head.splitlines() if line.lower().startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
            writer.write(b"x" * 1_000)

        writer.transport.abort()
