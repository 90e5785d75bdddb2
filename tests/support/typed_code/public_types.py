"""What type checkers infer for users of Crew; tests/test_types.py runs mypy and pyright on this file.

A line that must be an error has a `type: ignore`: an ignore that is not needed is an error too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, assert_type

from pydantic import BaseModel
from typing_extensions import TypedDict

from crew import Agent, Context, Crew, CrewExecutor, Parallel, Route, RunInfo, RunResult, handoff, tool
from crew.runs import MissingOutput


class Refund(BaseModel):
    amount: int


class Refusal(BaseModel):
    reason: str


@dataclass
class Point:
    x: int


class Address(TypedDict):
    street: str


class Database:
    def find(self, order: str) -> int:
        return len(order)


# --- outputs ---------------------------------------------------------------------------------------

assert_type(Agent("a"), Agent[Any, str])
assert_type(Agent("a", output=Refund), Agent[Any, Refund])
assert_type(Agent("a", output=Point), Agent[Any, Point])
assert_type(Agent("a", output=Address), Agent[Any, Address])
assert_type(Agent("a", output=list[Refund]), Agent[Any, list[Refund]])
assert_type(Agent("a", output=int), Agent[Any, int])
assert_type(Agent("a", output=Refund | Refusal), Agent[Any, Refund | Refusal])
assert_type(Agent("a", output=Refund | None), Agent[Any, Refund | None])
assert_type(Agent("a", output=Literal["yes", "no"]), Agent[Any, Literal["yes", "no"]])
assert_type(Agent("a", deps_type=Database, output=Refund), Agent[Database, Refund])
assert_type(Agent[Database, Refund]("a", output=Refund), Agent[Database, Refund])

Agent[Database, int]("a", output=Refund)  # type: ignore[arg-type]


# --- results ---------------------------------------------------------------------------------------

clerk = Agent("clerk", deps_type=Database, output=Refund)
executor = CrewExecutor(clerk)
assert_type(executor, CrewExecutor[Database, Refund])
assert_type(CrewExecutor(Agent("a")).execute_sync("Go").output, str)
assert_type(CrewExecutor(Agent("a", output=list[int])).execute_sync("Go").output, list[int])


async def results() -> None:
    result = await executor.execute("Go", deps=Database())
    assert_type(result, RunResult[Refund])
    assert_type(result.output, Refund)
    assert_type(result.output.amount, int)
    assert_type(result.answer, Refund | MissingOutput)
    assert_type(result.text, str)
    assert_type(executor.execute_sync("Go").output, Refund)
    assert_type((await executor.resume("r", {"p": True}, deps=Database())).output, Refund)
    assert_type(executor.resume_sync("r").output, Refund)
    assert_type((await executor.execute("Go", history=result)).output, Refund)

    async with executor.execute_stream("Go", deps=Database()) as events:
        async for event in events:
            assert_type(event.run_id, str)

    assert_type(events.result.output, Refund)
    assert_type(events.run_id, str)
    await events.cancel()

    await executor.execute("Go", deps=5)  # type: ignore[arg-type]
    _ = result.output.amuont  # type: ignore[attr-defined]
    await executor.execute("Go", on_busy="never")  # type: ignore[arg-type]
    await executor.resume("r", stirct=True)  # type: ignore[call-arg]


def wide(result: RunResult[object], other: RunResult) -> None:
    """A result of any type is accepted where its output is not used."""


wide(executor.execute_sync("Go"), executor.execute_sync("Go"))


# --- crews -----------------------------------------------------------------------------------------

other = Agent("other", output=Refund)
text = Agent("text", then=clerk, handoffs=[other, handoff(other)], routes=[Route("[X]", to=clerk)])
group = Parallel("group", branches=[clerk, other], then=text)
assert_type(Crew("c", agents=[clerk, Agent("b", output=Refund, deps_type=Database)]), Crew[Database, Refund])
one = Crew("c", agents=[other, Agent("b", output=Refund)], groups=[group])
assert_type(CrewExecutor(one).execute_sync("Go").output, Refund)
mixed: Crew[Any, Refund | str] = Crew("c", agents=[text, other])
assert_type(CrewExecutor(mixed).execute_sync("Go").output, Refund | str)
assert_type(CrewExecutor.from_config("config.yaml", "support"), CrewExecutor[Any, Any])


# --- deps ------------------------------------------------------------------------------------------


def connect(info: RunInfo) -> Database:
    return Database()


async def connect_later(info: RunInfo) -> Database:
    return Database()


assert_type(CrewExecutor(clerk, deps=connect), CrewExecutor[Database, Refund])
assert_type(CrewExecutor(clerk, deps=connect_later), CrewExecutor[Database, Refund])
CrewExecutor(clerk, deps=lambda info: 5)  # type: ignore[arg-type, return-value]


def written_for(ctx: Context[Database]) -> str:
    return str(ctx.deps.find("17"))


assert_type(Agent("a", instructions=written_for, description="A clerk."), Agent[Database, str])


# --- tools -----------------------------------------------------------------------------------------


@tool
def find(ctx: Context[Database], order: str, limit: int = 1) -> list[int]:
    """Find an order."""
    return [ctx.deps.find(order)] * limit


@tool(effect="read", timeout=5)
async def describe(order: str) -> str:
    """Describe an order."""
    return order


class Service:
    @tool
    def lookup(self, order: str) -> int:
        """Look up an order."""
        return len(order)


async def tools(ctx: Context[Database], service: Service) -> None:
    assert_type(find(ctx, "17", limit=2), list[int])
    assert_type(await describe("17"), str)
    assert_type(service.lookup("17"), int)
    assert_type(find.name, str)
    Agent("a", tools=[find, describe, service.lookup, len, lambda order: order])

    find(ctx)  # type: ignore[call-arg]
    find(ctx, 17)  # type: ignore[arg-type]
    await describe(order=17)  # type: ignore[arg-type]
    service.lookup(17)  # type: ignore[arg-type]
