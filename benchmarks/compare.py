"""Compares the CPU time of whole runs in two checkouts: `python benchmarks/compare.py OTHER_CHECKOUT [--pairs 7]`.

The pairs are interleaved, so that the noise of the machine meets both checkouts alike; the result is the median of the
ratios, this checkout to the other. Only the public API is used, so that the other checkout may be of another version.
Without OTHER_CHECKOUT the times of this checkout are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from crew import Agent, Crew, CrewExecutor, Limits, Parallel, RequestParameters, ScriptedProvider, call, tool

ROOT = Path(__file__).resolve().parents[1]
REPEATS = 5

Work = Callable[[], Awaitable[object]]


@tool(effect="read")
async def look(n: int = 0) -> str:
    """Look something up."""
    return "found"


def looking(calls: int, **options: object) -> Agent:
    return Agent(
        "solo",
        model=ScriptedProvider(*[call("look", n=n) for n in range(calls)], "done"),
        tools=[look],
        **options,  # type: ignore[arg-type]
    )


def tool_calls() -> Work:
    """One run with 150 tool calls."""
    executor = CrewExecutor(looking(150), limits=Limits(rounds=None))
    return lambda: executor.execute("go")


def masked_views() -> Work:
    """One run with 120 tool calls, masked results and a bound of 20 messages."""
    executor = CrewExecutor(
        looking(120, history="mask_tool_results"),
        limits=Limits(rounds=None),
        parameters=RequestParameters(max_history_size=20),
    )
    return lambda: executor.execute("go")


def conversation() -> Work:
    """A conversation of 100 turns."""
    executor = CrewExecutor(Agent("solo", model=ScriptedProvider(lambda request: "answer")))

    async def work() -> None:
        result = None

        for turn in range(100):
            result = await executor.execute(f"question {turn}", history=result)

    return work


def single_runs() -> Work:
    """150 runs of one question each."""
    executor = CrewExecutor(Agent("solo", model=ScriptedProvider(lambda request: "answer")))

    async def work() -> None:
        for _ in range(150):
            await executor.execute("question")

    return work


def parallel_groups() -> Work:
    """25 runs of a group with three branches, each with one tool call."""
    members = [
        Agent(name, model=ScriptedProvider(call("look", n=1), "ok"), tools=[look]) for name in ("one", "two", "three")
    ]
    editor = Agent("editor", model=ScriptedProvider("done"))
    group = Parallel("panel", branches=members, then=editor)
    executor = CrewExecutor(Crew("crew", agents=[*members, editor], groups=[group], entry="panel"))

    async def work() -> None:
        for _ in range(25):
            await executor.execute("go")

    return work


def cpu_seconds(prepare: Callable[[], Work]) -> float:
    """The smallest of several measurements, after one that is not counted."""

    async def measure() -> float:
        work = prepare()
        await work()
        times = []

        for _ in range(REPEATS):
            start = time.process_time()
            await work()
            times.append(time.process_time() - start)

        return min(times)

    return asyncio.run(measure())


def measured(checkout: Path) -> dict[str, float]:
    """The times of a checkout, measured in a new process that imports its `crew`."""
    command = [sys.executable, str(Path(__file__).resolve()), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    found = subprocess.run(command, env=environment, cwd=checkout, capture_output=True, text=True, check=False)

    if found.returncode:
        sys.exit(f"The measurement in {checkout} failed:\n{found.stderr}")

    times: dict[str, float] = json.loads(found.stdout)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", nargs="?", type=Path, help="the root of another checkout")
    parser.add_argument("--pairs", type=int, default=7, help="how many pairs to measure (default: 7)")
    parser.add_argument("--json", action="store_true", help="print the times of the imported crew as JSON")
    options = parser.parse_args()
    cases = (tool_calls, masked_views, conversation, single_runs, parallel_groups)

    if options.json or options.other is None:
        times = {case.__name__: cpu_seconds(case) for case in cases}
        print(json.dumps(times) if options.json else "\n".join(f"{k}: {v * 1e3:.1f} ms" for k, v in times.items()))
        return

    ratios: dict[str, list[float]] = {case.__name__: [] for case in cases}

    for number in range(options.pairs):
        order = (ROOT, options.other.resolve()) if number % 2 else (options.other.resolve(), ROOT)
        pair = {checkout: measured(checkout) for checkout in order}

        for name, found in ratios.items():
            found.append(pair[ROOT][name] / pair[options.other.resolve()][name])

    for name, found in ratios.items():
        print(f"{name}: median {statistics.median(found):.2f} ({', '.join(f'{ratio:.2f}' for ratio in found)})")


if __name__ == "__main__":
    main()
