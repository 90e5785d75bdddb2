"""A crew for the tests of the inspector: its scripted agent does what the input asks for, at a visible pace."""

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crew import Agent, Context, Crew, Route, ScriptedProvider, call, tool
from crew.agents import GuardedCall, NeedsApproval, Refused, Rewritten, guardrail
from crew.interfaces import ModelRequest
from crew.messages import ToolMessage
from crew.providers.scripted import ScriptLine
from crew.tools import ConsentRequired, Tool

HOSTILE = (
    "<script>window.attacked = 1</script><img src=x onerror='window.attacked = 2'> "
    '<a href="javascript:window.attacked = 3">a link</a> [a link](javascript:alert(1)) '
    "\u202eesrever\u202c \x1b[31mred\x1b[0m \x07 zero\u200bwidth <style>*{display:none}</style>"
)
STEPS = 24


@tool(effect="read")
async def look(word: str) -> str:
    """Look a word up.

    Args:
        word: The word.
    """
    await asyncio.sleep(0.03)
    return f"{word}: found on page {len(word)}. " + "More about it. " * 12


@tool(effect="read")
async def wait(file: str) -> str:
    """Wait until a file exists.

    Args:
        file: The path of the file.
    """
    while not Path(file).exists():
        await asyncio.sleep(0.02)

    return f"{file} is here."


@tool(effect="read")
async def copy(context: Context[Any], folder: str) -> str:
    """Copy files until a file "signal" is in the folder; a file "reports" has the progress, one JSON value a line.

    Args:
        folder: The path of the folder.
    """
    sent = 0

    while not Path(folder, "signal").exists():
        lines = Path(folder, "reports").read_text(encoding="utf-8").splitlines()

        for line in lines[sent:]:
            context.emit(json.loads(line))

        sent = len(lines)
        await asyncio.sleep(0.02)

    return "All files are copied."


@tool(effect="write", asks=True)
async def book(context: Context[Any], guest: str) -> str:
    """Book a room; asks which one.

    Args:
        guest: Who wants the room.
    """
    room = await context.ask_user(f"Which room for {guest}?", choices=["garden", "street"])
    when = await context.ask_user("When do they arrive?")
    return f"The {room} room is booked for {guest}, from {when} on."


@tool(effect="write")
async def send(marker: str) -> str:
    """Send a parcel; the first attempt kills its process.

    Args:
        marker: A file that exists after the first attempt.
    """
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)

    return "The parcel is sent."


@tool(effect="read")
async def hostile(text: str) -> str:
    """Return what a hostile page would say.

    Args:
        text: Anything.
    """
    return HOSTILE


@tool(effect="write", approval="always")
async def order(item: str, pieces: int, express: bool, note: str | None, sizes: list[int]) -> str:
    """Order something.

    Args:
        item: What to order.
        pieces: How many.
        express: Whether it is urgent.
        note: A note for the shop.
        sizes: The sizes.
    """
    return repr((item, pieces, express, note, sizes))


@tool(effect="write", approval="always")
async def pay(to: str, amount: int, reference: str) -> str:
    """Pay a bill.

    Args:
        to: The recipient.
        amount: The amount in euros.
        reference: What it is for.
    """
    return f"{amount} paid to {to} for {reference}."


def reply(request: ModelRequest) -> ScriptLine:
    """What the agent says next; its own turn counts over the runs of a conversation."""
    goal = next(m.text for m in request.messages if m.role == "user" and m.origin == "user")
    results = [m for m in request.messages if isinstance(m, ToolMessage)]

    if goal.startswith("pay"):
        if results:
            return f"Done: {results[-1].results[0].text}"

        return call("pay", to="Anna", amount=500, reference="invoice 17")

    if goal.startswith("order"):
        if results:
            return f"Done: {results[-1].results[0].text}"

        return call("order", item="17", pieces=2, express=False, note="Call first.\nThen ring.", sizes=[1])

    if goal.startswith("book"):
        return f"Done: {results[-1].results[0].text}" if results else call("book", guest="Anna")

    if goal.startswith("send "):
        marker = goal.removeprefix("send ")
        return f"Done: {results[-1].results[0].text}" if results else call("send", marker=marker)

    if goal.startswith("copy "):
        return results[-1].results[0].text if results else call("copy", folder=goal.removeprefix("copy "))

    if goal.startswith("attack"):
        return HOSTILE if results else call("hostile", text=HOSTILE)

    if goal.startswith("think"):
        return "I have an idea."

    if goal.startswith("chat"):
        return f"You said {goal!r}. " + "I agree with you. " * 8

    if goal.startswith("wait for ") and request.turn == STEPS // 2:
        return call("wait", file=goal.removeprefix("wait for "))

    return call("look", word=f"word-{request.turn}") if request.turn < STEPS else "All words are found."


class SlowModel(ScriptedProvider):
    """Takes a moment for each reply, or waits for a file, so that a run can be watched."""

    async def complete(self, request: ModelRequest, on_delta: object = None) -> object:  # type: ignore[override]
        await asyncio.sleep(0.05)
        goal = next(m.text for m in request.messages if m.role == "user")

        while goal.startswith("think until ") and not Path(goal.removeprefix("think until ")).exists():
            await asyncio.sleep(0.02)

        return await super().complete(request, on_delta)  # type: ignore[arg-type]


@guardrail("input")
def on_topic(context: Context[Any], text: str) -> NeedsApproval | Refused | None:
    """Asks about a doubtful input, and refuses a poem."""
    if "poem" in text:
        return Refused("Please ask about your order.")

    return NeedsApproval("Is this input all right?") if "doubtful" in text else None


@guardrail("tool")
def small_amounts(context: Context[Any], made: GuardedCall) -> NeedsApproval | Rewritten | None:
    """Asks about large amounts, and writes the recipient in full."""
    if made.name != "transfer":
        return None

    large = made.arguments["amount"] > 100
    return NeedsApproval("Is this amount right?") if large else Rewritten({**made.arguments, "to": "Anna Smith"})


@guardrail("output")
def no_cards(context: Context[Any], text: str) -> NeedsApproval | Rewritten | None:
    """Hides numbers of cards, and asks about markup."""
    if "<script>" in text:
        return NeedsApproval("May this be sent?")

    return Rewritten(text.replace("4711", "****")) if "4711" in text else None


@tool(effect="write")
async def transfer(to: str, amount: int) -> str:
    """Transfer money.

    Args:
        to: The recipient.
        amount: The amount in euros.
    """
    return f"{amount} transferred to {to}."


class Files:
    """A toolset that asks a person before it lists its tools."""

    name = "files"

    async def list_tools(self, context: Context[Any]) -> Sequence[Tool]:
        if "files-v1" not in context.consents:
            raise ConsentRequired(key="files-v1", question="The server files changed its tools. Use them?")

        return [look]


def guarded_reply(request: ModelRequest) -> ScriptLine:
    """What the guarded agent says: it transfers the amount that the input ends with."""
    goal = next(m.text for m in request.messages if m.role == "user" and m.origin == "user")
    results = [m for m in request.messages if isinstance(m, ToolMessage)]

    if goal.startswith("attack"):
        return HOSTILE

    if "transfer" in goal and not results:
        return call("transfer", to="Anna", amount=int(goal.split()[-1]))

    return f"Done with card 4711: {results[-1].results[0].text}" if results else "Done with card 4711."


def write_instructions(context: Context[Any]) -> str:
    """Instructions that differ from run to run."""
    return f"Today you work for {context.metadata.get('customer', 'nobody')}.\n" + "Be brief and polite. " * 100


guarded = Agent(
    "guarded",
    model=SlowModel(guarded_reply),
    tools=[transfer],
    guardrails=[on_topic, small_amounts, no_cards],
    instructions="Check everything.",
)
connected = Agent(
    "connected",
    description="Uses files.",
    model=SlowModel(lambda request: f"I have {len(request.tools)} tools."),
    tools=[Files()],
    instructions=write_instructions,
)
waiting = Agent(
    "waiting",
    model=SlowModel(lambda request: "Which colour?" if request.turn == 0 else "Painted. [DONE]"),
    routes=[Route("[DONE]", to=None)],
    wait_for_signal=True,
)
desk = Agent(
    "desk",
    instructions="Work.",
    model=SlowModel(reply),
    tools=[look, wait, copy, book, send, hostile, order, pay],
    # No reply has these signals: a run begins with another agent if it asks for it.
    routes=[Route(f"[{one.name.upper()}]", to=one) for one in (guarded, connected, waiting)],
)
crew = Crew("desk", agents=[desk])
