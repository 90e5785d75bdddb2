"""Writes a small store file with one run of each kind: `python -m tests.support.stored_file tests/store/files/NAME.db`.

Add a file whenever the layout of the tables or the version of the states changes, and never rewrite one:
tests/store/test_stored_files.py checks that every later release reads and resumes them all.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from crew import Agent, Crew, CrewExecutor, Parallel, RunError, ScriptedProvider, call, tool
from crew.history import Summarize
from crew.store import SQLiteStore

PAUSED, FAILED, CONVERSATION = "paused-run", "failed-run", "customer-42"
TURNS = 8


@tool(approval=True)
def refund(amount: int) -> str:
    """Refund an amount."""
    return f"Refunded {amount}."


@tool(effect="read")
def look(place: str) -> str:
    """Look somewhere."""
    return f"The blue bicycle is in {place}."


def panel() -> Crew:
    """A group with a branch that answers and one that waits for an approval; then an editor."""
    clerk = Agent("clerk", model=ScriptedProvider(call("refund", amount=80), "It is refunded."), tools=[refund])
    lawyer = Agent("lawyer", model=ScriptedProvider(call("look", place="Utrecht"), "It is legal."), tools=[look])
    editor = Agent("editor", model=ScriptedProvider("Both agree."))
    group = Parallel("panel", branches=[clerk, lawyer], then=editor)
    return Crew("desk", agents=[clerk, lawyer, editor], groups=[group], entry="panel")


def chat(store: SQLiteStore) -> CrewExecutor:
    """Answers with the number of the turn; its history is summarised."""
    model = ScriptedProvider(lambda request: f"Answer to {request.messages[-1].text}", summary="They talked of lamps.")
    return CrewExecutor(Agent("chat", model=model), store=store, history=Summarize(limit=8))


def failing(line: Any) -> Agent:
    return Agent("failing", model=ScriptedProvider(line))


async def write(path: Path) -> None:
    """Write the file."""
    store = SQLiteStore(path)
    await CrewExecutor(panel(), store=store).execute("Refund me.", run_id=PAUSED, metadata={"shop": "south", "n": 3})

    for turn in range(TURNS):
        await chat(store).execute(f"Question {turn}.", conversation=CONVERSATION, run_id=f"turn-{turn}")

    try:
        await CrewExecutor(failing(ValueError("down")), store=store).execute("Go.", run_id=FAILED)
    except RunError:
        pass

    store._file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store._file.execute("VACUUM")
    store._file.execute("PRAGMA journal_mode=DELETE")  # one file, without a journal beside it
    store.close()


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1])))
