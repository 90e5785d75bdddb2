"""Processes that share runs in PostgreSQL: each run has one owner, and a run survives the death of its owner."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crew.store import PostgresStore

# These tests run here again, on PostgreSQL.
from tests.stories.test_one_owner import (  # noqa: F401
    begin,
    test_cancel_from_another_process_reaches_the_owner,
    test_one_of_many_processes_resumes_a_run,
    test_run_of_a_killed_process_can_be_resumed_at_once,
    test_stopped_owner_goes_on_if_its_run_was_not_taken,
    test_stopped_owner_whose_lease_lapsed_starts_no_write,
)
from tests.support.postgres import Postgres, PostgresUnavailable, running_postgres
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


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A running server on a free port."""
    try:
        with running_postgres() as running:
            yield running
    except PostgresUnavailable as reason:
        server_missing("postgres", str(reason))


@pytest.fixture(autouse=True)
def store_url(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty database for each test."""
    monkeypatch.setenv("CREW_TEST_STORE", server.url())
    yield server.url()
    server.execute("DROP SCHEMA IF EXISTS crew CASCADE")


def test_run_on_postgres_survives_ten_kills(tmp_path: Path, store_url: str) -> None:
    """Invariant 10 across processes: committed writes are not repeated, calls in doubt pause the run."""
    chance, ledger = random.Random(13), tmp_path / "ledger"
    command = [sys.executable, "-c", WORKER, store_url, str(ledger)]

    for _ in range(KILLS):
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        assert worker.stdout.readline().strip().isdecimal()
        time.sleep(chance.uniform(0, 0.03))  # the moment is random: in the tool, in a commit, after it
        worker.kill()
        worker.communicate()

    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "all written"
    assert sorted(int(line) for line in ledger.read_text().split()) == list(range(WRITES))
    store = PostgresStore(store_url)
    record = asyncio.run(store.run("r"))
    assert (record.info.status, len(record.state.branches)) == ("completed", 2)
    store.close()
