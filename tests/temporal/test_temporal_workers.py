"""Workers on a real Temporal server: other definitions of a crew, traces, PostgreSQL, the command line."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from crew import Agent, CrewExecutor, ScriptedProvider, call, tool
from crew.errors import DefinitionError, RunError, UnknownRun
from crew.runs.events import Event
from crew.store import MemoryStore, PostgresStore, SQLiteStore
from crew.temporal import CrewWorker, TemporalExecutor
from tests.support.http_service import client_of, parse_events
from tests.support.postgres import Postgres, PostgresUnavailable, running_postgres
from tests.support.servers import server_missing
from tests.support.spans import recorded_spans
from tests.support.temporal import ROOT, WorkerProcesses

pytestmark = pytest.mark.servers


@tool(effect="read")
async def look(n: int) -> str:
    """Look at something."""
    return f"saw {n}"


@tool(approval=True)
def refund(amount: int) -> str:
    """Pay money back."""
    return f"paid {amount}"


def clerk(*lines: Any, **options: Any) -> Agent:
    return Agent("clerk", model=ScriptedProvider(*lines), tools=[look, refund], **options)


async def test_a_worker_with_another_definition_refuses_a_run(client: Client, store_file: str) -> None:
    """The run waits, with the reason in its workflow, until a worker with its definition takes it."""
    old = clerk(call("refund", amount=80), "Paid.")
    new = clerk(call("refund", amount=80), "Paid.", instructions="Be polite.")
    executor = TemporalExecutor(client, old, store=store_file, task_queue="versions")

    async with CrewWorker(client, old, store=store_file, task_queue="versions"):
        paused = await executor.execute("Refund me.", run_id="versions")

    answers = {paused.pauses[0].id: True}

    async with CrewWorker(client, new, store=store_file, task_queue="versions"):
        task = asyncio.create_task(executor.resume("versions", answers))
        handle = client.get_workflow_handle("crew:versions")

        while not (failure := await _task_failure(handle)):
            await asyncio.sleep(0.2)

        assert "another definition of the crew 'clerk'" in failure
        assert not task.done()

    async with CrewWorker(client, old, store=store_file, task_queue="versions"):
        assert (await asyncio.wait_for(task, 60)).output == "Paid."

    await executor.aclose()


async def _task_failure(handle: Any) -> str:
    events = (await handle.fetch_history()).events
    return next((e.workflow_task_failed_event_attributes.failure.message for e in events if e.event_type == 9), "")


async def test_one_trace_covers_client_and_workers_without_doubles(client: Client, store_file: str) -> None:
    """The client exports the spans of the events, the workers those of the activities, all in one trace. The workflow
    is replayed for every step here, and adds no span."""
    crew = clerk([call("look", n=1), call("look", n=2)], call("look", n=3), "Done.")

    with recorded_spans() as client_spans, recorded_spans() as worker_spans:
        options = {"max_cached_workflows": 0, "max_concurrent_workflow_task_polls": 1}
        worker = CrewWorker(
            client,
            crew,
            store=store_file,
            task_queue="traces",
            telemetry=worker_spans.telemetry(),
            worker_options={**options, "nonsticky_to_sticky_poll_ratio": 1.0},
        )
        executor = TemporalExecutor(
            client, crew, store=store_file, task_queue="traces", telemetry=client_spans.telemetry()
        )

        async with worker:
            result = await executor.execute("Go.", run_id="traces")

        await executor.aclose()
        traces = {span.context.trace_id for span in (*client_spans.spans, *worker_spans.spans)}
        assert traces == {int(result.trace_id, 16)}
        assert len(client_spans.named("chat")) == 3
        assert len(client_spans.named("execute_tool")) == 3
        assert len(client_spans.named("invoke_agent")) == 1
        assert sorted(span.name for span in worker_spans.spans) == ["perform ask_model"] * 3 + ["perform run_call"] * 3
        root = client_spans.named("invoke_workflow")[0]
        assert {span.parent.span_id for span in worker_spans.spans if span.parent} == {root.context.span_id}
        keys = [span.attributes["crew.effect.key"] for span in worker_spans.spans if span.attributes]
        assert len(keys) == len(set(keys))


async def test_a_failure_in_the_first_step_is_among_the_events(client: Client, store_file: str) -> None:
    """It is appended to the first commit, whose other events the reader knows already."""
    crew = clerk(ValueError("boom"))
    events: list[Event] = []

    async with CrewWorker(client, crew, store=store_file, task_queue="failed"):
        executor = TemporalExecutor(client, crew, store=store_file, task_queue="failed", observers=[events.append])

        with pytest.raises(RunError, match="boom"):
            await executor.execute("Go.", run_id="failed")

        first = [event.kind for event in events]

        with pytest.raises(RunError, match="boom"):
            await executor.resume("failed")

        again = [event.kind for event in events][len(first) :]
        await executor.aclose()

    assert (first[0], first[-1], first.count("run_failed")) == ("run_started", "run_failed", 1)
    assert (again[0], again[-1], again.count("run_failed")) == ("resumed", "run_failed", 1)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server on a free port."""
    try:
        with running_postgres() as running:
            yield running
    except PostgresUnavailable as reason:
        server_missing("postgres", str(reason))


async def test_runs_are_stored_in_postgres(client: Client, postgres: Postgres) -> None:
    """The store of several machines: pauses, answers, and the log that other processes follow."""
    crew = clerk(call("look", n=1), call("refund", amount=80), "Paid.")
    worker_store, store = PostgresStore(postgres.url()), PostgresStore(postgres.url())

    async with CrewWorker(client, crew, store=worker_store, task_queue="postgres"):
        executor = TemporalExecutor(client, crew, store=store, task_queue="postgres")
        paused = await executor.execute("Refund me.", run_id="postgres")
        done = await executor.resume("postgres", {paused.pauses[0].id: True})
        assert done.output == "Paid."
        assert len(await store.transcript("postgres")) == len(done.transcript) == 6
        assert await store.effects().get("postgres", "nothing") is None
        first = await store.effects().put("postgres", "key", b"first")
        assert first == await store.effects().put("postgres", "key", b"second") == b"first"
        assert await store.forget("postgres") == 1
        assert await store.effects().get("postgres", "key") is None
        await executor.aclose()

    worker_store.close()
    store.close()


async def test_forgetting_a_run_erases_the_outcomes_of_its_effects(client: Client, store_file: str) -> None:
    """No byte of a message stays in the file."""
    crew = clerk(call("look", n=4242), "Done.")

    async with CrewWorker(client, crew, store=store_file, task_queue="forget"):
        executor = TemporalExecutor(client, crew, store=store_file, task_queue="forget")
        await executor.execute("The marker is xyzzy-17.", run_id="forget")
        await executor.aclose()

    store = SQLiteStore(store_file)
    await store.forget("forget")
    store.close()
    files = [path for path in (Path(store_file), Path(f"{store_file}-wal")) if path.exists()]
    assert not any(word in path.read_bytes() for path in files for word in (b"xyzzy-17", b"saw 4242"))


async def test_stores_that_processes_cannot_share_are_refused(client: Client) -> None:
    """The error says which stores can be used."""
    with pytest.raises(DefinitionError, match="postgresql"):
        CrewWorker(client, clerk("Hi."), store=MemoryStore())

    with pytest.raises(DefinitionError, match="postgresql"):
        TemporalExecutor(client, clerk("Hi."), store=MemoryStore())

    with pytest.raises(DefinitionError, match="observers"):
        CrewWorker(client, clerk("Hi."), store=":memory:", observers=[print])


async def test_options_without_effect_are_refused(client: Client, store_file: str) -> None:
    """The workers decide how much they do at once; the error says how."""
    for kind in (CrewWorker, TemporalExecutor):
        with pytest.raises(DefinitionError, match="max_concurrent_activities"):
            kind(client, clerk("Hi."), store=store_file, max_concurrent_runs=1)


async def test_a_run_without_a_workflow_is_recovered(client: Client, store_file: str) -> None:
    """Its client died after it stored the run and before it started the workflow."""

    nowhere = await Client.connect("127.0.0.1:1", lazy=True)
    dying = TemporalExecutor(nowhere, clerk("Hi."), store=store_file, task_queue="stored")

    with pytest.raises(RunError, match="could not be started"):
        await dying.execute("Hello.", run_id="stored")

    executor = TemporalExecutor(client, clerk("Hi."), store=store_file, task_queue="stored")

    with pytest.raises(UnknownRun, match="no workflow of the run 'stored'"):
        await executor.state("stored")

    async with CrewWorker(client, clerk("Hi."), store=store_file, task_queue="stored"):
        found = await executor.recover(interrupted=True)
        again = await executor.recover(interrupted=True)

    assert [(run_id, getattr(one, "output", one)) for run_id, one in found.items()] == [("stored", "Hi.")]
    assert again == {}


async def test_the_service_starts_and_answers_runs_on_temporal(client: Client, store_file: str) -> None:
    """Over HTTP: a run on a worker pauses, is answered and completes, and its events are read from the store's log."""
    crew = clerk(call("refund", amount=80), "It is paid.")
    executor = TemporalExecutor(client, crew, store=store_file, task_queue="served")

    async with CrewWorker(client, crew, store=store_file, task_queue="served"), client_of(executor) as http:
        started = await http.post("/runs?stream=1", json={"input": "Refund me."})
        events = parse_events(started.text)
        run_id = events[0]["data"]["run_id"]
        assert [event["event"] for event in events][-2:] == ["paused", "end"]
        [pause] = (await http.get(f"/runs/{run_id}")).json()["pauses"]
        answered = await http.post(f"/runs/{run_id}/answers?stream=1", json={"answers": {pause["id"]: True}})
        assert answered.status_code in (200, 202), answered.text

        async with asyncio.timeout(30):
            while (found := (await http.get(f"/runs/{run_id}")).json())["status"] != "completed":
                await asyncio.sleep(0.05)

        assert found["output"] == "It is paid."
        shown = CrewExecutor(crew, store=store_file)

        async with client_of(shown) as other:
            assert (await other.get(f"/runs/{run_id}")).json()["output"] == "It is paid."

        await shown.aclose()

    await executor.aclose()


def test_the_command_line_runs_a_crew_on_a_worker(workers: WorkerProcesses, store_file: str) -> None:
    """`crew worker` drives what `crew run --temporal` starts; the worker ends with SIGTERM."""
    workers.target = "tests/support/temporal_crews.py:team"
    worker = workers.start()
    command = [sys.executable, "-m", "crew.cli", "run", workers.target, "Check it.", "--json"]
    done = subprocess.run(
        [*command, "--temporal", workers.address, "--store", store_file],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CREW_TEST_FOLDER": str(workers.folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output"] == "Both agree."
    assert "legal" in done.stderr
    assert worker.terminate() == 143


def test_wrong_usage_of_the_commands_is_explained(tmp_path: Any) -> None:
    """A missing option, or a server that is not there, is one line and exit code 2."""
    target = "tests/support/temporal_crews.py:team"
    cases = {
        ("worker", target): "--temporal",
        ("worker", target, "--temporal", "127.0.0.1:9"): "--store",
        ("run", target, "Go.", "--temporal", "127.0.0.1:9"): "--store",
        ("worker", target, "--temporal", "127.0.0.1:9", "--store", str(tmp_path / "r.db")): "Is the server running?",
    }

    for arguments, expected in cases.items():
        done = subprocess.run(
            [sys.executable, "-m", "crew.cli", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        assert expected in done.stderr
