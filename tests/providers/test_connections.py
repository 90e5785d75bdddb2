"""Connections belong to the executor's event loop: runs share them, and they are closed with the loop."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from typing import Any

import pytest

from crew import Agent, CrewExecutor
from tests.support.remote_providers import PROTOCOLS, provider
from tests.wire import Protocol, WireServer


class CountedServer(WireServer):
    """Counts the TCP connections that it accepted."""

    accepted = 0

    def _connect(self) -> Any:
        self.accepted += 1
        return super()._connect()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_sequential_runs_share_one_connection(protocol: Protocol) -> None:
    """Without `async with`: the server sees one connection for all runs."""
    async with CountedServer() as server:
        executor = CrewExecutor(Agent("a", model=provider(server, protocol)))

        for _ in range(500):
            await executor.execute("Hello")

        assert (server.accepted, server.count) == (1, 500)
        await executor.aclose()


async def test_aclose_closes_the_connection_and_the_next_run_opens_another() -> None:
    """An executor can be used after `aclose`."""
    async with CountedServer() as server:
        executor = CrewExecutor(Agent("a", model=provider(server, "chat")))

        for _ in range(2):
            await executor.execute("Hello")
            await executor.aclose()

        assert server.accepted == 2


LOOPS = """
import asyncio, gc, sys, threading, warnings
warnings.simplefilter("error")
from crew import Agent, CrewExecutor
from crew.providers import OpenAIChat

executor = CrewExecutor(Agent("a", model=OpenAIChat("gpt-4o", base_url=sys.argv[1], api_key="key-123456")))

for _ in range(20):
    asyncio.run(executor.execute("Hello"))

def work():
    for _ in range(5):
        executor.execute_sync("Hello")

threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
gc.collect()
print("done")
"""


async def test_loops_that_end_leave_nothing_open() -> None:
    """`asyncio.run` twenty times, `execute_sync` in eight threads: no "Unclosed" message, no warning, nothing open."""
    async with CountedServer() as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-c", LOOPS, server.openai_url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        output, errors = await process.communicate()
        assert (output.decode().strip(), errors.decode()) == ("done", "")
        assert (server.accepted, server.count) == (60, 60)
        assert not server.connections

    gc.collect()


async def test_dropped_executor_closes_its_connection() -> None:
    """An executor that is created for one run, and never closed, leaves no connection open."""
    async with CountedServer() as server:
        for _ in range(3):
            await CrewExecutor(Agent("a", model=provider(server, "chat"))).execute("Hello")

        gc.collect()

        while server.connections:
            await asyncio.sleep(0.01)

        assert server.accepted == 3
