"""A process that is killed repeatedly while its run writes: every write happens once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

WRITES = 12

WORKER = """
import asyncio, json, os, sys
from pathlib import Path

from crew import Agent, CrewExecutor, call, tool, ScriptedProvider
from crew.errors import RunConflict, UnknownRun
from crew.runs import StoredRun
from crew.store import decode_state, encode_state

folder = Path(sys.argv[1])
ledger = folder / "ledger"


class FileStore:
    async def commit(self, run_id, version, events, state):
        fresh = folder / "fresh"
        fresh.write_bytes(b"%d\\n" % (version + 1) + encode_state(state))
        os.replace(fresh, folder / "state")

    async def load(self, run_id):
        if not (folder / "state").exists():
            raise UnknownRun(run_id)

        version, data = (folder / "state").read_bytes().split(b"\\n", 1)
        return StoredRun(version=int(version), state=decode_state(data))


@tool
async def write(n: int) -> str:
    \"\"\"Write a number down.\"\"\"
    await asyncio.sleep(0.01)

    with ledger.open("a") as file:
        file.write(f"{n}\\n")

    await asyncio.sleep(0.01)
    return f"wrote {n}"


def written():
    return [int(line) for line in ledger.read_text().split()] if ledger.exists() else []


async def main():
    script = ScriptedProvider(*[call("write", n=n) for n in range(WRITES)], "all written")
    executor = CrewExecutor(Agent("solo", model=script, tools=[write]), store=FileStore(), max_messages_per_request=6)

    try:
        result = await executor.resume("r")
    except UnknownRun:
        result = await executor.execute("write", run_id="r")

    while result.stop_reason == "paused":
        # The person looks into the ledger: that is where the truth is.
        done = {p.id: json.loads(p.call.arguments)["n"] in written() for p in result.pauses}
        answers = {id: {"done": "it was written"} if was else "run again" for id, was in done.items()}
        result = await executor.resume("r", answers)

    print(result.output)


asyncio.run(main())
""".replace("WRITES", str(WRITES))


def run_until_done(folder: Path, seed: int) -> tuple[str, int]:
    """Start the worker, kill it, start it again, until one worker reaches the end."""
    chance = random.Random(seed)
    kills = 0

    while True:
        worker = subprocess.Popen([sys.executable, "-c", WORKER, str(folder)], stdout=subprocess.PIPE, text=True)

        try:
            out, _ = worker.communicate(timeout=60 if kills >= 15 else chance.uniform(0.3, 1.5))
            assert worker.returncode == 0
            return out.strip(), kills
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.communicate()
            kills += 1


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_every_write_happens_once_despite_kills(tmp_path: Path, seed: int) -> None:
    """Invariant 10, with SIGKILL: committed work is not repeated, and calls in doubt pause the run."""
    output, _ = run_until_done(tmp_path, seed)
    assert output == "all written"
    assert [int(line) for line in (tmp_path / "ledger").read_text().split()] == list(range(WRITES))
    version, data = (tmp_path / "state").read_bytes().split(b"\n", 1)
    assert int(version) > WRITES
    assert json.loads(data)["state"]["next"]["stop_reason"] == "completed"
