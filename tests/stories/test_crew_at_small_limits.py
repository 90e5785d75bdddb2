"""Bound, validity and durability of a whole crew at small limits."""

from __future__ import annotations

from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, Limits, Parallel, Quorum, Route, RunResult, call, handoff
from crew.interfaces import ModelReply
from crew.messages import SystemMessage, ToolCall, UserMessage
from crew.runs.events import HistoryPruned
from tests.support.clocks import run_in_virtual_time
from tests.support.messages import transcript_lines
from tests.support.providers import CheckedModels
from tests.support.runs import finish
from tests.support.stores import CheckedStore
from tests.support.tools import CountedTools

LIMITS = [3, 4, 5, 10, 50]


def crew_with_everything(models: CheckedModels, ran: CountedTools) -> Crew:
    """Tools, a handoff with a filter, a route to a group, branches that call, pause, hand off, call an agent and fan
    out again, a join, a `then`, a question to the user, and the end."""
    look, write = ran.tool("look", effect="read"), ran.tool("write", effect="read")
    pay = ran.tool("pay", effect="read", approval=True)
    clerk = Agent("clerk", model=models.scripted(call("look"), call("look"), "Clerk's word."), tools=[look])
    handoff_reply = ModelReply(text="I looked.", calls=(ToolCall(id="x" * 60, name="transfer_to_lead"),))
    triage = Agent(
        "triage",
        model=models.scripted([call("look"), call("write"), call("look")], call("look"), handoff_reply),
        tools=[look, write],
        handoffs=[handoff("lead", history="text_only")],
    )
    lead = Agent("lead", model=models.scripted("To the panel. [PANEL]"), routes=[Route("[PANEL]", to="panel")])
    payer = Agent("payer", model=models.scripted(call("pay"), call("look"), "Paid."), tools=[pay, look])
    asker = Agent(
        "asker",
        model=models.scripted(call("ask_clerk", request="Help."), "Asked."),
        tools=[clerk.as_tool()],
        then="sub",
    )
    solo = Agent(
        "solo",
        model=models.scripted([call("look"), call("transfer_to_payer")]),
        tools=[look],
        handoffs=["payer"],
    )
    leaf = Agent("leaf", model=models.scripted(call("look"), "Leaf."), tools=[look])
    editor = Agent("editor", model=models.scripted("Edited."), then="closer")
    closer = Agent(
        "closer",
        model=models.scripted("All right?", "Bye. [DONE]"),
        wait_for_signal=True,
        routes=[Route("[DONE]", to=None)],
    )
    groups = [
        Parallel("panel", branches=["payer", "asker", "solo"], then="editor"),
        Parallel("sub", branches=["leaf", "leaf"], on_error=Quorum(2), max_concurrency=1),
    ]
    return Crew("all", agents=[triage, lead, payer, asker, solo, leaf, editor, closer], groups=groups)


async def story(executor: CrewExecutor, **given: Any) -> RunResult:
    return await finish(executor, await executor.execute("Goal.", run_id="r", **given))


OUTPUT = "Bye."
SUB = "[Results of sub]\n## leaf\nLeaf.\n\n## leaf.2\nLeaf."
# The join moves the headings of a nested join one level down.
JOIN = f"[Results of panel]\n## payer\nPaid.\n\n## asker\n{SUB.replace('## ', '### ')}\n\n## solo\nPaid."


@pytest.mark.parametrize("limit", LIMITS)
def test_bound_holds_in_parent_and_branches(models: CheckedModels, store: CheckedStore, limit: int) -> None:
    """After every append and in every request; only the shown messages depend on the limit."""
    models.limit = store.limit = limit
    ran = CountedTools()
    result = run_in_virtual_time(
        story(CrewExecutor(crew_with_everything(models, ran), max_messages_per_request=limit, store=store))
    )

    assert result.output == OUTPUT
    assert f"user: {JOIN}" in transcript_lines(result.transcript)
    assert result.metrics.limit == limit
    assert result.metrics.messages <= limit
    pruned = [e for e in store.events if isinstance(e, HistoryPruned)]
    assert all(e.after <= limit < e.before for e in pruned)
    assert len(pruned) == result.metrics.prunings
    assert sum(e.before - e.after for e in pruned) == result.metrics.messages_pruned
    assert (limit >= 50) == (not pruned)
    assert all(request.messages[0].text in ("Goal.", "Help.") for request in models.requests)


@pytest.mark.parametrize("systems", [1, 3])
@pytest.mark.parametrize("spare", [0, 1, 2])
def test_system_messages_count_in_the_bound(
    models: CheckedModels, store: CheckedStore, systems: int, spare: int
) -> None:
    """They stay in every request of parent and branches; three more messages are enough for any step."""
    models.limit = store.limit = 3 + systems + spare
    history = [UserMessage("Earlier."), *(SystemMessage(f"Rule {n}.") for n in range(systems)), UserMessage("Before.")]
    executor = CrewExecutor(
        crew_with_everything(models, CountedTools()), max_messages_per_request=models.limit, store=store
    )
    assert run_in_virtual_time(story(executor, history=history)).output == OUTPUT

    for request in models.requests:
        if request.agent != "clerk" and request.messages[0].text != "Help.":
            assert sum(m.role == "system" for m in request.messages) == systems


@pytest.mark.parametrize("limit", [3, 10])
def test_run_resumes_to_the_same_end_from_every_commit(models: CheckedModels, store: CheckedStore, limit: int) -> None:
    """After a kill at any step, the whole tree resumes from its JSON, and nothing is missing."""
    models.limit = store.limit = limit
    ran = CountedTools()

    def executor(kept: CheckedStore) -> CrewExecutor:
        return CrewExecutor(crew_with_everything(models, ran), max_messages_per_request=limit, store=kept)

    whole = run_in_virtual_time(story(executor(store)))
    committed = [*store.snapshots]
    assert len(committed) > 40

    async def from_there(kept: CheckedStore) -> RunResult:
        carrying = executor(kept)
        return await finish(carrying, await carrying.resume("r"))

    for number in range(1, len(committed), 2 if limit == 3 else 9):
        kept = CheckedStore.after(committed[:number], limit)
        result = run_in_virtual_time(from_there(kept))
        assert result.output == OUTPUT
        assert transcript_lines(result.transcript) == transcript_lines(whole.transcript), (
            f"resumed after commit {number}"
        )
        assert result.usage.requests == whole.usage.requests
        assert not kept.violations


def test_one_json_state_holds_the_whole_tree(models: CheckedModels, store: CheckedStore) -> None:
    """A paused run is one value: its children, their children, and their pauses."""
    ran = CountedTools()
    executor = CrewExecutor(crew_with_everything(models, ran), store=store)
    paused = run_in_virtual_time(executor.execute("Goal.", run_id="r"))
    assert [pause.run_id for pause in paused.pauses] == ["r/payer", "r/solo"]
    state = store.newest
    assert state == paused.state
    assert set(state.children) == {"payer", "asker", "solo"}


def test_limit_of_rounds_returns_the_result_so_far(models: CheckedModels, store: CheckedStore) -> None:
    """With any limit the run returns, and its history is valid."""
    for rounds in (1, 2, 3, 5, 8, 13, 21):
        models.requests.clear()
        kept = CheckedStore()
        executor = CrewExecutor(crew_with_everything(models, CountedTools()), store=kept, limits=Limits(rounds=rounds))
        result = run_in_virtual_time(story(executor))
        assert len(models.requests) <= rounds
        assert result.usage.requests == len(models.requests)
        assert result.stop_reason in ("limit", "completed")
        again = CrewExecutor(Agent("next", model=models.scripted("Fine.")))
        assert run_in_virtual_time(again.execute("And now?", history=result.history)).output == "Fine."
        assert not kept.violations
