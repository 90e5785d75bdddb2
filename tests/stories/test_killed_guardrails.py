"""Processes that are killed with SIGKILL in each pause of guardrails and toolsets: another process goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

WORKER = """
import asyncio, json, os, signal, sys
from pathlib import Path

from crew import Agent, Crew, CrewExecutor, Parallel, ScriptedProvider, call, tool
from crew.agents import NeedsApproval, guardrail
from crew.tools import ConsentRequired

folder, answers = Path(sys.argv[1]), json.loads(sys.argv[2])


def note(line):
    with (folder / "ledger").open("a") as file:
        file.write(line + "\\n")


@guardrail("input")
def ask_input(context, text):
    note(f"input {context.run_id} {text}")
    return NeedsApproval("Start?")


@guardrail("tool")
def ask_call(context, made):
    note(f"call {made.name}")
    return NeedsApproval("Call it?")


@guardrail("output")
def ask_output(context, text):
    note(f"output {text}")
    return NeedsApproval("Show it?")


@tool
def pay(amount: int) -> str:
    "Pay."
    note(f"paid {amount}")
    return "paid"


class Guarded:
    name = "guarded"

    async def list_tools(self, context):
        if "key" not in context.consents:
            raise ConsentRequired(key="key", question="Use guarded?")

        return [pay]


def write(context):
    note(f"instructions {context.run_id}")
    return f"You work in {context.run_id}."


def model(*lines):
    def reply(request):
        note(f"asked {request.run_id}: {request.instructions}")
        return lines[request.turn]

    return ScriptedProvider(*[reply] * len(lines))


def kill(event):
    if event.kind == "paused":
        print(json.dumps([[pause.id, pause.reason, pause.text] for pause in event.pauses]), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


async def main():
    payer = Agent(
        "payer",
        instructions=write,
        description="Pays.",
        model=model(call("pay", amount=80), "paid it"),
        tools=[Guarded()],
        guardrails=[ask_call],
    )
    boss = Agent("boss", model=model(call("ask_payer", request="Pay 80."), "boss done"), tools=[payer.as_tool()])
    group = Parallel("g", branches=[boss])
    crew = Crew("c", agents=[boss], groups=[group], entry="g", guardrails=[ask_input, ask_output])
    executor = CrewExecutor(crew, store=folder / "runs.db", observers=[kill])
    result = await (executor.resume("r", answers) if answers else executor.execute("Go.", run_id="r"))
    print(json.dumps(result.output), flush=True)


asyncio.run(main())
"""


def run_process(folder: Path, answers: dict[str, Any], *, killed: bool = True) -> Any:
    """What a process prints: the pauses before it was killed, or the output of the run."""
    command = [sys.executable, "-c", WORKER, str(folder), json.dumps(answers)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == (-9 if killed else 0), process.stderr
    return json.loads(process.stdout)


def test_pauses_of_guardrails_and_toolsets_survive_a_kill(tmp_path: Path) -> None:
    """Five processes, four of them killed: input, consent, call and output are each asked once, in an agent called as a
    tool by a branch, and nothing that was recorded is done again."""
    assert run_process(tmp_path, {}) == [["r:0.ask_input.guardrail", "consent", "Start?"]]
    consent = run_process(tmp_path, {"r:0.ask_input.guardrail": True})
    assert consent == [["r/boss/2.0:1.guarded.consent", "consent", "Use guarded?"]]
    approval = run_process(tmp_path, {"r/boss/2.0:1.guarded.consent": True})
    assert approval == [["r/boss/2.0:1.0", "approval", "Call it?\n  amount: 80"]]
    shown = run_process(tmp_path, {"r/boss/2.0:1.0": True})
    [[id, reason, text]] = shown
    assert (reason, text) == ("consent", "Show it?")
    assert run_process(tmp_path, {id: True}, killed=False) == "[Results of g]\n## boss\nboss done"
    assert (tmp_path / "ledger").read_text().splitlines() == [
        "input r Go.",
        "asked r/boss: ",
        "instructions r/boss/2.0",
        "asked r/boss/2.0: You work in r/boss/2.0.",
        "call pay",
        "paid 80",
        "asked r/boss/2.0: You work in r/boss/2.0.",
        "asked r/boss: ",
        "output [Results of g]",
        "## boss",
        "boss done",
    ]
