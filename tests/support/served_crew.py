"""The crew of the server tests: its runs take a while, have many events, and can be interrupted anywhere."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from crew import Agent, Crew, Parallel, ScriptedProvider, call, tool
from crew.interfaces import ModelRequest
from crew.providers.scripted import ScriptLine

ROUNDS = 8
LINES = 12


@tool(effect="read")
async def work(step: int) -> str:
    """Do a step. It may be repeated after a crash.

    Args:
        step: The number of the step.
    """
    await asyncio.sleep(0.01)
    return f"Step {step} is done. " + "x" * 200


@tool(effect="read")
async def wait() -> str:
    """Wait long enough for hundreds of runs to be under way at the same time."""
    await asyncio.sleep(3)
    return "Waited."


@tool(effect="read", timeout=120)
async def wait_for_file() -> str:
    """Wait until the file of the environment variable CREW_TEST_GATE exists."""
    gate = Path(os.environ["CREW_TEST_GATE"])

    while not gate.exists():
        await asyncio.sleep(0.02)

    return "Waited."


def next_step(request: ModelRequest) -> ScriptLine:
    return call("work", step=request.turn)


def report(request: ModelRequest) -> ScriptLine:
    return "".join(f"Line {number} of the report.\n" for number in range(LINES))


def worker(name: str, rounds: int) -> Agent:
    return Agent(name, model=ScriptedProvider(*[next_step] * rounds, report), tools=[work])


first, left, right, last = worker("first", ROUNDS), worker("left", 2), worker("right", 3), worker("last", 1)
first = Agent("first", model=first.model, tools=[work], then="both")
waiter = Crew("waiters", agents=[Agent("waiter", model=ScriptedProvider(call("wait"), report), tools=[wait])])
gated_agent = Agent("gated", model=ScriptedProvider(call("wait_for_file"), report), tools=[wait_for_file])
gated = Crew("gated_crew", agents=[gated_agent])
crew = Crew("workers", agents=[first, left, right, last], groups=[Parallel("both", branches=[left, right], then=last)])
