"""Processes that are killed with SIGKILL as soon as their run pauses: another process answers and goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

WORKER = """
import asyncio, json, os, signal, sys
from pathlib import Path

from crew import Agent, Context, Crew, CrewExecutor, Parallel, ScriptedProvider, call, tool
from crew.errors import UnknownRun

folder, answers = Path(sys.argv[1]), json.loads(sys.argv[2])


def note(line):
    with (folder / "ledger").open("a") as file:
        file.write(line + "\\n")


@tool(approval=True)
async def pay(amount: int) -> str:
    "Pay."
    note(f"paid {amount}")
    return f"paid {amount}"


@tool(asks=True)
def move(amount: int, context: Context) -> str:
    "Move money."
    account = context.ask_user("Which account?", choices=["a", "b"])
    reason = context.ask_user(f"Why from {account}?")
    note(f"moved {amount} from {account}: {reason} ({context.idempotency_key})")
    return "moved"


def kill(event):
    if event.kind == "paused":
        print(json.dumps([[pause.id, pause.reason, pause.text] for pause in event.pauses]), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


async def main():
    payer = Agent("payer", model=ScriptedProvider(call("pay", amount=80), "payer done"), tools=[pay])
    mover = Agent("mover", model=ScriptedProvider(call("move", amount=5), "mover done"), tools=[move])
    group = Parallel("g", branches=[payer, mover])
    crew = Crew("c", agents=[payer, mover], groups=[group], entry="g")
    executor = CrewExecutor(crew, store=folder / "runs.db", observers=[kill])

    if answers:
        result = await executor.resume("r", answers)
    else:
        result = await executor.execute("Go.", run_id="r")

    print(json.dumps(result.output), flush=True)


asyncio.run(main())
"""


def run_process(folder: Path, answers: dict[str, Any], *, killed: bool = True) -> Any:
    """What a process prints: the pauses before it was killed, or the output of the run."""
    command = [sys.executable, "-c", WORKER, str(folder), json.dumps(answers)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == (-9 if killed else 0), process.stderr
    return json.loads(process.stdout)


def test_edited_approvals_and_questions_survive_a_kill_in_each_pause(tmp_path: Path) -> None:
    """Four processes, three of them killed: every answer is used once, and every effect happens once."""
    first = run_process(tmp_path, {})
    assert first == [
        ["r/payer:2.0", "approval", "May payer call pay?\n  amount: 80"],
        ["r/mover:2.0.ask1", "question", "Which account?"],
    ]
    second = run_process(tmp_path, {"r/mover:2.0.ask1": "b"})
    assert [id for id, *_ in second] == ["r/payer:2.0", "r/mover:2.0.ask2"]
    third = run_process(tmp_path, {"r/payer:2.0": {"approve": {"arguments": {"amount": 20}, "by": "ada"}}})
    assert third == [["r/mover:2.0.ask2", "question", "Why from b?"]]
    output = run_process(tmp_path, {"r/mover:2.0.ask2": "rent"}, killed=False)
    assert output == "[Results of g]\n## payer\npayer done\n\n## mover\nmover done"
    assert (tmp_path / "ledger").read_text().splitlines() == ["paid 20", "moved 5 from b: rent (r/mover:2.0)"]
