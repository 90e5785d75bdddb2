"""Measures what a page would load of a run with 10,000 events: all its events, or the folded data of the inspector.

python benchmarks/inspector.py
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx2

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crew import Agent, CrewExecutor, Limits, ScriptedProvider, call, tool
from tests.support.http_service import SECRET, served

CALLS = 2_000


async def measure(result_chars: int) -> str:
    """The bytes of both, for a run whose tool results have so many characters."""

    @tool(effect="read")
    def look(word: str) -> str:
        """Look a word up."""
        return f"{word}: ".ljust(result_chars, "x")

    lines = [call("look", word=f"word{number}") for number in range(CALLS)]
    agent = Agent("reader", model=ScriptedProvider(*lines, "Done."), tools=[look])

    async with CrewExecutor(agent, limits=Limits(rounds=None)) as executor:
        await executor.execute("Find all words.", run_id="large")

        async with served(executor) as url, httpx2.AsyncClient(base_url=url, timeout=60) as client:
            headers = {"Authorization": f"Bearer {SECRET}"}
            stream = await client.get("/runs/large/events", headers=headers | {"Accept": "text/event-stream"})
            folded = await client.get("/inspect/runs/large", headers=headers)

    events = stream.content.count(b"\nid: ")
    sizes = f"events {len(stream.content) / 1e6:.1f} MB, folded {len(folded.content) / 1e6:.1f} MB"
    return f"{events:,} events, results of {result_chars:,} characters: {sizes}"


async def main() -> None:
    for result_chars in (300, 4_000):
        print(await measure(result_chars))


if __name__ == "__main__":
    asyncio.run(main())
