"""Answers to pauses anywhere in the tree: which are pending, which are gone, and what an answer sets off."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, Limits, Parallel, Route, RunResult, call, handoff
from crew.errors import UnknownPause
from crew.interfaces import ModelRequest
from tests.support.clocks import run_in_virtual_time
from tests.support.messages import transcript_lines
from tests.support.providers import CheckedModels
from tests.support.runs import finish
from tests.support.stores import CheckedStore
from tests.support.tools import CountedTools


def payer(models: CheckedModels, ran: CountedTools, name: str, **given: Any) -> Agent:
    """An agent that needs a person's word."""
    return Agent(
        name, model=models.scripted(call("pay"), f"{name} paid."), tools=[ran.tool("pay", approval=True)], **given
    )


async def later(request: ModelRequest) -> None:
    await asyncio.sleep(5)


def test_several_pauses_are_answered_at_once(models: CheckedModels, store: CheckedStore) -> None:
    """One resume may carry any number of answers, of any kind, for any place in the tree."""
    ran = CountedTools()
    asks = Agent(
        "asks", model=models.scripted("Which?", "Ok [GO]"), wait_for_signal=True, routes=[Route("[GO]", to=None)]
    )
    agents = [payer(models, ran, "b"), asks, payer(models, ran, "d")]
    executor = CrewExecutor(Crew("c", agents=agents, groups=[Parallel("g", branches=agents)], entry="g"), store=store)
    paused = run_in_virtual_time(executor.execute("Goal.", run_id="r"))
    assert [pause.reason for pause in paused.pauses] == ["approval", "input", "approval"]
    answers = dict(zip([pause.id for pause in paused.pauses], [True, "The second.", False], strict=True))
    result = run_in_virtual_time(executor.resume("r", answers))
    assert result.output == "[Results of g]\n## b\nb paid.\n\n## asks\nOk [GO]\n\n## d\nd paid."
    assert ran.times == {"pay": 1}


def test_an_answer_to_nothing_is_refused_with_what_is_pending_in_the_whole_tree(
    models: CheckedModels, store: CheckedStore
) -> None:
    """Nothing is changed by it."""
    ran = CountedTools()
    agents = [payer(models, ran, "b"), payer(models, ran, "c")]
    executor = CrewExecutor(Crew("c", agents=agents, groups=[Parallel("g", branches=agents)], entry="g"), store=store)
    paused = run_in_virtual_time(executor.execute("Goal.", run_id="r"))
    commits = len(store.snapshots)

    with pytest.raises(UnknownPause) as caught:
        run_in_virtual_time(executor.resume("r", {paused.pauses[0].id: True, "r/c": True}))

    assert caught.value.pending == tuple(pause.id for pause in paused.pauses)
    assert len(store.snapshots) == commits
    assert run_in_virtual_time(finish(executor, paused)).stop_reason == "completed"


def test_a_resume_without_answers_waits_for_the_same(models: CheckedModels, store: CheckedStore) -> None:
    """Nothing is asked again, nothing is lost."""
    ran = CountedTools()
    agents = [payer(models, ran, "b"), Agent("c", model=models.scripted("C."))]
    executor = CrewExecutor(Crew("c", agents=agents, groups=[Parallel("g", branches=agents)], entry="g"), store=store)
    paused = run_in_virtual_time(executor.execute("Goal.", run_id="r"))
    again = run_in_virtual_time(executor.resume("r"))
    assert again.pauses == paused.pauses
    assert run_in_virtual_time(finish(executor, again)).output == "[Results of g]\n## b\nb paid.\n\n## c\nC."
    assert max(Counter(models.turns).values()) == 1


@pytest.mark.parametrize("answer", [False, True])
def test_a_branch_that_ends_with_the_answer_joins_at_once(
    models: CheckedModels, store: CheckedStore, answer: bool
) -> None:
    """Its rounds are used up: declined, it ends in the same step in which it is answered, and the group goes on."""
    ran = CountedTools()
    agents = [
        payer(models, ran, "b"),
        Agent("c", model=models.scripted("C.")),
        Agent("end", model=models.scripted("End.")),
    ]
    group = Parallel("g", branches=["b", "c"], then="end")
    crew = Crew("c", agents=agents, groups=[group], entry="g")
    executor = CrewExecutor(crew, store=store, limits=Limits(rounds=3))
    paused = run_in_virtual_time(executor.execute("Goal.", run_id="r"))
    commits = len(store.snapshots)
    result = run_in_virtual_time(executor.resume("r", {paused.pauses[0].id: answer}))
    assert result.output == "End."
    assert "## b\n(stopped at its limit)" in models.requests_of("end")[0].messages[-1].text
    assert ran.times == ({"pay": 1} if answer else {})
    assert len(store.snapshots) - commits == (4 if answer else 2)


def test_a_called_agent_that_ends_with_the_answer_returns_at_once(models: CheckedModels, store: CheckedStore) -> None:
    """The same for an agent called as a tool: its caller is asked next."""
    ran = CountedTools()
    clerk = payer(models, ran, "clerk")
    calls = [call("ask_clerk", request="Help.")] * 2
    boss = Agent("boss", model=models.scripted(calls, "So be it."), tools=[clerk.as_tool()])
    executor = CrewExecutor(boss, store=store, limits=Limits(rounds=4))
    paused = run_in_virtual_time(executor.execute("Goal.", run_id="r"))
    result = run_in_virtual_time(executor.resume("r", {pause.id: False for pause in paused.pauses}))
    assert (result.output, len(result.branches)) == ("So be it.", 2)


def test_a_pause_is_gone_with_the_branch_that_was_not_needed(models: CheckedModels, store: CheckedStore) -> None:
    """The first success ends the others; an answer that comes too late is refused."""
    ran = CountedTools()
    ask = Agent("ask", model=models.scripted("Which?"), wait_for_signal=True)
    slow = Agent("slow", model=models.scripted("Slow.", before=later))
    end = Agent(
        "end", model=models.scripted("Sure?", "Bye. [GO]"), wait_for_signal=True, routes=[Route("[GO]", to=None)]
    )
    group = Parallel("g", branches=[payer(models, ran, "b"), ask, slow], on_error="first_success", then=end)
    crew = Crew("c", agents=[*group.branches, end], groups=[group], entry="g")
    executor = CrewExecutor(crew, store=store)
    paused = run_in_virtual_time(executor.execute("Goal.", run_id="r"))
    assert [pause.agent for pause in paused.pauses] == ["end"]

    with pytest.raises(UnknownPause):
        run_in_virtual_time(executor.resume("r", {"r/b:call_0_0": True}))

    assert run_in_virtual_time(finish(executor, paused)).output == "Bye. [GO]"
    assert not ran.times


def test_a_pause_within_a_branch_that_failed_is_gone(models: CheckedModels, store: CheckedStore) -> None:
    """A branch that failed takes along what waited within it; other branches' pauses are untouched."""
    ran = CountedTools()
    inner = [payer(models, ran, "deep"), Agent("bad", model=models.scripted(ValueError("boom"), before=later))]
    outer = [Agent("fans", model=models.scripted("Go."), then="inner"), payer(models, ran, "other")]
    groups = [Parallel("outer", branches=outer), Parallel("inner", branches=inner, on_error="fail_fast")]
    executor = CrewExecutor(Crew("c", agents=[*outer, *inner], groups=groups, entry="outer"), store=store)
    paused = run_in_virtual_time(executor.execute("Goal.", run_id="r"))
    assert [pause.agent for pause in paused.pauses] == ["other"]

    with pytest.raises(UnknownPause):
        run_in_virtual_time(executor.resume("r", {"r/fans/deep:call_0_0": True}))

    result = run_in_virtual_time(finish(executor, paused))
    assert result.output.startswith("[Results of outer]\n## fans\n(failed) BranchesFailed")
    assert ran.times == {"pay": 1}


@pytest.mark.parametrize("what", ["full", "text_only", "last", "none"])
def test_a_filter_on_the_way_to_a_group_holds_in_each_branch(
    models: CheckedModels, store: CheckedStore, what: Any
) -> None:
    """What crosses is the same for all branches, and holds when one of them was decoded and resumed."""
    ran = CountedTools()
    lead = Agent(
        "lead",
        model=models.scripted(call("look"), call("transfer_to_g")),
        tools=[ran.tool("look")],
        handoffs=[handoff("g", history=what)],
    )
    agents = [payer(models, ran, "b"), payer(models, ran, "c")]
    executor = CrewExecutor(Crew("c", agents=[lead, *agents], groups=[Parallel("g", branches=agents)]), store=store)
    result = run_in_virtual_time(finish(executor, run_in_virtual_time(executor.execute("Goal."))))
    assert result.stop_reason == "completed"
    crossed = 2 if what in ("full", "last") else 0

    for name in "bc":
        first, second = (request.messages for request in models.requests_of(name))
        assert len(first) == 1 + crossed + 2 + 1
        assert second[: len(first)] == first
        assert transcript_lines(first)[-3].endswith("transfer_to_g({})")


def test_a_conversation_goes_on_after_a_join(models: CheckedModels) -> None:
    """The result of a run with branches is the history of the next, which may fan out again."""
    lead = Agent("lead", model=models.scripted(lambda request: "Go."), then="g")
    b = Agent("b", model=models.scripted(lambda request: f"b sees {len(request.messages)}."))
    crew = Crew("c", agents=[lead, b], groups=[Parallel("g", branches=[b, b])])
    executor = CrewExecutor(crew)

    async def story() -> tuple[RunResult, RunResult]:
        first = await executor.execute("One.")
        return first, await executor.execute("Two.", history=first)

    first, second = run_in_virtual_time(story())
    assert first.output == "[Results of g]\n## b\nb sees 3.\n\n## b.2\nb sees 3."
    assert second.output == "[Results of g]\n## b\nb sees 6.\n\n## b.2\nb sees 6."
    assert len(second.transcript) == 6
    assert all(len(branch.transcript) == 2 for branch in second.branches)
