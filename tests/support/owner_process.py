"""A process that owns runs: `python -m tests.support.owner_process FOLDER MODE`.

The runs are in an SQLite file in the folder, or in the PostgreSQL schema of the URL in CREW_TEST_STORE.

`resume` resumes the run of each line on its standard input and prints the outcome. The other modes start run `r`:
`wait` waits in its write until the run is cancelled, `stop` stops its process after the write was recorded.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from crew import Agent, CrewExecutor, ScriptedProvider, call, tool
from crew.errors import CrewError
from crew.interfaces import ModelReply, ModelRequest, OnDelta
from crew.runs import Event
from crew.runs.events import ToolsStarted
from crew.store import PostgresStore, SQLiteStore
from crew.tools import Context, Tool

ROOT = Path(__file__).parents[2]
LEASE_SECONDS = 3.0
"""Of the process in the mode `stop`; it must not lapse before the test has seen it, also on a machine that stalls."""


class Ledger:
    """A file to which all processes append what they did."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger"

    def note(self, *words: object) -> None:
        line = " ".join(map(str, words)) + "\n"

        with self.path.open("a", encoding="utf-8") as file:
            file.write(line)

    def lines(self, *words: object) -> list[str]:
        """The lines that begin with these words."""
        start = " ".join(map(str, words)) + " "
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        return [line for line in text.splitlines() if line.startswith(start)]


class CountedModel(ScriptedProvider):
    """Notes each request in the ledger."""

    def __init__(self, ledger: Ledger, *lines: Any) -> None:
        super().__init__(*lines)
        self.ledger = ledger

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        self.ledger.note("model", request.run_id, os.getpid())
        return await super().complete(request, on_delta)


def write_tool(ledger: Ledger, *, approval: bool = False, waits: bool = False) -> Tool:
    """A tool that notes each call in the ledger; it may then wait until it is cancelled."""

    @tool(approval=approval, timeout=60)
    async def write(context: Context[None]) -> str:
        """Write."""
        ledger.note("write", context.run_id, os.getpid())
        await asyncio.sleep(60 if waits else 0)
        return "written"

    return write


def executor(folder: Path, write: Tool, **options: Any) -> CrewExecutor:
    """An executor of one agent that writes once, on the store of all processes."""
    lease = {"lease_seconds": options.pop("lease_seconds")} if "lease_seconds" in options else {}
    model = CountedModel(Ledger(folder), call("write"), "done")
    url = os.environ.get("CREW_TEST_STORE")
    store = PostgresStore(url, **lease) if url else SQLiteStore(folder / "runs.db", **lease)
    return CrewExecutor(Agent("writer", model=model, tools=[write]), store=store, **options)


def start(folder: Path, mode: str) -> subprocess.Popen[str]:
    """Start this module as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.owner_process", str(folder), mode],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _stop_after_the_record(event: Event) -> None:
    if isinstance(event, ToolsStarted):
        os.kill(os.getpid(), signal.SIGSTOP)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _outcome(work: Any) -> str:
    try:
        return str((await work).stop_reason)
    except CrewError as error:
        return type(error).__name__


async def _resume_each(crew: CrewExecutor) -> None:
    _print("ready")

    while line := await asyncio.to_thread(sys.stdin.readline):
        run_id, answers = json.loads(line)
        _print(await _outcome(crew.resume(run_id, answers)))


def main(folder: Path, mode: str) -> None:
    """Run until standard input ends, or the run does."""
    ledger = Ledger(folder)

    if mode == "resume":
        asyncio.run(_resume_each(executor(folder, write_tool(ledger, approval=True))))
        return

    options: dict[str, Any] = {}

    if mode == "stop":
        options = {"lease_seconds": LEASE_SECONDS, "observers": [_stop_after_the_record]}

    crew = executor(folder, write_tool(ledger, waits=mode == "wait"), **options)
    _print(asyncio.run(_outcome(crew.execute("go", run_id="r"))))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
