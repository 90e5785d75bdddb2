"""The cost of a round (a model call and a tool call) on a local Temporal server, beside one process.

    python benchmarks/temporal.py [ROUNDS]

Three rows: one process with an SQLite file; Temporal with the same file; and two activities that do nothing on the
same server, which is the share of Temporal's server and SDK. The models are scripted and reply at once.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from crew import Agent, CrewExecutor, Limits, ScriptedProvider, call, tool
from crew.temporal import CrewWorker, TemporalExecutor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from temporal_server import TemporalUnavailable, running_temporal

QUEUE = "benchmark"


@tool(effect="read")
async def look(n: int) -> str:
    """Look at something."""
    return f"saw {n}"


@activity.defn
async def nothing(n: int) -> int:
    """Do nothing."""
    return n


@workflow.defn
class Nothing:
    """Two activities a round."""

    @workflow.run
    async def run(self, rounds: int) -> None:
        """Run the rounds."""
        for n in range(2 * rounds):
            await workflow.execute_activity(nothing, n, start_to_close_timeout=timedelta(seconds=60))


async def measure(address: str, rounds: int, folder: str) -> None:
    client = await Client.connect(address)
    crew = Agent("clerk", model=ScriptedProvider(*(call("look", n=n) for n in range(rounds)), "Done."), tools=[look])
    limits = Limits(rounds=rounds + 1)
    local = CrewExecutor(crew, store=f"{folder}/local.db", limits=limits)
    seconds: dict[str, float] = {}

    async def timed(name: str, work: object) -> None:
        began = time.perf_counter()
        await work  # type: ignore[misc]
        seconds[name] = (time.perf_counter() - began) / rounds

    async with local:
        await timed("one process", local.execute("Go."))

    worker = CrewWorker(client, crew, store=f"{folder}/runs.db", limits=limits)

    async with worker, TemporalExecutor(client, crew, store=f"{folder}/runs.db", limits=limits) as remote:
        await remote.execute("Warm up.", run_id="warm-up")
        await timed("Temporal", remote.execute("Go.", run_id="benchmark"))

    history = await client.get_workflow_handle("crew:benchmark").fetch_history()
    empty = Worker(
        client, task_queue=QUEUE, workflows=[Nothing], activities=[nothing], workflow_runner=UnsandboxedWorkflowRunner()
    )

    async with empty:
        await client.execute_workflow(Nothing.run, 10, id="warm", task_queue=QUEUE)
        await timed("two empty activities", client.execute_workflow(Nothing.run, rounds, id="empty", task_queue=QUEUE))

    for name, value in seconds.items():
        print(f"{name:22} {value * 1e3:7.2f} ms a round")

    server = seconds["two empty activities"] / seconds["Temporal"]
    size = sum(event.ByteSize() for event in history.events)
    print(f"{'':22} {server:7.0%}    of a round on Temporal, without Crew")
    print(f"{'workflow history':22} {len(history.events) / rounds:7.1f} events and {size / rounds:,.0f} bytes a round")


if __name__ == "__main__":
    try:
        with running_temporal() as server, tempfile.TemporaryDirectory() as temporary:
            asyncio.run(measure(server, int(sys.argv[1]) if len(sys.argv) > 1 else 100, temporary))
    except TemporalUnavailable as error:
        print(f"skipped: {error}")
