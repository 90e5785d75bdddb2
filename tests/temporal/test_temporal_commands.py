"""`--temporal` of `crew resume`, `cancel`, `run` and `serve`: real processes on a real Temporal server."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from temporalio.client import Client

from crew import CrewExecutor, RunResult
from crew.cli import main
from crew.client import CrewClient
from crew.errors import RunActive
from crew.store import SQLiteStore
from crew.temporal import TemporalExecutor
from tests.support.server_process import SECRET, server_process
from tests.support.temporal import ROOT, WorkerProcesses
from tests.support.temporal_crews import refunding

pytestmark = pytest.mark.servers

TARGET = "tests/support/temporal_crews.py:refunding"


@pytest.fixture(scope="module")
def shared(temporal_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcesses]:
    """One worker process for all tests of this file."""
    folder = tmp_path_factory.mktemp("commands")
    processes = WorkerProcesses(temporal_address, str(folder / "runs.db"), TARGET, folder)
    processes.start()
    yield processes
    processes.kill_all()


def command(shared: WorkerProcesses, *arguments: str) -> list[str]:
    options = ["--temporal", shared.address, "--store", shared.store]
    return [sys.executable, "-m", "crew.cli", arguments[0], TARGET, *arguments[1:], *options]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


async def crew(shared: WorkerProcesses, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return await asyncio.to_thread(
        subprocess.run,
        command(shared, *arguments),
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


async def paused_run(shared: WorkerProcesses, run_id: str) -> RunResult:
    """A run that waits for an approval."""
    client = await Client.connect(shared.address)

    async with TemporalExecutor(client, refunding, store=shared.store) as executor:
        paused = await executor.execute("Refund me.", run_id=run_id)

    assert paused.stop_reason == "paused"
    return paused


async def status(shared: WorkerProcesses, run_id: str) -> str:
    store = SQLiteStore(shared.store)

    try:
        return (await store.run(run_id)).info.status
    finally:
        store.close()


async def test_crew_resume_answers_a_run_on_temporal(shared: WorkerProcesses) -> None:
    """The answer reaches the workflow, and the command follows the run to its end. An executor of this process changes
    nothing, and names the option."""
    paused = await paused_run(shared, "resumed")

    async with CrewExecutor(refunding, store=shared.store) as executor:
        with pytest.raises(RunActive, match="--temporal HOST:PORT"):
            await executor.resume("resumed", {paused.pauses[0].id: True})

        with pytest.raises(RunActive, match="--temporal HOST:PORT"):
            await executor.cancel("resumed")

    done = await crew(shared, "resume", "resumed", "--answer=yes", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output"] == "It is paid."
    assert "paid 80" in done.stderr
    assert await status(shared, "resumed") == "completed"


async def test_crew_cancel_cancels_a_run_on_temporal(shared: WorkerProcesses) -> None:
    """The run is cancelled in the store, and its workflow has ended."""
    await paused_run(shared, "cancelled")
    done = await crew(shared, "cancel", "cancelled")
    assert done.returncode == 0, done.stderr
    assert "cancelled is cancelled" in done.stderr
    assert await status(shared, "cancelled") == "cancelled"
    client = await Client.connect(shared.address)
    found = await client.get_workflow_handle("crew:cancelled").describe()
    assert found.status is not None
    assert found.status.name == "CANCELED"


async def test_ctrl_c_leaves_the_run_to_the_workers(shared: WorkerProcesses) -> None:
    """Ctrl-C ends the command at once, and it prints the commands that follow or cancel the run."""
    process = await asyncio.create_subprocess_exec(
        *command(shared, "run", "Refund me.", "--task-queue", "nobody"),
        cwd=ROOT,
        env=environment(),
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr is not None
    lines: list[str] = []

    async with asyncio.timeout(60):
        while "starts" not in (line := (await process.stderr.readline()).decode()):
            assert line, lines
            lines.append(line)

        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        rest = (await process.stderr.read()).decode()
        assert await process.wait() == 130

    assert time.monotonic() - began < 10
    assert "goes on with the workers" in rest
    assert "crew resume" in rest
    assert "crew cancel" in rest
    assert "--task-queue nobody" in rest


async def test_crew_serve_starts_answers_and_cancels_runs_on_temporal(shared: WorkerProcesses) -> None:
    """Over HTTP, with the service in a process of its own. A run waits while the service is not there."""
    options = ("--temporal", shared.address, "--store", shared.store)

    async with server_process(*options, target=TARGET) as server:
        async with CrewClient(server.url, SECRET) as service:
            paused, other = await asyncio.gather(
                service.execute("Refund me.", run_id="served"), service.execute("Refund me.", run_id="dropped")
            )
            assert (paused.status, other.status) == ("paused", "paused")
            assert (await service.cancel("dropped")).status == "cancelled"

        assert await server.stop(signal.SIGTERM) == 0
        await server.start()  # at the same port

        async with CrewClient(server.url, SECRET) as service:
            done = await service.resume("served", {paused.pauses[0].id: True})
            assert (done.status, done.output) == ("completed", "It is paid.")
            shown = await service.request("GET", "/inspect/runs/served")
            assert "refund" in json.dumps(shown)
            listed, _ = await service.runs()
            assert {run.run_id: run.status for run in listed}.items() >= {
                "served": "completed",
                "dropped": "cancelled",
            }.items()


def test_a_namespace_that_the_server_lacks_is_refused(
    temporal_address: str, store_file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a run is stored, and before a worker waits for work that can't come; also one of the environment."""
    options = ["--temporal", temporal_address, "--store", store_file]
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "unknown")
    assert main(["run", TARGET, "Refund me.", *options]) == 2
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "default")
    options += ["--namespace", "unknown"]
    assert main(["worker", TARGET, *options]) == 2
    assert capsys.readouterr().err.count("the server has no namespace 'unknown'") == 2


def test_the_demo_survives_the_kill_of_its_worker() -> None:
    """`make temporal`: the second worker goes on, and nothing that was done before is repeated."""
    demo = [sys.executable, "scripts/temporal_demo.py"]
    done = subprocess.run(demo, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "is killed with kill -9" in done.stdout
    assert "15 replies and 12 results of tools, each once" in done.stdout
