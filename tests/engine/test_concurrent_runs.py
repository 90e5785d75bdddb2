"""One executor serves many concurrent runs, which share nothing."""

from __future__ import annotations

import asyncio
import re

import pytest

from crew import Context, ScriptedProvider, call, tool
from crew.interfaces import ModelRequest
from crew.messages import ToolCall, UserMessage
from tests.support.runs import executor_for


@tool
async def double(n: int, context: Context[int]) -> str:
    """Double a number."""
    await asyncio.sleep(0)
    assert context.deps == n
    return f"{n} doubled is {2 * n}"


def ask(request: ModelRequest) -> ToolCall:
    goal = request.messages[0]
    assert isinstance(goal, UserMessage)
    found = re.search(r"\d+", goal.text)
    assert found
    return call("double", n=int(found[0]))


def answer(request: ModelRequest) -> str:
    return request.messages[-1].results[0].text  # type: ignore[union-attr]


async def run_many(many: int) -> None:
    executor = executor_for(ScriptedProvider(ask, answer), double)
    before = asyncio.all_tasks()

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(executor.execute(f"Double {n}.", deps=n, run_id=f"r{n}")) for n in range(many)]

    for n, task in enumerate(running):
        result = task.result()
        assert result.output == f"{n} doubled is {2 * n}"
        assert result.run_id == f"r{n}"
        assert len(result.transcript) == 4
        assert all(message.id.startswith(f"r{n}:") for message in result.transcript)
        assert result.usage.requests == 2

    assert asyncio.all_tasks() == before


async def test_thousand_concurrent_runs() -> None:
    """No error, no mixed results, no task left."""
    await run_many(1_000)


@pytest.mark.soak
async def test_twenty_thousand_concurrent_runs() -> None:
    """The same with twenty thousand runs."""
    await run_many(20_000)
