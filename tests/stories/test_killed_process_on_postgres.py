"""Processes that are killed while they drive a run in PostgreSQL; others resume it, and every write happens once."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from crew.store import PostgresStore
from tests.support.postgres import PostgresUnavailable, running_postgres
from tests.support.servers import server_missing

pytestmark = pytest.mark.servers

WRITES, KILLS = 60, 10

WORKER = """
import asyncio, json, sys
from pathlib import Path

from crew import Agent, Crew, CrewExecutor, Parallel, ScriptedProvider, call, tool
from crew.errors import UnknownRun
from crew.store import PostgresStore

ledger = Path(sys.argv[2])


@tool
async def write(n: int) -> str:
    \"\"\"Write a number down.\"\"\"
    with ledger.open("a") as file:
        file.write(f"{n}\\n")

    print(n, flush=True)
    await asyncio.sleep(0.01)
    return f"wrote {n}"


def writer(name, numbers):
    return Agent(name, model=ScriptedProvider(*[call("write", n=n) for n in numbers], name + " wrote"), tools=[write])


async def main():
    half = WRITES // 2
    left, right = writer("left", range(half)), writer("right", range(half, WRITES))
    last = Agent("last", model=ScriptedProvider("all written"))
    crew = Crew("c", agents=[left, right, last], groups=[Parallel("g", branches=[left, right], then=last)], entry="g")
    store = PostgresStore(sys.argv[1], pool_size=2)
    executor = CrewExecutor(crew, store=store, max_messages_per_request=8)

    try:
        result = await executor.resume("r")
    except UnknownRun:
        result = await executor.execute("Write.", run_id="r")

    while result.stop_reason == "paused":
        # The person looks into the ledger: that is where the truth is.
        written = [int(line) for line in ledger.read_text().split()]
        done = {pause.id: json.loads(pause.call.arguments)["n"] in written for pause in result.pauses}
        answers = {id: {"done": "it was written"} if was else "run again" for id, was in done.items()}
        result = await executor.resume("r", answers)

    print(result.output, flush=True)
    store.close()


asyncio.run(main())
""".replace("WRITES", str(WRITES))


def test_run_on_postgres_survives_ten_kills(tmp_path: Path) -> None:
    """Invariant 10 across processes: committed writes are not repeated, calls in doubt pause the run."""
    chance, ledger, kills = random.Random(13), tmp_path / "ledger", 0

    try:
        with running_postgres() as server:
            while True:
                command = [sys.executable, "-c", WORKER, server.url(), str(ledger)]
                worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                assert worker.stdout is not None
                line = worker.stdout.readline()

                if kills < KILLS:
                    assert line.strip().isdecimal()
                    time.sleep(chance.uniform(0, 0.03))  # the moment is random: in the tool, in a commit, after it
                    worker.kill()
                    worker.communicate()
                    kills += 1
                    continue

                rest, _ = worker.communicate(timeout=60)
                assert worker.returncode == 0
                assert (line + rest).split("\n")[-2] == "all written"
                break

            written = sorted(int(line) for line in ledger.read_text().split())
            assert written == list(range(WRITES))
            store = PostgresStore(server.url())
            record = asyncio.run(store.run("r"))
            assert (record.info.status, len(record.state.branches)) == ("completed", 2)
            store.close()
    except PostgresUnavailable as reason:
        server_missing("postgres", str(reason))
