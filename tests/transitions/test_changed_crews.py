"""A run that is resumed with a changed crew: the error names what is missing, and the stored run is unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, Parallel, ScriptedProvider, call, tool
from crew.errors import CrewChanged
from tests.support.stores import JsonStore


def pay_tool(name: str = "pay") -> Any:
    @tool(name=name, approval=True)
    async def pay(amount: int) -> str:
        """Pay an amount."""
        return f"paid {amount}"

    return pay


def billing(name: str = "billing", *, tool_name: str = "pay") -> Agent:
    return Agent(name, model=ScriptedProvider(call("pay", amount=5), "Paid."), tools=[pay_tool(tool_name)])


async def paused_in(crew: Crew | Agent) -> JsonStore:
    store = JsonStore()
    result = await CrewExecutor(crew, store=store).execute("Pay 5.", run_id="r")
    assert result.stop_reason == "paused"
    return store


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        (Crew("shop", agents=[billing("invoices")]), ("the agent 'billing'",)),
        (Crew("shop", agents=[billing(tool_name="transfer")]), ("the tool 'pay' of 'billing'",)),
        (Crew("store", agents=[billing()]), ("the crew 'shop'",)),
    ],
    ids=["agent", "tool", "crew"],
)
async def test_resume_names_what_the_crew_lacks(changed: Crew, missing: tuple[str, ...]) -> None:
    """`CrewChanged` is raised before anything is stored; the crew that started the run can still resume it."""
    original = Crew("shop", agents=[billing()])
    store = await paused_in(original)
    before = await store.load("r")
    answer = {"r:1.0": True}

    with pytest.raises(CrewChanged) as caught:
        await CrewExecutor(changed, store=store).resume("r", answer)

    assert caught.value.missing == missing
    assert all(name in str(caught.value) for name in missing)
    assert await store.load("r") == before
    assert (await CrewExecutor(original, store=store).resume("r", answer)).output == "Paid."


async def test_resume_names_the_missing_group_of_a_fan_out() -> None:
    """A group that was renamed while a branch of it waited for an answer."""
    group = Parallel("panel", branches=["billing"])
    entry = Agent("entry", model=ScriptedProvider(call("transfer_to_panel")), handoffs=[group])
    store = await paused_in(Crew("shop", agents=[entry, billing()], groups=[group]))
    other = Parallel("council", branches=["billing"])
    renamed = Agent("entry", model=ScriptedProvider("?"), handoffs=[other])

    with pytest.raises(CrewChanged, match="the group 'panel'"):
        await CrewExecutor(Crew("shop", agents=[renamed, billing()], groups=[other]), store=store).resume("r")
