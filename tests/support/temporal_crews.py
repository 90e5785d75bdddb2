"""Crews for worker processes. CREW_TEST_FOLDER is the folder with the store `runs.db` and the ledger of all effects."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from pathlib import Path

from crew import Agent, Context, Crew, Parallel, ScriptedProvider, call, tool
from crew.interfaces import ModelReply, ModelRequest, OnDelta

FOLDER = Path(os.environ.get("CREW_TEST_FOLDER", "."))


def note(*words: object) -> None:
    """Append a line to the ledger that all processes share."""
    line = " ".join(map(str, (*words, os.getpid(), time.time()))) + "\n"
    file = os.open(FOLDER / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line.encode())
    os.close(file)


def ledger(*words: object) -> list[list[str]]:
    """The lines that begin with these words."""
    text = (FOLDER / "ledger").read_text() if (FOLDER / "ledger").exists() else ""
    wanted = [*map(str, words)]
    return [parts for line in text.splitlines() if (parts := line.split())[: len(wanted)] == wanted]


def is_stored(run_id: str, key: str) -> bool:
    """Whether the outcome of an effect is stored, so that performing it again would repeat it."""
    root = run_id.partition("/")[0]

    with sqlite3.connect(FOLDER / "runs.db", timeout=10) as file:
        found = file.execute("SELECT 1 FROM effects WHERE run_id = ? AND key GLOB ?", (root, f"{key}@*")).fetchone()

    return found is not None


class CountedModel(ScriptedProvider):
    """Notes each request in the ledger, and each one whose reply was stored before."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        # Nothing is pruned in these runs: the number of messages is the position of the reply.
        key = f"{request.run_id}:{len(request.messages)}.ask_model"
        note("model", key, "again" if is_stored(request.run_id, key) else "new")
        await asyncio.sleep(0.05)
        return await super().complete(request, on_delta)


def _note_call(kind: str, context: Context[None]) -> None:
    key = context.idempotency_key
    note(kind, key, "again" if is_stored(context.run_id, key) else "new")


@tool(effect="read")
async def look(context: Context[None], n: int) -> str:
    """Look at something."""
    _note_call("look", context)
    await asyncio.sleep(0.1)
    return f"saw {n}"


@tool
async def pay(context: Context[None], amount: int) -> str:
    """Pay an amount."""
    _note_call("pay", context)
    await asyncio.sleep(0.1)
    note("paid", context.idempotency_key)
    return f"paid {amount}"


@tool(effect="read", timeout=120)
async def wait(context: Context[None], seconds: float) -> str:
    """Wait, the first time only."""
    _note_call("wait", context)
    await asyncio.sleep(seconds if len(ledger("wait", context.idempotency_key)) == 1 else 0)
    return "waited"


@tool(timeout=120)
async def hold(context: Context[None]) -> str:
    """Write for a long time, the first time only."""
    _note_call("hold", context)
    await asyncio.sleep(60 if len(ledger("hold", context.idempotency_key)) == 1 else 0)
    return "held"


@tool(approval=True)
def refund(amount: int) -> str:
    """Pay money back."""
    return f"paid {amount}"


refunding = Agent("refunding", model=ScriptedProvider(call("refund", amount=80), "It is paid."), tools=[refund])

ROUNDS = 6

counting = Crew(
    "counting",
    agents=[
        Agent(
            "clerk",
            model=CountedModel(
                *(
                    line
                    for n in range(ROUNDS)
                    for line in ([call("look", n=n), call("look", n=n + 100)], call("pay", amount=n))
                ),
                "All done.",
            ),
            tools=[look, pay],
        )
    ],
)
waiting = Agent("waiting", model=CountedModel(call("wait", seconds=60), "Waited."), tools=[wait])
holding = Agent("holding", model=CountedModel(call("hold"), "Held."), tools=[hold])
legal = Agent("legal", model=CountedModel(call("look", n=1), "Legal agrees."), tools=[look])
finance = Agent("finance", model=CountedModel(call("look", n=2), "Finance agrees."), tools=[look])
editor = Agent("editor", model=CountedModel("Both agree."))
triage = Agent("triage", model=CountedModel(call("transfer_to_panel")), handoffs=["panel"])
team = Crew(
    "team",
    agents=[triage, legal, finance, editor],
    groups=[Parallel("panel", branches=[legal, finance], then=editor)],
)
