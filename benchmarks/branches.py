"""Three parallel branches of 400 steps each on SQLite, against 400 plain steps: the time should be at most 4 times.

    python benchmarks/branches.py [STEPS]

Exits with 1 if it is more. A step is a model call and a tool call with its result, so three commits. Both are measured
by turns, the best of three.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from crew import Agent, Crew, CrewExecutor, Limits, Parallel, ScriptedProvider, call, tool
from crew.interfaces import ModelRequest
from crew.messages import ToolCall
from crew.store import SQLiteStore

REPEATS = 3
MOST = 4.0


@tool(effect="read")
def look(page: int) -> str:
    """Look at a page."""
    return f"page {page} " * 50


def agent(name: str, steps: int) -> Agent:
    def line(request: ModelRequest) -> str | ToolCall:
        return call("look", page=request.turn) if request.turn < steps else "Done."

    return Agent(name, model=ScriptedProvider(line), tools=[look])


async def measure(crew: Agent | Crew, path: Path, steps: int) -> float:
    store = SQLiteStore(path)
    executor = CrewExecutor(crew, store=store, limits=Limits(rounds=4 * steps))
    began = time.perf_counter()
    result = await executor.execute("Look at everything.")
    seconds = time.perf_counter() - began
    assert result.stop_reason == "completed"
    store.close()
    return seconds


async def main(steps: int) -> int:
    """Print both times and their ratio; 1 if it is too large."""
    names = ["one", "two", "three"]
    branches = [agent(name, steps) for name in names]
    end = Agent("end", model=ScriptedProvider("All done."))
    group = Parallel("group", branches=branches, then=end)
    crew = Crew("crew", agents=[*branches, end], groups=[group], entry="group")
    plain, parallel = [], []

    with TemporaryDirectory() as folder:
        for number in range(REPEATS):
            plain.append(await measure(agent("plain", steps), Path(folder) / f"plain-{number}.db", steps))
            parallel.append(await measure(crew, Path(folder) / f"parallel-{number}.db", steps))

    ratio = min(parallel) / min(plain)
    print(f"{steps} plain steps: {min(plain):.2f} s; 3 branches of {steps} steps: {min(parallel):.2f} s")
    print(f"{ratio:.2f} times as long (at most {MOST:g})")
    return int(ratio > MOST)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    sys.exit(asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 400)))
