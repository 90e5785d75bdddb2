"""A stored conversation of 10,000 turns: the cost of a turn, load included, and the size of the file.

    python benchmarks/conversations.py [TURNS]

CPU times are medians of 50 turns. Turn 10,000 should take at most 1.5 times as long as turn 100; else it exits with 1.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from crew import Agent, CrewExecutor, ScriptedProvider
from crew.store import SQLiteStore

SAMPLE = 50
MOST = 1.5


async def measure(turns: int) -> int:
    """Print the costs of an early and of a late turn; 1 if the late one costs too much more."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        store = SQLiteStore(path)
        executor = CrewExecutor(
            Agent("triage", model=ScriptedProvider(lambda request: "The answer. " * 20)), store=store
        )
        seconds: list[float] = []
        bytes_at: dict[int, int] = {}

        for turn in range(1, turns + 1):
            before = time.process_time()
            await executor.execute(f"Question {turn}. " * 5, conversation="customer-42")
            seconds.append(time.process_time() - before)

            if turn % (turns // 4) == 0:
                bytes_at[turn] = _size(path)

        store.close()

    early, late = median(seconds[100 - SAMPLE : 100 + SAMPLE]), median(seconds[-SAMPLE:])
    print(f"turn 100:      {early * 1e3:6.2f} ms")
    print(f"turn {turns}:  {late * 1e3:6.2f} ms, {late / early:.2f} times as long (at most {MOST:g})")
    print("kilobytes a turn:", ", ".join(f"{size / turn / 1e3:.1f} at {turn}" for turn, size in bytes_at.items()))
    return int(late > MOST * early)


def _size(path: Path) -> int:
    with sqlite3.connect(path) as file:
        [[pages]], [[size]] = file.execute("PRAGMA page_count"), file.execute("PRAGMA page_size")
        return int(pages) * int(size)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    sys.exit(asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)))
