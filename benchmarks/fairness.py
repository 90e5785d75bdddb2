"""How many concurrent runs share one event loop: its lag, and when the runs end.

python benchmarks/fairness.py [RUNS]
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
import time
from pathlib import Path

from crew import Agent, CrewExecutor, ScriptedProvider, call, tool
from crew.interfaces import ModelReply, ModelRequest, OnDelta
from crew.runs import RunStore
from crew.store import MemoryStore, SQLiteStore

INTERVAL = 0.001


@tool(effect="read")
async def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


class Model(ScriptedProvider):
    """Answers after a delay."""

    delay = 0.0

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        await asyncio.sleep(self.delay)
        return await super().complete(request, on_delta)


async def measure_lag(lags: list[float]) -> None:
    """How much later than requested a task gets its turn."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(INTERVAL)
        lags.append(time.perf_counter() - began - INTERVAL)


class Collections:
    """The longest pause by the garbage collector."""

    def __init__(self) -> None:
        self.began, self.longest = 0.0, 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self.began = time.perf_counter()
        else:
            self.longest = max(self.longest, time.perf_counter() - self.began)


async def measure(runs: int, store: RunStore, delay: float) -> str:
    """One line of figures for so many runs at once, each with three model calls and two tool calls."""
    model = Model(call("look", n=1), call("look", n=2), "Done.")
    model.delay = delay
    executor = CrewExecutor(Agent("a", model=model, tools=[look]), store=store)
    lags: list[float] = []
    ended: list[float] = []
    collections = Collections()
    gc.callbacks.append(collections)
    ticker = asyncio.ensure_future(measure_lag(lags))
    began = time.perf_counter()

    async def one() -> None:
        await executor.execute("Go.")
        ended.append(time.perf_counter() - began)

    await asyncio.gather(*(one() for _ in range(runs)))
    seconds = time.perf_counter() - began
    ticker.cancel()
    gc.callbacks.remove(collections)
    lags.sort()
    curve = " ".join(f"{ended[min(runs - 1, runs * part // 10)] / seconds:4.0%}" for part in (0, 1, 5, 9))
    return (
        f"{seconds:6.1f} s  {runs / seconds:6.0f} runs/s   lag p50 {lags[len(lags) // 2] * 1e3:5.0f} ms, "
        f"p99 {lags[len(lags) * 99 // 100] * 1e3:5.0f} ms, max {lags[-1] * 1e3:5.0f} ms, "
        f"gc {collections.longest * 1e3:5.0f} ms   {curve}"
    )


def main() -> None:
    runs = int(sys.argv[1]) if sys.argv[1:] else 5_000
    print(f"{runs} runs at once; on the right, when the first, 10 %, 50 % and 90 % of them ended, of the whole time")

    with tempfile.TemporaryDirectory() as folder:
        for name, delay in (("memory", 0.0), ("memory", 0.5), ("sqlite", 0.0), ("sqlite", 0.5)):
            store = MemoryStore() if name == "memory" else SQLiteStore(Path(folder) / f"{delay}.db")
            print(f"{name}, models take {delay} s: {asyncio.run(measure(runs, store, delay))}", flush=True)


if __name__ == "__main__":
    main()
