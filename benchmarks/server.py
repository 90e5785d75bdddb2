"""The service: events per second to 1 and to 100 readers, reconnecting to a long run, and what HTTP adds to a run.

    python benchmarks/server.py

The server is a process with the runs in memory; this process only counts the bytes and events that arrive.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from crew import Agent, Crew, CrewExecutor, Limits, ScriptedProvider, call, tool
from crew.client import CrewClient
from crew.interfaces import Delta, ModelReply, ModelRequest, OnDelta
from crew.providers.scripted import ScriptLine

ROUNDS, LINES, READERS, RUNS = 150, 2_000, 100, 200
SECRET = "benchmark-secret-0123456789"


@tool(effect="read")
def look(place: int) -> str:
    """Look at a place.

    Args:
        place: Its number.
    """
    return f"Place {place}: nothing new."


def next_call(request: ModelRequest) -> ScriptLine:
    return call("look", place=request.turn)


class Writer:
    """A model that generates a long report, ten lines at a time."""

    name, model, profile = "writer", "writer", "strictest"

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        for number in range(LINES):
            if on_delta is not None:
                on_delta(Delta(text="One line of a long report.\n"))

            if number % 10 == 0:
                await asyncio.sleep(0.001)

        return ModelReply(text="One line of a long report.\n" * LINES)


many_calls = Crew(
    "calls", agents=[Agent("calls", model=ScriptedProvider(*[next_call] * ROUNDS, "Done."), tools=[look])]
)
many_deltas = Crew("deltas", agents=[Agent("deltas", model=Writer())])
two_calls = Crew("two", agents=[Agent("two", model=ScriptedProvider(next_call, "Done."), tools=[look])])


@asynccontextmanager
async def server(crew: str, *options: str) -> AsyncIterator[tuple[int, int]]:
    """The port and the process id of a server."""
    command = ["-m", "crew.cli", "serve", f"{__file__}:{crew}", "--port", "0", "--token", SECRET, *options]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None

    try:
        while not (found := re.search(rb"http://127\.0\.0\.1:(\d+)", line := await process.stderr.readline())):
            assert line, "the server did not start"

        yield int(found[1]), process.pid
    finally:
        process.kill()
        await process.wait()


async def count_events(port: int, run_id: str, after: str = "0.0") -> tuple[int, int]:
    """Read the stream of a run to its end; the numbers of events and bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    head = f"GET /runs/{run_id}/events?after={after} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {SECRET}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode())
    events, bytes, rest = 0, 0, b""

    while data := await reader.read(2**18):
        bytes += len(data)
        rest += data
        events += rest.count(b"\ndata: ")
        rest = rest[-6:]

    writer.close()
    return events, bytes


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure_events(crew: str, what: str) -> None:
    """Stored events: the run has ended. Live ones: the readers are connected before the run starts."""
    async with server(crew) as (port, pid), CrewClient(f"http://127.0.0.1:{port}", SECRET) as client:
        for readers in (1, READERS) if crew == "many_calls" else ():  # deltas are not stored
            run_id = f"stored-{readers}"
            await client.execute("Go.", run_id=run_id)
            before, cpu = time.perf_counter(), cpu_seconds(pid)
            found = await asyncio.gather(*(count_events(port, run_id) for _ in range(readers)))
            seconds, cpu = time.perf_counter() - before, cpu_seconds(pid) - cpu
            report(f"{what}, stored", readers, found, seconds, cpu)

        for readers in (1, READERS):
            run_id = f"live-{readers}"
            before, cpu = time.perf_counter(), cpu_seconds(pid)
            running = asyncio.create_task(client.execute("Go.", run_id=run_id))

            await wait_until_known(client, run_id)
            found = await asyncio.gather(*(count_events(port, run_id) for _ in range(readers)))
            await running
            seconds, cpu = time.perf_counter() - before, cpu_seconds(pid) - cpu
            report(f"{what}, live", readers, found, seconds, cpu)


async def wait_until_known(client: CrewClient, run_id: str) -> None:
    while run_id not in {run.run_id for run in (await client.runs(limit=5))[0]}:
        pass


def report(what: str, readers: int, found: list[tuple[int, int]], seconds: float, cpu: float) -> None:
    events, bytes = sum(one[0] for one in found), sum(one[1] for one in found)
    rate = f"{events / seconds:9,.0f} events/s, {bytes / seconds / 1e6:5.1f} MB/s"
    print(f"{what:22} {readers:3} readers: {rate}; {1e6 * cpu / events:5.0f} µs of CPU an event")


async def measure_reconnects() -> None:
    """A reader of a run with 2,000 requests that asks only for what came after its last event: nothing."""
    with TemporaryDirectory() as folder:
        path = f"{folder}/runs.db"
        crew = Agent("two", model=ScriptedProvider(*[next_call] * 2_000, "Done."), tools=[look])

        async with CrewExecutor(crew, store=path, limits=Limits(rounds=None)) as executor:
            result = await executor.execute("Go.", run_id="long")

        async with server("two_calls", "--store", path) as (port, pid):
            after = f"{result.state.sequence}.0"  # beyond the last one
            await count_events(port, "long", after)
            cpu = cpu_seconds(pid)
            took = [await timed(count_events(port, "long", after)) for _ in range(20)]
            cpu = cpu_seconds(pid) - cpu

    print(f"reconnecting to a run with 2,000 requests: {1e3 * median(took):.1f} ms (CPU: {1e3 * cpu / 20:.1f} ms)")


async def measure_overhead() -> None:
    """Runs one after the other: in this process, and over HTTP with its events streamed to the client."""
    executor = CrewExecutor(two_calls)
    await executor.execute("Go.")
    before = time.process_time()
    own = [await timed(executor.execute("Go.")) for _ in range(RUNS)]
    in_process = time.process_time() - before

    async with server("two_calls") as (port, pid), CrewClient(f"http://127.0.0.1:{port}", SECRET) as client:
        await client.execute("Go.")
        cpu, own_cpu = cpu_seconds(pid), resource.getrusage(resource.RUSAGE_SELF).ru_utime
        remote = [await timed(client.execute("Go.")) for _ in range(RUNS)]
        cpu, own_cpu = cpu_seconds(pid) - cpu, resource.getrusage(resource.RUSAGE_SELF).ru_utime - own_cpu

    print(f"a run in this process: {1e3 * median(own):6.2f} ms (CPU: {1e3 * in_process / RUNS:.1f} ms)")
    spent = f"CPU: server {1e3 * cpu / RUNS:.1f} ms, client {1e3 * own_cpu / RUNS:.1f} ms"
    print(f"a run over HTTP:       {1e3 * median(remote):6.2f} ms ({spent})")


async def timed(work: object) -> float:
    before = time.perf_counter()
    await work  # type: ignore[misc]
    return time.perf_counter() - before


async def main() -> None:
    await measure_events("many_calls", f"{ROUNDS} tool calls")
    await measure_events("many_deltas", f"{LINES} deltas")
    await measure_reconnects()
    await measure_overhead()


if __name__ == "__main__":
    asyncio.run(main())
