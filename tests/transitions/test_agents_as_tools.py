"""An agent that is called as a tool runs as a child run; its answer is the result of the call."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, Limits, Parallel, Route, RunResult, call, handoff
from crew.interfaces import ModelRequest
from crew.messages import ToolCall, ToolMessage
from crew.runs.events import BranchFinished, BranchStarted
from tests.support.clocks import run_in_virtual_time
from tests.support.messages import transcript_lines
from tests.support.providers import CheckedModels, hang
from tests.support.stores import CheckedStore
from tests.support.tools import CountedTools


def ask(name: str, request: str = "Help.") -> ToolCall:
    return call(f"ask_{name}", request=request)


def newest_results(models: CheckedModels, agent: str) -> tuple[Any, ...]:
    """The results in the last request of this agent."""
    message = models.requests_of(agent)[-1].messages[-1]
    assert isinstance(message, ToolMessage)
    return message.results


def test_called_agent_answers_and_the_caller_continues(models: CheckedModels, store: CheckedStore) -> None:
    """The called agent sees the request as its goal and nothing of the caller's history."""
    ran = CountedTools()
    clerk = Agent("clerk", model=models.scripted(call("look"), "It is blue."), tools=[ran.tool("look")])
    boss = Agent("boss", model=models.scripted(ask("clerk", "Which colour?"), "Blue, I hear."), tools=[clerk.as_tool()])
    result = run_in_virtual_time(CrewExecutor(boss, store=store).execute("What is it?", run_id="r"))

    assert result.output == "Blue, I hear."
    assert transcript_lines(models.requests_of("clerk")[0].messages) == ["user: Which colour?"]
    assert [(r.name, r.text, r.outcome) for r in newest_results(models, "boss")] == [("ask_clerk", "It is blue.", "ok")]
    assert transcript_lines(result.transcript)[-2:] == ["tool: It is blue.", "assistant: Blue, I hear."]
    assert [len(branch.transcript) for branch in result.branches] == [4]
    assert result.usage.requests == 4
    assert {name: counts.calls for name, counts in result.metrics.by_tool.items()} == {"look": 1, "ask_clerk": 1}
    assert len([e for e in store.events if isinstance(e, BranchStarted | BranchFinished)]) == 2


def test_several_agents_and_tools_are_called_concurrently(models: CheckedModels, store: CheckedStore) -> None:
    """Their results are in call order."""
    order: list[str] = []

    def after(seconds: float, name: str) -> Any:
        async def wait(request: ModelRequest) -> None:
            await asyncio.sleep(seconds)
            order.append(name)

        return wait

    slow = Agent("slow", model=models.scripted("Slow.", before=after(9, "slow")))
    quick = Agent("quick", model=models.scripted("Quick.", before=after(1, "quick")))
    calls = [ask("slow"), call("look"), ask("quick")]
    boss = Agent(
        "boss",
        model=models.scripted(calls, "All heard."),
        tools=[slow.as_tool(), quick.as_tool(), CountedTools().tool("look")],
    )
    assert run_in_virtual_time(CrewExecutor(boss, store=store).execute("Goal.")).output == "All heard."
    assert order == ["quick", "slow"]
    assert [r.text for r in newest_results(models, "boss")] == ["Slow.", "look done", "Quick."]


def test_one_agent_is_called_twice_in_one_reply(models: CheckedModels, store: CheckedStore) -> None:
    """Each call is a separate child run."""
    clerk = Agent("clerk", model=models.scripted(lambda r: f"On {r.messages[0].text}"))
    boss = Agent(
        "boss", model=models.scripted([ask("clerk", "one"), ask("clerk", "two")], "Ok."), tools=[clerk.as_tool()]
    )
    run_in_virtual_time(CrewExecutor(boss, store=store).execute("Goal."))
    assert [r.text for r in newest_results(models, "boss")] == ["On one", "On two"]


def test_called_agents_can_call_hand_off_and_fan_out(models: CheckedModels, store: CheckedStore) -> None:
    """Only the final answer of the called agent returns to the caller."""
    inner = Agent("inner", model=models.scripted("Innermost."))
    clerk = Agent(
        "clerk", model=models.scripted(ask("inner"), call("transfer_to_g")), tools=[inner.as_tool()], handoffs=["g"]
    )
    boss = Agent("boss", model=models.scripted(ask("clerk"), "Ok."), tools=[clerk.as_tool()], handoffs=["x"])
    x, y = (Agent(n, model=models.scripted(f"{n}.")) for n in "xy")
    crew = Crew("c", agents=[boss, x, y], groups=[Parallel("g", branches=["x", "y"])])
    result = run_in_virtual_time(CrewExecutor(crew, store=store).execute("Goal.", run_id="r"))

    assert newest_results(models, "boss")[0].text == "[Results of g]\n## x\nx.\n\n## y\ny."
    assert result.agent == "boss"
    called = result.branches[0]
    assert [branch.agent for branch in called.branches] == ["inner", "x", "y"]


@pytest.mark.parametrize("approve", [True, False, "Too expensive."])
def test_pause_inside_a_called_agent(models: CheckedModels, store: CheckedStore, approve: Any) -> None:
    """The caller waits; other calls of the same reply run to their end, once."""
    ran = CountedTools()
    clerk = Agent("clerk", model=models.scripted(call("pay"), "Settled."), tools=[ran.tool("pay", approval=True)])
    boss = Agent(
        "boss",
        model=models.scripted([ask("clerk"), call("look")], "Ok."),
        tools=[clerk.as_tool(), ran.tool("look")],
    )
    executor = CrewExecutor(boss, store=store)
    paused = run_in_virtual_time(executor.execute("Goal.", run_id="r"))
    assert [(p.agent, p.reason, p.run_id) for p in paused.pauses] == [("clerk", "approval", "r/1.0")]
    assert ran.times == {"look": 1}
    assert transcript_lines(paused.history) == ["user: Goal."]

    result = run_in_virtual_time(executor.resume("r", {paused.pauses[0].id: approve}))
    assert result.output == "Ok."
    assert ran.times == ({"look": 1, "pay": 1} if approve is True else {"look": 1})
    assert max(Counter(models.turns).values()) == 1
    assert ("Too expensive." in transcript_lines(models.requests_of("clerk")[1].messages)[-1]) == (
        approve == "Too expensive."
    )


def test_called_agent_can_ask_the_user(models: CheckedModels, store: CheckedStore) -> None:
    """`wait_for_signal` works in a child run; the answer never replaces its goal."""
    clerk = Agent(
        "clerk",
        model=models.scripted("Which one?", "That one. [OK]"),
        wait_for_signal=True,
        routes=[Route("[OK]", to=None)],
    )
    boss = Agent("boss", model=models.scripted(ask("clerk"), "Fine."), tools=[clerk.as_tool()])
    executor = CrewExecutor(boss, store=store)
    paused = run_in_virtual_time(executor.execute("Goal."))
    assert paused.pauses[0].text == "Which one?"
    assert run_in_virtual_time(executor.resume(paused.run_id, {paused.pauses[0].id: "The red one."})).output == "Fine."
    assert transcript_lines(models.requests_of("clerk")[1].messages)[0] == "user: Help."


def test_failing_called_agent_becomes_an_error_result(models: CheckedModels, store: CheckedStore) -> None:
    """The caller's model gets the error and continues."""
    clerk = Agent("clerk", model=models.scripted(ValueError("boom")))
    boss = Agent("boss", model=models.scripted(ask("clerk"), "Without him, then."), tools=[clerk.as_tool()])
    result = run_in_virtual_time(CrewExecutor(boss, store=store).execute("Goal."))
    assert result.output == "Without him, then."
    assert newest_results(models, "boss")[0].outcome == "error"
    assert "boom" in newest_results(models, "boss")[0].text
    assert result.metrics.by_tool["ask_clerk"].errors == 1


@pytest.mark.parametrize("arguments", ["", "{", "[]", "null", "{}", '{"request": 3}', '{"request": " "}'])
def test_call_without_a_request_becomes_an_error_result(
    models: CheckedModels, store: CheckedStore, arguments: str
) -> None:
    """The called agent does not run."""
    clerk = Agent("clerk", model=models.scripted("Never."))
    bad_call = ToolCall(id="c", name="ask_clerk", arguments=arguments)
    boss = Agent("boss", model=models.scripted(bad_call, "Sorry."), tools=[clerk.as_tool()])
    assert run_in_virtual_time(CrewExecutor(boss, store=store).execute("Goal.")).output == "Sorry."
    assert not models.requests_of("clerk")
    assert "The arguments are not valid" in newest_results(models, "boss")[0].text


def test_called_agents_share_the_remaining_limits(models: CheckedModels, store: CheckedStore) -> None:
    """A called agent that never ends stops at its share, and its caller still has rounds left to answer."""
    clerk = Agent("clerk", model=models.scripted(lambda r: call("look")), tools=[CountedTools().tool("look")])
    boss = Agent("boss", model=models.scripted([ask("clerk"), ask("clerk")], "Enough."), tools=[clerk.as_tool()])
    result = run_in_virtual_time(CrewExecutor(boss, store=store, limits=Limits(rounds=12)).execute("Goal."))
    assert (result.output, len(models.requests)) == ("Enough.", 12)
    assert all("stopped at its limit" in r.text for r in newest_results(models, "boss"))


def test_long_answer_of_a_called_agent_is_truncated(models: CheckedModels, store: CheckedStore) -> None:
    """The limit for tool results applies."""
    clerk = Agent("clerk", model=models.scripted("x" * 1_000_000))
    boss = Agent("boss", model=models.scripted(ask("clerk"), "Much."), tools=[clerk.as_tool()])
    run_in_virtual_time(CrewExecutor(boss, store=store).execute("Goal."))
    assert len(newest_results(models, "boss")[0].text) <= 20_000


def test_cancel_ends_called_agents(models: CheckedModels, store: CheckedStore) -> None:
    """The call gets a result, so that the history stays valid, and the child run ends."""

    async def story() -> RunResult:
        clerk = Agent("clerk", model=models.scripted("C.", before=hang))
        boss = Agent("boss", model=models.scripted(ask("clerk"), "B."), tools=[clerk.as_tool()])
        executor = CrewExecutor(boss, store=store)
        running = asyncio.ensure_future(executor.execute("Goal.", run_id="r"))

        while not models.requests_of("clerk"):
            await asyncio.sleep(1)

        await executor.cancel("r")
        return await running

    result = run_in_virtual_time(story())
    assert result.stop_reason == "cancelled"
    assert transcript_lines(result.history)[-1] == "tool: [Stopped: the run was cancelled.]"
    assert [e.outcome for e in store.events if isinstance(e, BranchFinished)] == ["cancelled"]


def test_reused_call_ids_name_separate_child_runs(models: CheckedModels, store: CheckedStore) -> None:
    """A model may reuse a call id once its first use was pruned from view."""
    models.limit = store.limit = 3
    clerk = Agent("clerk", model=models.scripted(lambda r: "Done."))
    same = ToolCall(id="same", name="ask_clerk", arguments='{"request": "Help."}')
    lines = [same if n % 2 == 0 else call("look") for n in range(8)]
    boss = Agent("boss", model=models.scripted(*lines, "End."), tools=[clerk.as_tool(), CountedTools().tool("look")])
    result = run_in_virtual_time(CrewExecutor(boss, store=store, max_messages_per_request=3).execute("Goal."))
    ids = [branch.run_id for branch in result.branches]
    assert len(ids) == 4
    assert len(set(ids)) == 4


def test_handoff_waits_for_a_called_agent_of_the_same_reply(models: CheckedModels, store: CheckedStore) -> None:
    """Control passes once every call of the reply has a result."""
    clerk = Agent("clerk", model=models.scripted("Noted."))
    boss = Agent(
        "boss",
        model=models.scripted([call("transfer_to_next"), ask("clerk")]),
        tools=[clerk.as_tool()],
        handoffs=[handoff("next", history="none")],
    )
    crew = Crew("c", agents=[boss, Agent("next", model=models.scripted("Mine."))])
    assert run_in_virtual_time(CrewExecutor(crew, store=store).execute("Goal.")).output == "Mine."
    assert [r.text for r in newest_results(models, "next")] == ["Control passes to next.", "Noted."]


def test_pauses_of_called_agents_in_branches_in_any_order(models: CheckedModels, store: CheckedStore) -> None:
    """Pause ids name their place in the tree."""
    ran = CountedTools()
    clerk = Agent("clerk", model=models.scripted(call("pay"), "Paid."), tools=[ran.tool("pay", approval=True)])
    boss = Agent("boss", model=models.scripted([ask("clerk"), ask("clerk")], "Ok."), tools=[clerk.as_tool()])
    crew = Crew("c", agents=[boss], groups=[Parallel("g", branches=[boss, boss])], entry="g")
    executor = CrewExecutor(crew, store=store)
    paused = run_in_virtual_time(executor.execute("Goal.", run_id="r"))
    assert len({pause.id for pause in paused.pauses}) == 4

    for number, pause in enumerate(reversed(paused.pauses), 1):
        result = run_in_virtual_time(executor.resume("r", {pause.id: True}))
        assert ran.times["pay"] == number

    assert result.output == "[Results of g]\n## boss\nOk.\n\n## boss.2\nOk."
    assert max(Counter(models.turns).values()) == 1
