"""A run that is resumed with a changed crew: the error names what is missing, and the stored run is unchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from crew import (
    Agent,
    Crew,
    CrewExecutor,
    Parallel,
    Quorum,
    Route,
    ScriptedProvider,
    call,
    handoff,
    tool,
)
from crew.agents import Handoff
from crew.errors import CrewChanged
from crew.interfaces import ModelSettings
from crew.runs.events import Warned
from crew.transitions.fingerprint import crew_changes
from tests.support.runs import collect
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


# ------------------------------------------------------------------------------------------ the fingerprint


class Invoice(BaseModel):
    amount: int


def shop(*, group: dict[str, Any] | None = None, more: Any = (), **changes: Any) -> Crew:
    """A crew with an agent that pays, changed as the test says, and a group."""
    clerk = replace(
        billing(), **({"handoffs": [Parallel("team", **{"branches": ["aide"], **(group or {})})]} | changes)
    )
    aide = Agent("aide", model=ScriptedProvider("Done."))
    groups: Any = [node.to if isinstance(node, Handoff) else node for node in clerk.handoffs]
    return Crew("shop", agents=[clerk, aide, *more], groups=groups)


def keep(messages: Any) -> Any:
    return messages


@tool(name="pay", approval=True)
async def pay_in_cents(amount: int, cents: int = 0) -> str:
    """Pay an amount."""
    return f"paid {amount}.{cents}"


CHANGES: dict[str, dict[str, Any]] = {
    "billing (instructions)": {"instructions": "Pay quickly."},
    "billing (model)": {"model": ScriptedProvider("Paid.", model="other")},
    "billing (tools)": {"tools": [pay_in_cents]},
    "billing (handoffs)": {"handoffs": [handoff(Parallel("team", branches=["aide"]), history=keep)]},
    "billing (routes)": {"routes": [Route("[END]", to=None)]},
    "billing (then)": {"then": "aide"},
    "billing (output)": {"output": Invoice},
    "billing (settings)": {"settings": ModelSettings(temperature=0.5)},
    "team (on_error)": {"group": {"on_error": Quorum(1)}},
    "team (settings)": {"group": {"timeout": 7}},
    "team (branches)": {"group": {"branches": ["aide", "aide"]}},
    "new (added)": {"more": [Agent("new", model=ScriptedProvider("?"), then="aide")], "then": "new"},
}


@pytest.mark.parametrize("change", CHANGES)
async def test_resume_warns_once_of_what_changed_in_the_crew(change: str) -> None:
    """One warning names the agent or group and its part; the next resume compares with the crew of this one."""
    store = await paused_in(shop())
    changed = shop(**CHANGES[change])
    texts = []

    for _ in range(2):
        events, _ = await collect(CrewExecutor(changed, store=store).resume_stream("r"))
        texts.append([event.text for event in events if isinstance(event, Warned) and "crew" in event.text])

    assert len(texts[0]) == 1
    assert change in texts[0][0]
    assert texts[1] == []


@pytest.mark.parametrize("change", CHANGES)
async def test_strict_resume_refuses_a_changed_crew(change: str) -> None:
    """`CrewChanged` names the changes, nothing is stored, and the run can be resumed with the crew that started it."""
    store = await paused_in(shop())
    before = await store.load("r")

    with pytest.raises(CrewChanged) as caught:
        await CrewExecutor(shop(**CHANGES[change]), store=store).resume("r", {"r:1.0": True}, strict=True)

    assert change in caught.value.changed
    assert change in str(caught.value)
    assert caught.value.missing == ()
    assert await store.load("r") == before
    result = await CrewExecutor(shop(), store=store).resume("r", {"r:1.0": True}, strict=True)
    assert result.output == "Paid."


async def test_same_crew_built_again_has_the_same_fingerprint() -> None:
    """Whatever the order of tools and handoffs, and however often functions and models are made anew."""
    other = pay_tool("other")
    one, two = (CrewExecutor(shop(tools=tools)).plan for tools in ([pay_tool(), other], [other, pay_tool()]))
    assert one.fingerprint == two.fingerprint
    assert [*crew_changes(one.fingerprint, two.fingerprint)] == []
    assert all(len(hashes) <= 64 for hashes in one.fingerprint.values())


async def test_agent_that_is_gone_and_not_needed_is_a_change() -> None:
    """A missing part that the run needs is an error; one that it does not need is named in the warning."""
    store = await paused_in(shop(more=[Agent("new", model=ScriptedProvider("?"), then="aide")], then="new"))
    events, _ = await collect(CrewExecutor(shop(), store=store).resume_stream("r"))
    texts = [event.text for event in events if isinstance(event, Warned)]
    assert any("billing (then); new (removed)" in text for text in texts)
