"""Measures the memory of a process over many sequential runs on the default store; it must stay flat.

Usage: python benchmarks/memory.py [RUNS]. Each run calls a tool that returns 2,000 characters. One run in four stays
paused, and one in four fails. A warm-up comes first: twice as many runs as the stores keep.
"""

import asyncio
import gc
import logging
import resource
import sys
from pathlib import Path

from crew import Agent, CrewExecutor, RunError, ScriptedProvider, call, tool

RUNS = 20_000
WARM_UP = 8_000
STEPS = 8


@tool
def read(page: int) -> str:
    """Read a page."""
    return f"{page} " * 1_000


@tool(approval=True)
def publish() -> str:
    """Publish it."""
    return "published"


def resident_mb() -> float:
    """The resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


async def run_all(executors: list[CrewExecutor], start: int, end: int) -> None:
    """Run each executor in turn."""
    for number in range(start, end):
        try:
            await executors[number % len(executors)].execute("Go.", run_id=f"run-{number}")
        except RunError:
            pass


async def main(runs: int) -> None:
    """Print the memory after the warm-up and after each part of the runs."""
    logging.disable()  # of each failed run, and of each pause that leaves
    ends = [
        ScriptedProvider(lambda request: "done" if len(request.messages) > 1 else call("read", page=1)),
        ScriptedProvider(lambda request: "done" if len(request.messages) > 1 else call("read", page=2)),
        ScriptedProvider(lambda request: call("publish") if len(request.messages) > 1 else call("read", page=3)),
        ScriptedProvider(lambda request: 1 / 0 if len(request.messages) > 1 else call("read", page=4)),
    ]
    executors = [CrewExecutor(Agent("worker", model=model, tools=[read, publish])) for model in ends]
    await run_all(executors, 0, WARM_UP)
    gc.collect()
    warm = resident_mb()
    print(f"{'runs':>8} {'resident MB':>12} {'growth':>8}\n{0:>8,} {warm:>12.1f}")

    for part in range(STEPS):
        done = WARM_UP + runs * part // STEPS
        await run_all(executors, done, WARM_UP + runs * (part + 1) // STEPS)
        gc.collect()
        now = resident_mb()
        print(f"{runs * (part + 1) // STEPS:>8,} {now:>12.1f} {now / warm - 1:>8.1%}")

    for executor in executors:
        await executor.aclose()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS))
