"""Writes the three transcripts next to this file, deterministically: `python examples/transcripts/generate.py`."""

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from crew import Agent, Crew, CrewExecutor, Limits, Parallel, Route, RunResult, ScriptedProvider, call, tool
from crew.interfaces import ModelRequest
from crew.messages import Message
from crew.runs import Branch

HERE = Path(__file__).parent
MODULES = ["billing", "orders", "refunds", "ledger", "mailer", "search", "session", "inventory", "shipping", "audit"]
VERBS = ["load", "store", "check", "merge", "price", "notify", "retry", "close", "render", "parse"]
REASONS = [
    "the total is rounded before the discount is applied",
    "the cursor is reused after the session was closed",
    "the retry counts the first attempt twice",
    "the cache key leaves the currency out",
    "the lock is released before the row is written",
]


class Clock:
    """Advances one second per call, so that the recorded times are always the same."""

    def __init__(self) -> None:
        self.now = 1_760_000_000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def dump(name: str, result: RunResult) -> None:
    """Write the transcript and the branches to one file."""
    messages: TypeAdapter[list[Message]] = TypeAdapter(list[Message])
    branches: TypeAdapter[list[Branch]] = TypeAdapter(list[Branch])
    data = {
        "transcript": messages.dump_python(list(result.transcript), mode="json", exclude_defaults=True),
        "branches": branches.dump_python(list(result.branches), mode="json", exclude_defaults=True),
    }

    numbered = _numbered(_with_roles(data), iter(range(1_000_000)))
    text = json.dumps(numbered, ensure_ascii=False, indent=1)
    (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _with_roles(data: Any) -> Any:
    """Add the roles, which `exclude_defaults` omits."""
    if isinstance(data, list):
        return [_with_roles(item) for item in data]

    if not isinstance(data, dict):
        return data

    result = {key: _with_roles(value) for key, value in data.items() if key != "manifest"}

    if "id" in result and "time" in result and "role" not in result:
        role = "tool" if "results" in result else "assistant" if "agent" in result or "calls" in result else "user"
        result = {"role": role, **result}

    return result


def _numbered(data: Any, numbers: Iterator[int]) -> Any:
    """Number the messages in ids and times, so that the files do not depend on how the engine numbers its events."""
    if isinstance(data, list):
        return [_numbered(item, numbers) for item in data]

    if isinstance(data, dict):
        result = {key: _numbered(value, numbers) for key, value in data.items()}

        if "role" in result:
            number = next(numbers)
            result |= {"id": f"m{number}", "time": 1_760_000_000.0 + 10 * number}

        return result

    return data


# ------------------------------------------------------------------------------------------ a coding agent


async def coding() -> None:
    """A coding agent: one task with 150 tool calls that read, search, edit and run tests."""
    rng = random.Random(1)

    def source(path: str, lines: int) -> str:
        body = [
            f"{n:4}  def {rng.choice(VERBS)}_{rng.choice(MODULES)}_{n}(self, row: Row) -> Result:"
            if n % 7 == 1
            else f"{n:4}      {rng.choice(MODULES)} = self.{rng.choice(VERBS)}(row.{rng.choice(MODULES)}_id)"
            for n in range(1, lines)
        ]
        return f"# {path}\n" + "\n".join(body)

    @tool(effect="read", touches="path")
    def read_file(path: str) -> str:
        """Read a file."""
        return source(path, rng.randint(20, 70))

    @tool(effect="read")
    def search(words: str) -> str:
        """Search the code."""
        hits = [f"src/{rng.choice(MODULES)}.py:{rng.randint(1, 400)}: {words}({rng.choice(MODULES)})" for _ in range(8)]
        return "\n".join(hits)

    @tool(touches="path")
    def edit_file(path: str, old: str, new: str) -> str:
        """Replace a text in a file."""
        return f"{path}: 1 replacement."

    @tool(effect="read")
    def run_tests(path: str) -> str:
        """Run tests."""
        failed = rng.randint(0, 3)
        lines = [f"FAILED {path}::test_{rng.choice(VERBS)}_{n} - AssertionError: {n} != {n + 1}" for n in range(failed)]
        return "\n".join([*lines, f"{failed} failed, {rng.randint(30, 60)} passed in {rng.randint(2, 9)}.1s"])

    def step(request: ModelRequest) -> Any:
        turn = request.turn

        if turn == 150:
            return "INV-20417 is fixed: the discount is applied before rounding, in src/billing.py, and all tests pass."

        module = MODULES[(turn // 6) % len(MODULES)]
        match turn % 6:
            case 0:
                return call("search", words=f"{rng.choice(VERBS)}_{module}")
            case 1 | 2:
                return call("read_file", path=f"src/{module}{'' if turn % 6 == 1 else '_test'}.py")
            case 3:
                return call("edit_file", path=f"src/{module}.py", old=f"{module} = total", new=f"{module} = net")
            case 4:
                return call("run_tests", path=f"tests/test_{module}.py")
            case _:
                return call("read_file", path=f"docs/{module}.md")

    agent = Agent("coder", model=ScriptedProvider(step), tools=[read_file, search, edit_file, run_tests])
    executor = CrewExecutor(
        agent, history="unbounded", limits=Limits(rounds=None), clock=(clock := Clock()), monotonic=clock
    )
    goal = (
        "Invoice INV-20417 shows 118.99 where 118.98 is right. Find out why and fix it. You must never touch "
        "src/ledger.py, the public API must stay as it is, and only add tests under tests/billing/. "
        f"My guess: {REASONS[0]}."
    )
    dump("coding", await executor.execute(goal, run_id="coding"))


# ------------------------------------------------------------------------------------------ a support chat


async def support() -> None:
    """A support chat of 60 turns with one customer and occasional tool calls."""
    rng = random.Random(2)

    @tool(effect="read")
    def lookup_order(order_id: str) -> str:
        """Look an order up."""
        items = ", ".join(f"{rng.randint(1, 3)} × {rng.choice(MODULES)} kit" for _ in range(4))
        return json.dumps({"order": order_id, "status": rng.choice(["packed", "sent", "late"]), "items": items})

    topics = ["the delivery date", "the invoice", "a missing part", "the return label", "a wrong colour", "a refund"]

    def reply(request: ModelRequest) -> Any:
        last = request.messages[-1]

        if last.role == "user" and rng.random() < 0.4:
            return call("lookup_order", order_id=f"ORD-{rng.randint(5000, 5040)}")

        topic = rng.choice(topics)
        return (
            f"About {topic}: I have looked into it for you. {rng.choice(REASONS).capitalize()}, which is why it took "
            f"longer than it should. You will hear from us by the {rng.randint(2, 28)}th, and ticket "
            f"TCK-{rng.randint(100, 999)} has the details. Is there anything else about {rng.choice(topics)}?"
        )

    agent = Agent("support", model=ScriptedProvider(reply), tools=[lookup_order])
    executor = CrewExecutor(agent, history="unbounded", clock=(clock := Clock()), monotonic=clock)
    result: Any = None

    for turn in range(60):
        text = f"Thanks. Now about {rng.choice(topics)} of order ORD-{5000 + turn}: {rng.choice(REASONS)}, I think?"

        if turn == 0:
            text = (
                "Hello, this is Ada Lindqvist, customer C-88123. Please always write to ada@example.org, never call. "
                "My budget is at most 250 EUR. " + text
            )

        result = await executor.execute(text, history=result, run_id=f"support-{turn}")

    dump("support", result)


# ------------------------------------------------------------------------------------------ a research crew


async def research() -> None:
    """A research crew: a lead starts three parallel researchers four times; an editor reads their results."""
    areas = ["markets", "patents", "regulation"]

    # Parallel branches use separate generators; otherwise the result would depend on their order.

    @tool(effect="read")
    def fetch(url: str) -> str:
        """Fetch a page."""
        rng = random.Random(url)
        facts = [
            f"In {rng.randint(2010, 2025)} {rng.choice(MODULES)} grew by {rng.randint(10, 400) / 10} %, "
            f"says report R-{rng.randint(1000, 9999)}."
            for _ in range(9)
        ]
        return f"{url}\n" + "\n".join(facts)

    def researcher(area: str) -> Agent:
        def work(request: ModelRequest) -> Any:
            rng = random.Random(f"{request.run_id} {request.turn}")

            if request.turn < 24:
                return call("fetch", url=f"https://example.org/{area}/{rng.randint(100, 999)}")

            found = " ".join(f"R-{rng.randint(1000, 9999)} supports it." for _ in range(8))
            return f"On {area}: {rng.choice(REASONS)}. {found}"

        return Agent(area, model=ScriptedProvider(work), tools=[fetch])

    def edit(request: ModelRequest) -> str:
        if request.turn < 3:
            return f"Round {request.turn + 1} is read; {areas[request.turn]} needs another look. [AGAIN]"

        return "The report: demand for heat pumps grows, patents are open, and regulation helps. [DONE]"

    panel = Parallel("panel", branches=areas, then="editor")
    lead = Agent(
        "lead",
        model=ScriptedProvider(lambda r: "[GO] Each of you: two dozen sources."),
        routes=[Route("[GO]", to=panel, match="anywhere")],
    )
    editor = Agent(
        "editor", model=ScriptedProvider(edit), routes=[Route("[AGAIN]", to=panel), Route("[DONE]", to=None)]
    )
    crew = Crew("research", agents=[lead, *(researcher(area) for area in areas), editor], groups=[panel])
    executor = CrewExecutor(
        crew, history="unbounded", limits=Limits(rounds=None), clock=(clock := Clock()), monotonic=clock
    )
    goal = (
        "Write a report on heat pumps in Europe. You must name every source by its report number, use only sources "
        "from 2010 or later, and never quote competitors of ACME-7."
    )
    dump("research", await executor.execute(goal, run_id="research"))


async def main() -> None:
    """Write all three transcripts."""
    await coding()
    await support()
    await research()


if __name__ == "__main__":
    asyncio.run(main())
