"""Answers to pauses anywhere in the tree: pending, dropped, and their effects."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, Limits, Parallel, Route, RunResult, call, handoff
from crew.errors import UnknownPause
from crew.interfaces import ModelRequest
from crew.runs.state import CheckInput, RunBranches, RunState, pending_pauses
from tests.support.clocks import run_in_virtual_time
from tests.support.messages import transcript_lines
from tests.support.providers import CheckedModels
from tests.support.runs import finish
from tests.support.stores import CheckedStore
from tests.support.tools import CountedTools


def payer(models: CheckedModels, ran: CountedTools, name: str, **given: Any) -> Agent:
    """An agent that needs approval."""
    return Agent(
        name, model=models.scripted(call("pay"), f"{name} paid."), tools=[ran.tool("pay", approval=True)], **given
    )


async def later(request: ModelRequest) -> None:
    await asyncio.sleep(5)


def test_several_pauses_are_answered_in_one_resume(models: CheckedModels, store: CheckedStore) -> None:
    """One resume takes any number of answers, of any kind, for any place in the tree."""
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
    assert result.output == "[Results of g]\n## b\nb paid.\n\n## asks\nOk\n\n## d\nd paid."
    assert ran.times == {"pay": 1}


def test_unknown_pause_id_error_lists_all_pending_pauses(models: CheckedModels, store: CheckedStore) -> None:
    """The state does not change."""
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


def test_resume_without_answers_stays_paused(models: CheckedModels, store: CheckedStore) -> None:
    """No request is sent, no pause is lost."""
    ran = CountedTools()
    agents = [payer(models, ran, "b"), Agent("c", model=models.scripted("C."))]
    executor = CrewExecutor(Crew("c", agents=agents, groups=[Parallel("g", branches=agents)], entry="g"), store=store)
    paused = run_in_virtual_time(executor.execute("Goal.", run_id="r"))
    again = run_in_virtual_time(executor.resume("r"))
    assert again.pauses == paused.pauses
    assert run_in_virtual_time(finish(executor, again)).output == "[Results of g]\n## b\nb paid.\n\n## c\nC."
    assert max(Counter(models.turns).values()) == 1


@pytest.mark.parametrize("answer", [False, True])
def test_branch_that_ends_with_its_answer_joins_at_once(
    models: CheckedModels, store: CheckedStore, answer: bool
) -> None:
    """Its rounds are used up: declined, it ends in the step that answers it, and the group continues."""
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


def test_called_agent_that_ends_with_its_answer_returns(models: CheckedModels, store: CheckedStore) -> None:
    """The same for an agent that was called as a tool: its caller gets the next request."""
    ran = CountedTools()
    clerk = payer(models, ran, "clerk")
    calls = [call("ask_clerk", request="Help.")] * 2
    boss = Agent("boss", model=models.scripted(calls, "So be it."), tools=[clerk.as_tool()])
    executor = CrewExecutor(boss, store=store, limits=Limits(rounds=4))
    paused = run_in_virtual_time(executor.execute("Goal.", run_id="r"))
    result = run_in_virtual_time(executor.resume("r", {pause.id: False for pause in paused.pauses}))
    assert (result.output, len(result.branches)) == ("So be it.", 2)


def test_pause_of_a_stopped_branch_is_dropped(models: CheckedModels, store: CheckedStore) -> None:
    """The first success ends the other branches; a later answer is refused."""
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
        run_in_virtual_time(executor.resume("r", {"r/b:2.0": True}))

    assert run_in_virtual_time(finish(executor, paused)).output == "Bye."
    assert not ran.times


def test_pause_inside_a_failed_branch_is_dropped(models: CheckedModels, store: CheckedStore) -> None:
    """The pauses of other branches stay."""
    ran = CountedTools()
    inner = [payer(models, ran, "deep"), Agent("bad", model=models.scripted(ValueError("boom"), before=later))]
    outer = [Agent("fans", model=models.scripted("Go."), then="inner"), payer(models, ran, "other")]
    groups = [Parallel("outer", branches=outer), Parallel("inner", branches=inner, on_error="fail_fast")]
    executor = CrewExecutor(Crew("c", agents=[*outer, *inner], groups=groups, entry="outer"), store=store)
    paused = run_in_virtual_time(executor.execute("Goal.", run_id="r"))
    assert [pause.agent for pause in paused.pauses] == ["other"]

    with pytest.raises(UnknownPause):
        run_in_virtual_time(executor.resume("r", {"r/fans/deep:3.0": True}))

    result = run_in_virtual_time(finish(executor, paused))
    assert result.output.startswith("[Results of outer]\n## fans\n(failed) BranchesFailed")
    assert ran.times == {"pay": 1}


@pytest.mark.parametrize("what", ["full", "text_only", "last", "none"])
def test_handoff_filter_to_a_group_applies_to_each_branch(
    models: CheckedModels, store: CheckedStore, what: Any
) -> None:
    """The same messages cross to all branches, also after a resume."""
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


def test_conversation_continues_after_a_join(models: CheckedModels) -> None:
    """The result of a run with branches is the history of the next run, which can fan out again."""
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


class CountedKeys(tuple[str, ...]):
    """Keys of branches that count how often they are read."""

    reads = 0

    def __iter__(self) -> Iterator[str]:
        CountedKeys.reads += 1
        return super().__iter__()


def test_pauses_of_a_fan_out_are_found_in_one_pass_over_its_branches() -> None:
    """The time grows with the number of branches, not with its square."""
    given: dict[str, Any] = {"conversation_id": "r", "crew": "c", "agent": "a", "limits": Limits()}
    keys = CountedKeys(f"b{n}" for n in range(50))
    CountedKeys.reads = 0
    now = RunBranches(group="g", branch_keys=keys, items=tuple(f"Item {n}." for n in range(50)))
    held = CheckInput(guardrails=("check",), held="May it pass?")
    children = {f"b{n}": RunState(run_id=f"r/b{n}", next=held, **given) for n in range(50)}
    pauses = pending_pauses(RunState(run_id="r", next=now, children=children, **given))
    assert [pause.checked for pause in pauses] == [f"Item {n}." for n in range(50)]
    assert CountedKeys.reads == 1
