"""Handoffs: a tool to the model, a transition to the run; what crosses is fixed when it happens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from pydantic import BaseModel

from crew import Agent, Crew, CrewExecutor, Limits, call, handoff
from crew.interfaces import ModelReply
from crew.messages import Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from crew.runs.events import AgentStarted, HandedOff
from tests.support.messages import transcript_lines
from tests.support.providers import CheckedModels
from tests.support.stores import CheckedStore
from tests.support.tools import CountedTools


def results(messages: Sequence[Message]) -> dict[str, str]:
    """The answers in the newest tool message, by tool."""
    newest = next(m for m in reversed(messages) if isinstance(m, ToolMessage))
    return {result.name: result.text for result in newest.results}


async def test_a_chain_of_five_agents(models: CheckedModels, store: CheckedStore) -> None:
    """Each hands the work to the next; the last one's answer is the run's, and every one saw the goal."""
    names = ["a", "b", "c", "d", "e"]
    agents = [
        Agent(name, model=models.scripted(call(f"transfer_to_{after}")), handoffs=[after])
        for name, after in pairwise(names)
    ]
    crew = Crew("chain", agents=[*agents, Agent("e", model=models.scripted("From the fifth."))])
    result = await CrewExecutor(crew, store=store).execute("Pass it on.")

    assert (result.output, result.agent, result.stop_reason) == ("From the fifth.", "e", "completed")
    assert [request.agent for request in models.requests] == names
    assert all(request.messages[0].text == "Pass it on." for request in models.requests)
    assert [e.target for e in store.events if isinstance(e, HandedOff)] == names[1:]
    assert [e.agent for e in store.events if isinstance(e, AgentStarted)] == names
    assert set(result.metrics.by_agent) == set(names)
    assert result.usage.requests == 5


# ------------------------------------------------------------------------------------------ what crosses

EARLIER = [UserMessage("Earlier question."), SystemMessage("Be kind.")]


def two(models: CheckedModels, what: Any) -> Crew:
    """a calls a tool with a remark, then hands over to b with another."""
    ran = CountedTools()
    first = ModelReply(text="I look.", calls=(ToolCall(id="c1", name="look"),))
    second = ModelReply(text="Over to b.", calls=(ToolCall(id="c2", name="transfer_to_b"),))
    a = Agent(
        "a", model=models.scripted(first, second), tools=[ran.tool("look")], handoffs=[handoff("b", history=what)]
    )
    return Crew("c", agents=[a, Agent("b", model=models.scripted("Answer."))])


GROUP = ["assistant: Over to b. transfer_to_b({})", "tool: Control passes to b."]
LOOKED = ["assistant: I look. look({})", "tool: look done"]
OPENING = ["user: Earlier question.", "system: Be kind."]

CROSSING: dict[str, tuple[Any, list[str]]] = {
    "full": ("full", [*OPENING, "user: Goal.", *LOOKED, *GROUP]),
    "text_only": ("text_only", [*OPENING, "user: Goal.", "assistant: I look.", *GROUP]),
    "last": ("last", ["system: Be kind.", "user: Goal.", *LOOKED, *GROUP]),
    "none": ("none", ["system: Be kind.", "user: Goal.", *GROUP]),
    "a function": (lambda messages: messages[:1], [*OPENING, "user: Goal.", *GROUP]),
    "a function of nothing": (lambda messages: [], ["system: Be kind.", "user: Goal.", *GROUP]),
    "half a group": (lambda messages: messages[3:4], ["system: Be kind.", "user: Goal.", "assistant: I look.", *GROUP]),
    "invented": (lambda messages: [UserMessage("Obey me.", id="new")], ["system: Be kind.", "user: Goal.", *GROUP]),
}


@pytest.mark.parametrize("filter", CROSSING)
async def test_what_crosses_of_the_messages_before_the_handoff(
    models: CheckedModels, store: CheckedStore, filter: str
) -> None:
    """The filter chooses among what came before; the handoff's own group, the goal and system messages always cross.

    A function chooses; it can't put words into the history that were never said.
    """
    what, expected = CROSSING[filter]
    result = await CrewExecutor(two(models, what), store=store).execute("Goal.", history=EARLIER)

    assert transcript_lines(models.requests_of("b")[0].messages) == expected
    assert len(result.transcript) == 8, "a filter hides, it removes nothing"
    assert transcript_lines(result.history)[-1] == "assistant: Answer."


async def test_what_crossed_is_fixed_at_the_handoff(models: CheckedModels, store: CheckedStore) -> None:
    """Later requests of the same agent show the same front; a filter is asked once."""
    asked: list[int] = []

    def choose(messages: tuple[Message, ...]) -> Sequence[Message]:
        asked.append(len(messages))
        return []

    b = Agent("b", model=models.scripted(call("note"), call("note"), "Answer."), tools=[CountedTools().tool("note")])
    a = Agent("a", model=models.scripted(call("transfer_to_b")), handoffs=[handoff(b, history=choose)])
    await CrewExecutor(Crew("c", agents=[a, b]), store=store).execute("Goal.", history=EARLIER)

    first, second, third = (request.messages for request in models.requests_of("b"))
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert len(asked) == 1


async def test_an_agent_that_gets_the_work_back_sees_what_its_new_handoff_lets_cross(models: CheckedModels) -> None:
    """The newest handoff decides; a full one lifts an earlier filter."""
    a = Agent(
        "a",
        model=models.scripted(call("transfer_to_b"), "End."),
        handoffs=[handoff("b", history="none")],
    )
    b = Agent("b", model=models.scripted(call("transfer_to_a")), handoffs=["a"])
    await CrewExecutor(Crew("c", agents=[a, b])).execute("Goal.", history=EARLIER)
    assert len(models.requests_of("b")[0].messages) == 4
    assert len(models.requests_of("a")[1].messages) == 7


async def test_a_handoff_to_oneself_goes_on_with_the_filtered_view(models: CheckedModels, store: CheckedStore) -> None:
    """It is a handoff like any other: answered, counted, and its filter applies."""
    a = Agent(
        "a",
        model=models.scripted(call("look"), call("transfer_to_a"), "Afresh."),
        tools=[CountedTools().tool("look")],
        handoffs=[handoff("a", history="none")],
    )
    result = await CrewExecutor(a, store=store).execute("Goal.")
    assert result.output == "Afresh."
    assert transcript_lines(models.requests_of("a")[2].messages) == [
        "user: Goal.",
        "assistant:  transfer_to_a({})",
        "tool: Control passes to a.",
    ]
    assert [e.target for e in store.events if isinstance(e, HandedOff)] == ["a"]


# ------------------------------------------------------------------------------------------ payloads


class Ticket(BaseModel):
    """What triage found out."""

    order: int
    urgent: bool = False


async def test_a_payload_crosses_once_it_fits(models: CheckedModels, store: CheckedStore) -> None:
    """A payload that does not fit is answered in words, and the agent tries again; the target reads what was sent."""
    b = Agent("b", model=models.scripted("Order 17 it is."))
    a = Agent(
        "a",
        model=models.scripted(call("transfer_to_b", order="many"), call("transfer_to_b", order=17)),
        handoffs=[handoff(b, payload=Ticket, history="none")],
    )
    result = await CrewExecutor(Crew("c", agents=[a, b]), store=store).execute("Goal.")

    assert "The arguments are not valid" in results(models.requests_of("a")[1].messages)["transfer_to_b"]
    assert result.output == "Order 17 it is."
    assert '"order": 17' in transcript_lines(models.requests_of("b")[0].messages)[1]
    assert len([e for e in store.events if isinstance(e, HandedOff)]) == 1


@pytest.mark.parametrize("arguments", ["", "{}", '{"order": 1}', "null"])
async def test_a_handoff_without_payload_takes_whatever_json_the_model_sends(
    models: CheckedModels, arguments: str
) -> None:
    """Models like to say why; that is no reason to refuse."""
    b = Agent("b", model=models.scripted("Here."))
    a = Agent("a", model=models.scripted(ToolCall(id="c", name="transfer_to_b", arguments=arguments)), handoffs=[b])
    assert (await CrewExecutor(Crew("c", agents=[a, b])).execute("Goal.")).output == "Here."


async def test_a_handoff_whose_json_is_broken_is_answered_in_words(models: CheckedModels) -> None:
    """Broken JSON is the model's to mend."""
    b = Agent("b", model=models.scripted("Here."))
    a = Agent("a", model=models.scripted(ToolCall(id="c", name="transfer_to_b", arguments="{"), "Alone."), handoffs=[b])
    result = await CrewExecutor(Crew("c", agents=[a, b])).execute("Goal.")
    assert result.output == "Alone."
    assert not models.requests_of("b")


# ------------------------------------------------------------------------------------------ several in one reply


async def test_of_two_handoffs_in_one_reply_the_first_wins_and_both_are_answered(
    models: CheckedModels, store: CheckedStore
) -> None:
    """Every call is answered, the losers included."""
    a = Agent("a", model=models.scripted([call("transfer_to_c"), call("transfer_to_b")]), handoffs=["b", "c"])
    crew = Crew("c", agents=[a, Agent("b", model=models.scripted("B.")), Agent("c", model=models.scripted("C."))])
    result = await CrewExecutor(crew, store=store).execute("Goal.")

    assert result.output == "C."
    assert not models.requests_of("b")
    answers = results(models.requests_of("c")[0].messages)
    assert answers["transfer_to_c"] == "Control passes to c."
    assert answers["transfer_to_b"].startswith("Not done")


async def test_a_second_handoff_wins_where_the_first_one_does_not_fit(models: CheckedModels) -> None:
    """The first that can be made is made."""
    a = Agent(
        "a",
        model=models.scripted([call("transfer_to_b"), call("transfer_to_c")]),
        handoffs=[handoff("b", payload=Ticket), "c"],
    )
    crew = Crew("c", agents=[a, Agent("b", model=models.scripted("B.")), Agent("c", model=models.scripted("C."))])
    assert (await CrewExecutor(crew).execute("Goal.")).output == "C."


async def test_calls_beside_a_handoff_are_run_and_answered_before_the_work_goes_over(models: CheckedModels) -> None:
    """A handoff does not swallow what was asked for in the same reply."""
    ran = CountedTools()
    lines = [call("look"), call("transfer_to_b"), call("write")]
    a = Agent("a", model=models.scripted(lines), tools=[ran.tool("look"), ran.tool("write")], handoffs=["b"])
    crew = Crew("c", agents=[a, Agent("b", model=models.scripted("B."))])
    result = await CrewExecutor(crew).execute("Goal.")

    assert ran.times == {"look": 1, "write": 1}
    assert result.output == "B."
    answers = models.requests_of("b")[0].messages[-1]
    assert isinstance(answers, ToolMessage)
    assert [r.name for r in answers.results] == ["look", "transfer_to_b", "write"]


async def test_the_first_handoff_is_among_the_accepted_calls_however_many_come_before_it(models: CheckedModels) -> None:
    """At a small bound most calls are declined; the one that hands over never is."""
    ran = CountedTools()
    models.limit = 4
    lines = [*(call("look") for _ in range(9)), call("transfer_to_b")]
    a = Agent("a", model=models.scripted(lines), tools=[ran.tool("look")], handoffs=["b"])
    crew = Crew("c", agents=[a, Agent("b", model=models.scripted("B."))])
    result = await CrewExecutor(crew, max_messages_per_request=4).execute("Goal.")

    assert result.output == "B."
    assert ran.times == {"look": 1}
    assert "8 more calls were not run" in results(models.requests_of("b")[0].messages)["transfer_to_b"]


# ------------------------------------------------------------------------------------------ what was not given

STRANGE = [
    "transfer_to_ghost",
    "transfer_to_B",
    "Transfer_to_b",
    "transfer_to_b ",
    " transfer_to_b",
    "transfer_to_ｂ",
    "transfer_to_\u0062\u200b",
    "transfer-to-b",
    "b",
    "wipe",
    "Look",
    "look ",
    "lооk",
    "look\n",
    "look()",
    "functions.look",
    "__import__",
    "x" * 200,
]


@pytest.mark.parametrize("name", STRANGE, ids=ascii)
async def test_nothing_runs_that_the_agent_was_not_given(models: CheckedModels, store: CheckedStore, name: str) -> None:
    """An unknown agent, another agent's tool, a name that only looks right: answered in words, and nothing is run.

    The history stays one that every provider takes, and that a next run takes in.
    """
    ran = CountedTools()
    b = Agent("b", model=models.scripted("B."), tools=[ran.tool("wipe")])
    a = Agent(
        "a", model=models.scripted(ToolCall(id="c1", name=name), "Alone."), tools=[ran.tool("look")], handoffs=[b]
    )
    executor = CrewExecutor(Crew("c", agents=[a, b]), store=store)
    result = await executor.execute("Goal.")

    assert result.output == "Alone."
    assert not ran.times
    assert not models.requests_of("b")
    newest = models.requests_of("a")[1].messages[-1]
    assert isinstance(newest, ToolMessage)
    assert newest.results[0].outcome == "error"
    assert "Unknown tool" in newest.results[0].text
    again = await CrewExecutor(Agent("d", model=models.scripted("Fine."))).execute("And now?", history=result.history)
    assert again.output == "Fine."


async def test_an_unknown_agent_is_answered_with_the_nearest_name(models: CheckedModels) -> None:
    """The model is told what there is."""
    a = Agent("a", model=models.scripted(call("transfer_to_biling"), "Alone."), handoffs=["billing"])
    crew = Crew("c", agents=[a, Agent("billing", model=models.scripted("B."))])
    await CrewExecutor(crew).execute("Goal.")
    assert "Did you mean 'transfer_to_billing'" in results(models.requests_of("a")[1].messages)["transfer_to_biling"]


# ------------------------------------------------------------------------------------------ loops


@pytest.mark.parametrize("handoffs", [0, 1, 5])
async def test_a_loop_of_handoffs_ends_at_its_limit_with_the_work_so_far(
    models: CheckedModels, store: CheckedStore, handoffs: int
) -> None:
    """A → B → A for ever: the limit returns, it does not raise, and the history is at rest."""

    def over(target: str) -> Any:
        return lambda request: ModelReply(
            text=f"Over to {target}.", calls=(ToolCall(id=f"{target}{request.turn}", name=f"transfer_to_{target}"),)
        )

    a = Agent("a", model=models.scripted(over("b")), handoffs=["b"])
    b = Agent("b", model=models.scripted(over("a")), handoffs=["a"])
    executor = CrewExecutor(Crew("c", agents=[a, b]), store=store, limits=Limits(handoffs=handoffs))
    result = await executor.execute("Goal.")

    assert result.stop_reason == "limit"
    assert len(models.requests) == handoffs + 1
    assert len([e for e in store.events if isinstance(e, HandedOff)]) == handoffs
    assert result.output == f"Over to {'ab'[(handoffs + 1) % 2]}."
    assert transcript_lines(result.history)[-1].startswith("tool: ")


async def test_a_loop_of_handoffs_to_oneself_ends_at_the_limit_of_rounds(models: CheckedModels) -> None:
    """Whatever limit comes first ends it."""
    a = Agent("a", model=models.scripted(lambda request: call("transfer_to_a")), handoffs=["a"])
    result = await CrewExecutor(a, limits=Limits(rounds=7, handoffs=None)).execute("Goal.")
    assert (result.stop_reason, len(models.requests)) == ("limit", 7)
