"""Worker processes on a Temporal server, and the outcomes of effects in memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
START_SECONDS = 60


@dataclass(slots=True)
class WorkerProcess:
    """`crew worker` as a process."""

    process: subprocess.Popen[bytes]
    log: Path

    def output(self) -> str:
        """What it has written to stderr."""
        return self.log.read_text()

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """End it at once, as a machine that fails."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """Ask it to end; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@dataclass(slots=True)
class WorkerProcesses:
    """Starts workers of one crew, and ends them."""

    address: str
    store: str
    target: str
    folder: Path
    started: list[WorkerProcess] = field(default_factory=list)

    def start(self, *options: str) -> WorkerProcess:
        """Start a worker and wait until it is ready."""
        command = [sys.executable, "-m", "crew.cli", "worker", self.target, "--temporal", self.address]
        log = self.folder / f"worker-{len(self.started)}.log"

        with log.open("w") as output:  # not a pipe: a worker that fills one waits for ever
            process = subprocess.Popen(
                [*command, "--store", self.store, *options],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "CREW_TEST_FOLDER": str(self.folder)},
                stderr=output,
            )

        worker = WorkerProcess(process, log)
        self.started.append(worker)
        deadline = time.monotonic() + START_SECONDS

        while "task queue" not in worker.output():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise AssertionError(f"the worker did not start: {worker.output()}")

            time.sleep(0.02)

        return worker

    def kill_all(self) -> None:
        for worker in self.started:
            if worker.process.poll() is None:
                worker.kill()


class MemoryRecords:
    """Effect records in memory, for the replay of recorded histories."""

    def __init__(self, records: dict[tuple[str, str], bytes] | None = None) -> None:
        self.records = records or {}

    async def put(self, run_id: str, key: str, data: bytes) -> bytes:
        return self.records.setdefault((run_id, key), data)

    async def get(self, run_id: str, key: str) -> bytes | None:
        return self.records.get((run_id, key))
