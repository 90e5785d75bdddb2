"""A crew for the tests of `crew mcp`: it answers, waits, or asks for an approval, as its input says."""

from __future__ import annotations

import asyncio
import sys

from crew import Agent, Crew, ScriptedProvider, call, tool


@tool(approval="always")
async def refund(order: int) -> str:
    """Pay an order back."""
    sys.stdout.write("a line on stdout\n")
    return f"refunded {order}"


@tool(effect="read", timeout=60)
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


def answer(request: object) -> object:
    """Call the tool that the input names; then report its result."""
    last = request.messages[-1]  # type: ignore[attr-defined]

    if last.role == "tool":
        return f"Result: {last.results[0].text}"

    if "refund" in last.text:
        return call("refund", order=3)

    return call("wait", seconds=60) if "wait" in last.text else f"You said: {last.text}"


def make_crew() -> Crew:
    """The crew `support`."""
    agent = Agent("clerk", description="Helps customers.", model=ScriptedProvider(answer), tools=[refund, wait])
    return Crew("support", agents=[agent])


crew = make_crew()
