"""A server that is cut off, killed, started again and overloaded loses no event and no run."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import time
from pathlib import Path

import httpx2
import pytest

from crew.client import CrewClient, RemoteRun
from crew.runs.events import Event, TextDelta, ToolProgress
from crew.store import SQLiteStore
from tests.support.server_process import CREW, SECRET, CuttingProxy, ServerProcess, server_process

pytestmark = pytest.mark.servers


async def stored_events(path: Path, run_id: str) -> list[Event]:
    store = SQLiteStore(path)

    try:
        return [stored.event for stored in await store.events(run_id, limit=100_000)]
    finally:
        store.close()


@pytest.mark.parametrize(
    ("cuts", "kills"), [(10, 2), pytest.param(100, 15, marks=pytest.mark.soak)], ids=["short", "long"]
)
async def test_every_stored_event_arrives_once_and_in_order(tmp_path: Path, cuts: int, kills: int) -> None:
    """Connections are cut at random bytes, the server is killed at random moments and resumes its runs.

    The client reconnects by itself. What it read is exactly what is stored.
    """
    seed = int.from_bytes(random.randbytes(4))
    print(f"seed {seed}")  # noqa: T201 - pytest shows it if the test fails
    choose, path = random.Random(seed), tmp_path / "runs.db"

    async with server_process("--store", str(path), "--resume") as server:
        proxy = CuttingProxy(server, choose, longest=160_000 // cuts if cuts < 20 else 12_000)

        async with proxy.run() as url, CrewClient(url, SECRET) as client:
            killed, runs = 0, 0
            killer = asyncio.create_task(kill_at_cuts(server, proxy, cuts // kills, kills))

            while proxy.cuts < cuts or not killer.done():
                run_id = f"run-{runs}"
                read = [event async for event in client.execute_stream("Work.", run_id=run_id)]
                live = [event for event in read if isinstance(event, TextDelta | ToolProgress)]
                kept = [event for event in read if not isinstance(event, TextDelta | ToolProgress)]
                assert kept == await stored_events(path, run_id)
                assert kept[-1].kind == "run_finished"
                assert all(event.channel in ("text", "restart") for event in live if isinstance(event, TextDelta))
                runs += 1
                assert runs < 100

            killed = await killer

    assert (killed, proxy.cuts >= cuts) == (kills, True)


async def kill_at_cuts(server: ServerProcess, proxy: CuttingProxy, every: int, kills: int) -> int:
    """Kill the server after each so many cuts, and start it again; returns how often."""
    for number in range(1, kills + 1):
        while proxy.cuts < number * every:
            await asyncio.sleep(0.01)

        await server.stop(signal.SIGKILL)
        await server.start()

    return kills


async def test_a_server_that_is_stopped_leaves_its_runs_resumable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM ends the streams at once and the process soon; the next start lists the run; a resume finishes it."""
    store, gate = ("--store", str(tmp_path / "runs.db")), tmp_path / "gate"
    monkeypatch.setenv("CREW_TEST_GATE", str(gate))

    async with (
        server_process(*store, target=f"{CREW}:gated") as server,
        CrewClient(server.url, SECRET) as client,
    ):
        reader = aiter(client.execute_stream("Work.", run_id="r"))  # it stays connected

        async for event in reader:
            if event.kind == "tools_started":
                break

        begun = time.monotonic()
        assert await server.stop(signal.SIGTERM) == 0
        assert time.monotonic() - begun < 20, "the tool of the run would wait for 120 s"
        assert not [line for line in server.lines if "graceful shutdown exceeded" in line], "a stream was not ended"
        await server.start()

        async with asyncio.timeout(30):
            while not any("1 interrupted run: r; resume them" in line for line in server.lines):
                await asyncio.sleep(0.05)

        assert (await client.run("r")).status == "interrupted"
        gate.touch()
        assert (await client.resume("r")).status == "completed"


async def test_500_runs_stream_at_the_same_time(tmp_path: Path) -> None:
    """None is lost, the memory is bounded, and a reader that never reads costs a bounded buffer."""
    options = ("--max-runs-per-token", "1000", "--store", str(tmp_path / "runs.db"))

    async with server_process(*options, target=f"{CREW}:waiter") as server:
        async with CrewClient(server.url, SECRET) as client:
            await client.execute("Work.")
            before, peak = server.memory(), asyncio.create_task(most_active_runs(server))
            deaf = [await open_deaf_reader(server.port) for _ in range(20)]
            runs = await asyncio.gather(*(read_run(client, number) for number in range(500)))
            peak.cancel()
            after = server.memory()
            assert {run.status for run, _ in runs} == {"completed"}
            assert {events for _, events in runs} == {runs[0][1]}
            assert len({run.run_id for run, _ in runs}) == 500
            await asyncio.gather(*(read_run(client, number) for number in range(500, 1_000)))
            later = server.memory()
            print(f"memory: {before:.0f} MB, after 500 runs {after:.0f} MB, after 1,000 {later:.0f} MB")  # noqa: T201
            assert after - before < 150
            assert later - after < 30

        for writer in deaf:
            writer.transport.abort()


async def most_active_runs(server: ServerProcess) -> None:
    """Print the largest number of runs that were under way, until it is cancelled."""
    most = 0

    async with httpx2.AsyncClient(trust_env=False, headers={"Authorization": f"Bearer {SECRET}"}) as client:
        try:
            while True:
                text = (await client.get(f"{server.url}/metrics", timeout=60)).text
                found = re.search(r"^crew_server_active_runs (\d+)$", text, re.MULTILINE)
                assert found is not None
                most = max(most, int(found[1]))
                await asyncio.sleep(0.2)
        finally:
            print(f"most active runs: {most}")  # noqa: T201


async def read_run(client: CrewClient, number: int) -> tuple[RemoteRun, int]:
    """The run and the number of its stored events, as they were streamed."""
    stream = client.execute_stream("Work.", run_id=f"run-{number}")
    count = sum([not isinstance(event, TextDelta | ToolProgress) async for event in stream])
    return stream.result, count


async def open_deaf_reader(port: int) -> asyncio.StreamWriter:
    """Start a run with a stream that is never read."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
    body = b'{"input": "Work."}'
    head = f"POST /runs?stream=1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {SECRET}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    return writer


async def test_large_bodies_are_refused_without_being_kept() -> None:
    """100 MB, declared or chunked: 413, and the memory of the server does not grow by that."""
    async with server_process() as server, httpx2.AsyncClient(trust_env=False) as client:
        headers = {"Authorization": f"Bearer {SECRET}"}
        await client.get(f"{server.url}/runs", headers=headers)
        before = server.memory()

        async def chunks() -> object:
            for _ in range(1_600):
                yield b"x" * 65_536

        for content in (b"x" * 104_857_600, chunks()):
            try:
                answer = await client.post(f"{server.url}/runs", content=content, headers=headers)
                assert answer.status_code == 413
            except httpx2.TransportError:
                pass  # the server closed the connection before the client had sent everything

        assert server.memory() - before < 20
        assert (await client.get(f"{server.url}/runs", headers=headers)).status_code == 200


async def test_slow_senders_are_disconnected_and_others_are_served() -> None:
    """Connections that send a byte now and then are closed after 10 s, other requests are answered.

    200 of them never complete their head, and are answered with 408. 50 have no token, and never complete the body of
    a request that was refused at once.
    """
    head = b"GET /runs HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
    refused = b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"

    async with server_process() as server, CrewClient(server.url, SECRET) as client:
        slow = [asyncio.create_task(send_slowly(server.port, b"", head)) for _ in range(200)]
        early = [asyncio.create_task(send_slowly(server.port, refused, b"")) for _ in range(50)]
        await asyncio.sleep(1)
        await client.runs()
        assert not all(task.done() for task in slow), "a request is answered while the slow ones are open"

        async with asyncio.timeout(30):
            assert (await client.execute("Work.")).status == "completed"

        ended = await asyncio.gather(*slow)
        assert all(9 < seconds < SLOW_SECONDS for seconds, _ in ended)
        assert sum(answer.startswith(b"HTTP/1.1 408") for _, answer in ended) > 100
        answered = await asyncio.gather(*early)
        assert all(seconds < SLOW_SECONDS for seconds, _ in answered)
        assert all(answer.startswith(b"HTTP/1.1 401") for _, answer in answered)


SLOW_SECONDS = 40
"""A server without this limit would wait for ever."""


async def send_slowly(port: int, first: bytes, then: bytes) -> tuple[float, bytes]:
    """Send the first bytes at once and others one by one, until the server closes; the seconds, and the answer."""
    begun, answer = time.monotonic(), b""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(first)

    try:
        async with asyncio.timeout(SLOW_SECONDS):
            for byte in then + b"x" * 10_000:
                writer.write(bytes([byte]))
                await writer.drain()

                try:
                    received = await asyncio.wait_for(reader.read(1_000), 0.3)
                except TimeoutError:
                    continue

                if not received:
                    break

                answer += received
    except OSError:
        pass  # the server closed the connection while a byte was on its way, or the time is over
    finally:
        writer.transport.abort()

    return time.monotonic() - begun, answer
