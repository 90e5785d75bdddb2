"""Runs whose processes are killed at random moments: `python -m tests.support.killed_processes FOLDER KILLS [URL]`.

Each run has writes, reads, an approval, a handoff, parallel branches and summaries. A process drives it until it is
killed (SIGKILL); the next one checks what is stored, resumes the run at once, and answers its pauses. Prints the
figures as JSON. The store is an SQLite file in the folder, or the PostgreSQL database of the URL.

A person who is asked about a call in doubt looks into the ledger, to which each effect appends its key.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

from crew import Agent, Context, Crew, CrewExecutor, Parallel, RunResult, ScriptedProvider, call, tool
from crew.errors import UnknownRun
from crew.history import Summarize
from crew.interfaces import ModelReply, ModelRequest, OnDelta
from crew.message_rules import validate
from crew.messages import UserMessage
from crew.store import PostgresStore, SQLiteStore
from crew.transitions.result import without_open_calls

WRITES = {"planner": range(4), "worker": range(10, 18), "left": range(20, 25), "right": range(30, 35)}
ALL_WRITES = sorted(number for numbers in WRITES.values() for number in numbers)
STEP_SECONDS = 0.002


class SlowModel(ScriptedProvider):
    """Takes a moment, so that a kill can hit the request."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        await asyncio.sleep(STEP_SECONDS)
        return await super().complete(request, on_delta)


class Ledger:
    """A file to which all processes append what they did: one line for each effect and each call in doubt."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, *words: object) -> None:
        with self.path.open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def lines(self, kind: str) -> list[list[str]]:
        text = self.path.read_text() if self.path.exists() else ""
        return [line.split()[1:] for line in text.splitlines() if line.split()[0] == kind]


def crew(ledger: Ledger) -> Crew:
    """Writes all numbers: alone, after an approval, after a handoff, and in two branches."""

    async def effect(number: int, context: Context[None]) -> str:
        await asyncio.sleep(STEP_SECONDS)
        ledger.add("write", number, context.idempotency_key)
        await asyncio.sleep(STEP_SECONDS)
        return f"wrote {number}"

    @tool
    async def write(number: int, context: Context[None]) -> str:
        """Write a number down."""
        return await effect(number, context)

    @tool(approval=True)
    async def sign(number: int, context: Context[None]) -> str:
        """Write a number down, with an approval."""
        return await effect(number, context)

    @tool(effect="read")
    async def look(number: int) -> str:
        """Look at a number."""
        return f"{number} is fine. " * 10

    def agent(name: str, *last: Any, **options: Any) -> Agent:
        calls: list[Any] = []

        for number in WRITES[name]:
            calls += [call("look", number=number)] if number % 3 == 0 else []
            calls.append(call("sign" if number % 5 == 3 else "write", number=number))

        model = SlowModel(*calls, *last, summary=f"What {name} did so far.")
        return Agent(name, model=model, tools=[write, sign, look], **options)

    editor = Agent("editor", model=SlowModel("all written", summary="Everything was written."))
    left, right = agent("left", "left wrote"), agent("right", "right wrote")
    panel = Parallel("panel", branches=[left, right], then=editor)
    worker = agent("worker", call("transfer_to_panel"), handoffs=[panel])
    planner = agent("planner", call("transfer_to_worker"), handoffs=[worker])
    return Crew("c", agents=[planner, worker, left, right, editor], groups=[panel], entry="planner")


class Problem(Exception):
    """A promise of the store that does not hold."""


async def check_stored(store: Any, run_id: str) -> None:
    """Raise if what is stored after a kill is not a whole, valid run."""
    record = await store.run(run_id)
    events = await store.events(run_id)
    cursors = [one.cursor for one in events]
    history = [entry.message for entry in without_open_calls(record.state.history.entries)]
    problems = [*map(str, validate([*history, UserMessage("And now?")]))]

    for before, after in pairwise(cursors):
        if after not in ((before.version, before.number + 1), (before.version + 1, 0)):
            problems.append(f"no event between {before} and {after}")

    if cursors[0] != (1, 0) or cursors[-1].version != record.info.version:
        problems.append(f"events from {cursors[0]} to {cursors[-1]}, version {record.info.version}")

    if await store.transcript(run_id) != tuple(record.state.transcript):
        problems.append("the transcript is not that of the state")

    if problems:
        raise Problem(f"{run_id}: {problems}")


def answers(ledger: Ledger, result: RunResult) -> dict[str, Any]:
    """Approve; of a call in doubt, look whether it was done."""
    written = {number for number, _ in ledger.lines("write")}
    found: dict[str, Any] = {}

    for pause in result.pauses:
        if pause.reason == "approval":
            found[pause.id] = True
            continue

        assert pause.call is not None
        number = str(json.loads(pause.call.arguments)["number"])
        ledger.add("doubt", number, pause.id)
        found[pause.id] = {"done": f"wrote {number}"} if number in written else "run again"

    return found


async def drive(folder: Path, url: str, run_id: str) -> None:
    """Start or resume the run, and drive it to its end."""
    ledger = Ledger(folder / f"ledger-{run_id}")
    store: Any = PostgresStore(url, pool_size=2) if url else SQLiteStore(folder / "runs.db")
    executor = CrewExecutor(crew(ledger), store=store, history=Summarize(limit=12))

    try:
        await check_stored(store, run_id)
    except UnknownRun:
        if ledger.path.exists():
            raise Problem(f"{run_id} is lost") from None

        result = await executor.execute("Write everything.", run_id=run_id)
    else:
        try:
            result = await executor.resume(run_id)
        except UnknownRun:
            result = None  # killed after its last commit

    while result is not None and result.stop_reason == "paused":
        result = await executor.resume(run_id, answers(ledger, result))

    record = await store.run(run_id)
    written = sorted(int(number) for number, _ in ledger.lines("write"))

    if record.info.status != "completed" or written != ALL_WRITES:
        raise Problem(f"{run_id}: {record.info.status}, written: {written}")

    if len(record.state.branches) != 2 or not any(m.role == "summary" for m in record.state.transcript):
        raise Problem(f"{run_id}: branches or summaries are missing")

    store.close()


def fork_and_kill(folder: Path, url: str, run_id: str, seconds: float) -> bool:
    """Drive the run in a new process, and kill it after this time; whether it was killed."""
    child = os.fork()

    if not child:
        try:
            asyncio.run(drive(folder, url, run_id))
        except BaseException as error:  # a child of a fork must not return into the caller
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            sys.stderr.flush()
            os._exit(1)

        os._exit(0)

    deadline = time.monotonic() + seconds

    while time.monotonic() < deadline:
        time.sleep(min(0.003, seconds))
        found, status = os.waitpid(child, os.WNOHANG)

        if found:
            break
    else:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)

    code = os.waitstatus_to_exitcode(status)

    if code == 1:
        sys.exit(1)

    return code == -signal.SIGKILL


def main(folder: Path, kills: int, url: str) -> None:
    """Kill processes until there are enough kills and the last run has ended; print the figures."""
    rng, began = random.Random(7), time.monotonic()
    killed = runs = 0
    doubts: Counter[str] = Counter()

    while killed < kills:
        run_id = f"run-{runs}"
        tries = 0

        # Later processes live longer, so that the run ends also on a busy machine.
        while fork_and_kill(folder, url, run_id, rng.uniform(0.01, 0.4 + tries / 50)):
            killed, tries = killed + 1, tries + 1

        runs += 1
        ledger = Ledger(folder / f"ledger-{run_id}")
        doubts["reported"] += len(ledger.lines("doubt"))

    figures = {"kills": killed, "runs": runs, "writes": runs * len(ALL_WRITES), "in doubt": doubts["reported"]}
    sys.stdout.write(json.dumps({**figures, "seconds": round(time.monotonic() - began)}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
