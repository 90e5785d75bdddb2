"""Processes that are killed at random moments while their run writes to an SQLite file: every write happens once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from crew.store import SQLiteStore

WRITES = 16
KILLS = int(os.environ.get("CREW_KILLS", "250"))

WORKER = """
import asyncio, json, os, random, signal, sys, threading
from pathlib import Path

from crew import Agent, Crew, CrewExecutor, Parallel, ScriptedProvider, call, tool
from crew.errors import UnknownRun

folder, seed, kills = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
ledger = folder / "ledger"


@tool
async def write(n: int) -> str:
    \"\"\"Write a number down.\"\"\"
    await asyncio.sleep(0.004)

    with ledger.open("a") as file:
        file.write(f"{n}\\n")

    await asyncio.sleep(0.004)
    return f"wrote {n}"


def written():
    return [int(line) for line in ledger.read_text().split()] if ledger.exists() else []


def writer(name, numbers):
    return Agent(name, model=ScriptedProvider(*[call("write", n=n) for n in numbers], name + " wrote"), tools=[write])


async def main():
    left, right = writer("left", range(WRITES // 2)), writer("right", range(WRITES // 2, WRITES))
    last = Agent("last", model=ScriptedProvider("all written"))
    group = Parallel("g", branches=[left, right], then=last)
    crew = Crew("c", agents=[left, right, last], groups=[group], entry="g")
    executor = CrewExecutor(crew, store=folder / "runs.db", max_messages_per_request=6)
    # Later processes live longer, so that the run ends also on a busy machine.
    delay = random.Random(seed + kills).uniform(0, 0.3 + kills / 10)
    kill = threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGKILL))
    kill.daemon = True
    kill.start()

    try:
        result = await executor.resume("r")  # at once: the process that owned it is gone
    except UnknownRun:
        result = await executor.execute("Write.", run_id="r")

    while result.stop_reason == "paused":
        # The person looks into the ledger: that is where the truth is.
        done = {p.id: json.loads(p.call.arguments)["n"] in written() for p in result.pauses}
        answers = {id: {"done": "it was written"} if was else "run again" for id, was in done.items()}
        result = await executor.resume("r", answers)

    kill.cancel()
    print(result.output)


asyncio.run(main())
""".replace("WRITES", str(WRITES))


def run_until_done(folder: Path, seed: int) -> int:
    """Start processes that kill themselves, until one reaches the end of the run; the number of those killed."""
    kills = 0

    while True:
        command = [sys.executable, "-c", WORKER, str(folder), str(seed), str(kills)]
        worker = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

        if worker.returncode != -9:
            assert (worker.returncode, worker.stdout) == (0, "all written\n"), worker.stderr
            return kills

        kills += 1


@pytest.mark.soak
def test_every_write_happens_once_despite_kills(tmp_path: Path) -> None:
    """Invariant 10, with SIGKILL: no run is lost, committed work is not repeated, calls in doubt pause the run."""
    kills, runs = 0, 0

    while kills < KILLS:
        folder = tmp_path / str(runs)
        folder.mkdir()
        kills += run_until_done(folder, seed=1_000 * runs)
        runs += 1
        assert sorted(map(int, (folder / "ledger").read_text().split())) == list(range(WRITES))
        store = SQLiteStore(folder / "runs.db")
        record = asyncio.run(store.run("r"))
        assert (record.info.status, asyncio.run(store.leases().list())) == ("completed", [])
        store.close()
