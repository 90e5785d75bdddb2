"""Histories that this version recorded replay without differences: a change of the workflow's commands is noticed.

`python -m tests.temporal.test_replay [NAME …]` records them anew, on a real server, if a change is meant to break old
runs.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.worker import Replayer

from crew import Agent, Crew, Limits, Parallel, RunResult, ScriptedProvider, call, tool
from crew.errors import RunError, StoreError
from crew.interfaces import ModelRequest
from crew.runs.events import Event, ToolsStarted
from crew.store import SQLiteStore
from crew.temporal import CrewWorker, TemporalExecutor
from crew.temporal.record_codec import ReferenceCodec
from crew.temporal.runtime import WorkerRuntime
from crew.temporal.workflow import CrewRunWorkflow, RuntimeInterceptor
from scripts.temporal_server import running_temporal
from tests.support.temporal import MemoryRecords

RECORDED = Path(__file__).parent / "histories"
NAMES = ("approval", "branches", "long", "limit", "cancelled", "failed")


@tool(effect="read")
async def look(n: int) -> str:
    """Look at something."""
    return f"saw {n}"


@tool(approval=True)
def refund(amount: int) -> str:
    """Pay money back."""
    return f"paid {amount}"


@tool(effect="read")
async def read_for_ever(n: int) -> str:
    """Read, and never end."""
    await asyncio.sleep(600)
    return f"read {n}"


@tool
async def pay(n: int) -> str:
    """Pay."""
    return f"paid {n}"


class FailingStore(SQLiteStore):
    """A store that fails whenever an event of this class is committed: writes do not start."""

    refused: type[Event] | None = None

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: Any, *rest: Any) -> Any:
        if self.refused is not None and any(isinstance(event, self.refused) for event in events):
            raise StoreError(run_id, "the disk is full")

        return await super().commit(run_id, version, events, state, *rest)


def failing_once() -> Callable[[ModelRequest], str]:
    """A reply that raises the first time."""
    failures = [ValueError("no such model")]

    def reply(_: ModelRequest) -> str:
        if failures:
            raise failures.pop()

        return "Done."

    return reply


def recorded_crew(name: str) -> Crew | Agent:
    """The crew of a recorded history."""
    if name == "limit":  # four reads are cancelled, and four writes that wait for another attempt to start
        mixed = [call("read_for_ever" if n % 2 else "pay", n=n) for n in range(8)]
        return Agent("clerk", model=ScriptedProvider(mixed, "Done."), tools=[read_for_ever, pay])

    if name == "cancelled":
        reads = [call("read_for_ever", n=n) for n in range(4)]
        return Agent("clerk", model=ScriptedProvider(reads, "Done."), tools=[read_for_ever])

    if name == "failed":
        return Agent("clerk", model=ScriptedProvider(call("look", n=1), failing_once()), tools=[look])

    if name == "approval":
        lines = ([call("look", n=1), call("look", n=2)], call("refund", amount=80), "It is paid.")
        return Agent("clerk", model=ScriptedProvider(*lines), tools=[look, refund])

    if name == "long":
        return Agent("clerk", model=ScriptedProvider(*(call("look", n=n) for n in range(5)), "Done."), tools=[look])

    legal = Agent("legal", model=ScriptedProvider(call("look", n=1), "Legal agrees."), tools=[look])
    finance = Agent("finance", model=ScriptedProvider(call("look", n=2), "Finance agrees."), tools=[look])
    editor = Agent("editor", model=ScriptedProvider("Both agree."))
    triage = Agent("triage", model=ScriptedProvider(call("transfer_to_panel")), handoffs=["panel"])
    group = Parallel("panel", branches=[legal, finance], then=editor)
    return Crew("team", agents=[triage, legal, finance, editor], groups=[group])


class RecordedRuntime(WorkerRuntime):
    """A worker that takes runs with a recorded fingerprint: how fingerprints are computed may change."""

    recorded = ""

    @property
    def fingerprint(self) -> str:
        return self.recorded or super().fingerprint


async def replay(name: str, crew: Crew | Agent, *, same_crew: bool = True) -> None:
    """Replay all executions of a recorded run; raises if the workflow of this version does something else."""
    found = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    records = {(name, key): base64.b64decode(data) for key, data in found["records"].items()}
    converter = DataConverter(payload_codec=ReferenceCodec(MemoryRecords(records)))
    runtime = RecordedRuntime(crew)
    runtime.recorded = found["fingerprint"] if same_crew else ""
    replayer = Replayer(
        workflows=[CrewRunWorkflow], data_converter=converter, interceptors=[RuntimeInterceptor(runtime)]
    )

    for history in found["histories"]:
        await replayer.replay_workflow(WorkflowHistory.from_json(f"crew:{name}", history))


@pytest.mark.parametrize("name", NAMES)
async def test_recorded_histories_replay_without_differences(name: str) -> None:
    """The workflow issues the same commands for the same events as when the history was recorded."""
    await replay(name, recorded_crew(name))


async def test_a_workflow_that_behaves_differently_is_noticed() -> None:
    """A crew with other tools is another definition: the replay refuses it."""
    other = Agent("clerk", model=ScriptedProvider("Something else."))

    with pytest.raises(Exception, match="another definition"):
        await replay("approval", other, same_crew=False)


# ------------------------------------------------------------------------------------------ recording


def _anonymous(value: Any) -> Any:
    """The value without the names of hosts and processes, and without stack traces, which have paths."""
    match value:
        case dict():
            return {key: _anonymous(one) for key, one in value.items() if key != "stackTrace"}
        case list():
            return [_anonymous(one) for one in value]
        case str() if f"@{socket.gethostname()}" in value:
            return "worker"
        case _:
            return value


async def _recorded_run(executor: TemporalExecutor, store: FailingStore, name: str) -> RunResult[Any]:
    """The result of the run whose history is recorded."""
    store.refused = ToolsStarted if name == "limit" else None
    running = asyncio.ensure_future(executor.execute("Go.", run_id=name))

    match name:
        case "limit":
            await asyncio.sleep(5)  # the time of the run is over
            store.refused = None
        case "cancelled":
            await asyncio.sleep(2)  # the calls have started
            await executor.cancel(name)
        case "failed":
            with contextlib.suppress(RunError):
                await running

            return await executor.resume(name)

    result = await running

    while result.stop_reason == "paused":
        result = await executor.resume(name, {pause.id: True for pause in result.pauses})

    return result


async def record(address: str, name: str) -> None:
    """Run a crew on a server, and write the histories of its workflow and the outcomes of its effects to a file."""
    client, crew = await Client.connect(address), recorded_crew(name)

    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/runs.db"

        worker_store, limits = FailingStore(store), Limits(seconds=3) if name == "limit" else Limits()

        async with CrewWorker(client, crew, store=worker_store, task_queue=name, limits=limits):
            sizes: dict[str, Any] = {"max_history_events": 30} if name == "long" else {}
            executor = TemporalExecutor(client, crew, store=store, task_queue=name, limits=limits, **sizes)
            result = await _recorded_run(executor, worker_store, name)
            await executor.aclose()

        histories = []

        async for execution in client.list_workflows(f'WorkflowId = "crew:{name}"'):
            handle = client.get_workflow_handle(f"crew:{name}", run_id=execution.run_id)
            histories.append((await handle.fetch_history()).to_json_dict())

        with sqlite3.connect(store) as file:
            rows = file.execute("SELECT key, data FROM effects WHERE run_id = ?", (name,)).fetchall()

    found = {
        "fingerprint": WorkerRuntime(crew).fingerprint,
        "histories": _anonymous(histories),
        "records": {key: base64.b64encode(data).decode() for key, data in rows},
    }
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / f"{name}.json").write_text(json.dumps(found) + "\n", encoding="utf-8")
    sys.stdout.write(f"{name}: {result.stop_reason}, {len(histories)} executions\n")


if __name__ == "__main__":
    with running_temporal() as server:
        for one in sys.argv[1:] or NAMES:
            asyncio.run(record(server, one))
