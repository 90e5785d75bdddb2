"""Connections belong to the executor's event loop: runs share them, and they are closed with the loop."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
        assert (server.accepted, server.count) == (28, 60)
        assert not server.connections

    gc.collect()


async def test_dropped_executor_closes_its_connection() -> None:
    """An executor that is created for one run, and never closed, leaves no connection open, also without `gc`."""
    gc.disable()

    async with CountedServer() as server:
        for _ in range(3):
            await CrewExecutor(Agent("a", model=provider(server, "chat"))).execute("Hello")

        gc.enable()

        while server.connections:
            await asyncio.sleep(0.01)

        assert server.accepted == 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sequential_sync_calls_of_a_thread_share_one_connection(protocol: Protocol) -> None:
    """Each thread keeps its event loop, and with it the connection; both are closed when the thread ends."""
    with CountedServer() as server:
        executor = CrewExecutor(Agent("a", model=provider(server, protocol)))

        def work() -> None:
            for _ in range(100):
                executor.execute_sync("Hello")

            assert len(server.connections) == 1

        run_in_thread(work)
        assert (server.accepted, server.count) == (1, 100)
        assert all_closed(server)


def test_sync_calls_inside_a_running_loop_share_one_connection() -> None:
    """In a notebook, or where async code calls sync code."""
    with CountedServer() as server:
        executor = CrewExecutor(Agent("a", model=provider(server, "chat")))

        async def work() -> None:
            for _ in range(20):
                executor.execute_sync("Hello")

        asyncio.run(work())
        assert (server.accepted, server.count) == (1, 20)


def test_dropped_executors_of_sync_calls_close_their_connections() -> None:
    """An idle loop can't close a connection: the next call does, so that at most one waits."""
    with CountedServer() as server:

        def work() -> None:
            for _ in range(20):
                CrewExecutor(Agent("a", model=provider(server, "chat"))).execute_sync("Hello")

            assert len(server.connections) <= 3

        run_in_thread(work)
        assert server.accepted == 20
        assert all_closed(server)


def run_in_thread(work: Callable[[], None]) -> None:
    """Run on a thread that ends, and raise its error."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def all_closed(server: WireServer) -> bool:
    """Whether the server sees the end of all connections within half a minute."""
    end = time.monotonic() + 30

    while server.connections and time.monotonic() < end:
        time.sleep(0.01)

    return not server.connections


BARE = """
import asyncio, gc, os, sys, warnings
warnings.simplefilter("error")
from crew import Agent, CrewExecutor
from crew.providers import OpenAIChat

executor = CrewExecutor(Agent("a", model=OpenAIChat("gpt-4o", base_url=sys.argv[1], api_key="key-123456")))

def sockets():
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum("socket" in os.readlink(link) for link in links if os.path.lexists(link))

before = sockets()

for _ in range(100):
    loop = asyncio.new_event_loop()
    loop.run_until_complete(executor.execute("Hello"))
    loop.close()
    assert loop.is_closed()
    assert sockets() == before

for _ in range(100):
    asyncio.run(executor.execute("Hello"))
    assert sockets() == before

async def close_elsewhere(loop):
    loop.close()  # in a thread in which another loop runs

loop = asyncio.new_event_loop()
loop.run_until_complete(executor.execute("Hello"))
asyncio.run(close_elsewhere(loop))
assert sockets() == before

never_closed = asyncio.new_event_loop()
never_closed.run_until_complete(executor.execute("Hello"))
gc.collect()
print("done", sum(issubclass(type(found), asyncio.AbstractEventLoop) for found in gc.get_objects()))
warnings.simplefilter("ignore")  # the loop is not closed, and Python warns
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts the sockets in /proc")
async def test_bare_close_of_a_loop_closes_its_connections() -> None:
    """`loop.close()` without `shutdown_asyncgens`: no socket or loop stays behind, no "Unclosed" message."""
    async with CountedServer() as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-c", BARE, server.openai_url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        output, errors = await process.communicate()
        found, loops = output.decode().split()
        assert (found, errors.decode()) == ("done", "")
        assert int(loops) <= 2
        assert server.accepted == 202
