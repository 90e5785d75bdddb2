"""`make temporal`: runs examples/demo.py on a local Temporal server, and kills its worker half-way.

Two workers share the work; the run continues in the second one. Nothing that was done before is repeated.
"""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from temporal_server import TemporalUnavailable, running_temporal
from temporalio.client import Client

from crew import Crew
from crew.cli.terminal import event_line
from crew.runs.events import Replied, ToolReturned
from crew.temporal import TemporalExecutor

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "examples" / "demo.py"
KILL_AFTER = 6
"""Kill the worker after so many results of tools."""


def start_worker(address: str, store: str) -> subprocess.Popen[str]:
    """Start `crew worker` and wait until it is ready."""
    command = [sys.executable, "-m", "crew.cli", "worker", str(DEMO), "--temporal", address, "--store", store]
    worker = subprocess.Popen([*command, "--max-messages", "12"], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert worker.stderr is not None
    print(f"[worker {worker.pid}] {worker.stderr.readline().strip()}", flush=True)
    return worker


def load_demo() -> Crew:
    """The crew of the demo."""
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    crew: Crew = module.crew
    return crew


async def run(address: str, store: str) -> None:
    """Run the demo; kill the first worker when half of the work is done."""
    client = await Client.connect(address)
    executor = TemporalExecutor(
        client, load_demo(), store=store, max_messages_per_request=12, heartbeat_seconds=2, task_seconds=2
    )
    workers = [start_worker(address, store), start_worker(address, store)]
    results, replies, killed = 0, 0, 0.0

    try:
        async with executor, executor.execute_stream("Can we sign the contract?", run_id="demo") as events:
            async for event in events:
                if killed and isinstance(event, Replied | ToolReturned) and event.at > killed:
                    print(
                        f"[worker {workers[1].pid} goes on, {event.at - killed:.1f} s after the kill]",
                        flush=True,
                    )
                    killed = 0.0

                results += isinstance(event, ToolReturned)
                replies += isinstance(event, Replied)

                if line := event_line(event):
                    print(line, flush=True)

                if results == KILL_AFTER and workers[0].poll() is None:
                    workers[0].kill()
                    workers[0].wait()
                    killed = time.time()
                    print(
                        f"[worker {workers[0].pid} is killed with kill -9; what follows first was stored before]",
                        flush=True,
                    )

        history = (await client.get_workflow_handle("crew:demo").describe()).history_length
        print(f"\nAnswer: {events.result.output}")
        print(f"{replies} replies and {results} results of tools, each once; {history} events of workflow history.")
        assert events.result.output == "Sign it: terms, payment and dates are in order."
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def main() -> int:
    """Start the server, run the demo, and stop everything."""
    try:
        with running_temporal() as address, tempfile.TemporaryDirectory() as folder:
            print(f"[server] Temporal on {address}", flush=True)
            asyncio.run(run(address, f"{folder}/runs.db"))
    except TemporalUnavailable as error:
        print(f"Temporal is not available: {error}", file=sys.stderr)
        return 1

    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.exit(main())
