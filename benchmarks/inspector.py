"""Measures what a page would load of a run with 10,000 events: all its events, or the folded data of the inspector.

Also measures for how long the event loop can't serve others while the page is loaded, and the run is exported.

python benchmarks/inspector.py
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crew import Agent, CrewExecutor, Limits, ScriptedProvider, call, tool
from tests.support.http_service import SECRET, served

CALLS = 2_000


@asynccontextmanager
async def loop_gaps() -> AsyncIterator[list[float]]:
    """How late the event loop called a timer of 5 ms, each time, in seconds."""
    gaps: list[float] = []

    async def watch() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            gaps.append(time.perf_counter() - began - 0.005)

    watching = asyncio.create_task(watch())

    try:
        yield gaps
    finally:
        watching.cancel()


async def measure(result_chars: int, folder: Path) -> str:
    """The bytes of both, for a run whose tool results have so many characters, and the gaps."""

    @tool(effect="read")
    def look(word: str) -> str:
        """Look a word up."""
        return (f"{word}: " + "lorem ipsum dolor " * result_chars)[:result_chars]

    lines = [call("look", word=f"word{number}") for number in range(CALLS)]
    agent = Agent("reader", model=ScriptedProvider(*lines, "Done."), tools=[look])

    # From a file: messages in memory have their tokens already.
    store = folder / f"{result_chars}.db"

    async with CrewExecutor(agent, limits=Limits(rounds=None), store=store) as executor:
        await executor.execute("Find all words.", run_id="large")

        async with served(executor) as url, httpx2.AsyncClient(base_url=url, timeout=60) as client:
            headers = {"Authorization": f"Bearer {SECRET}"}
            stream = await client.get("/runs/large/events", headers=headers | {"Accept": "text/event-stream"})

            async with loop_gaps() as first:
                folded = await client.get("/inspect/runs/large", headers=headers)

            async with loop_gaps() as export:
                await client.get("/inspect/runs/large/export", headers=headers)

    events = stream.content.count(b"\nid: ")
    sizes = f"events {len(stream.content) / 1e6:.1f} MB, folded {len(folded.content) / 1e6:.1f} MB"
    gaps = f"longest gap of the loop {max(first) * 1e3:.0f} ms, for an export {max(export) * 1e3:.0f} ms"
    return f"{events:,} events, results of {result_chars:,} characters: {sizes}; {gaps}"


async def main() -> None:
    with TemporaryDirectory() as folder:
        for result_chars in (300, 4_000):
            print(await measure(result_chars, Path(folder)))


if __name__ == "__main__":
    asyncio.run(main())
