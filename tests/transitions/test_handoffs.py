"""A handoff is a tool for the model and a transition for the run; the messages that cross are fixed when it happens."""

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
    """The results in the newest tool message, by tool name."""
    newest = next(m for m in reversed(messages) if isinstance(m, ToolMessage))
    return {result.name: result.text for result in newest.results}


async def test_chain_of_five_agents(models: CheckedModels, store: CheckedStore) -> None:
    """Each agent hands off to the next; the last answer is the output, and every agent saw the goal."""
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


def two_agents(models: CheckedModels, what: Any) -> Crew:
    """a calls a tool with a remark, then hands off to b with another remark."""
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
async def test_filter_selects_the_messages_that_cross(models: CheckedModels, store: CheckedStore, filter: str) -> None:
    """The filter selects from the earlier messages; the group of the handoff, the goal and system messages always
    cross. A function selects; it can't add text."""
    what, expected = CROSSING[filter]
    result = await CrewExecutor(two_agents(models, what), store=store).execute("Goal.", history=EARLIER)

    assert transcript_lines(models.requests_of("b")[0].messages) == expected
    assert len(result.transcript) == 8, "a filter hides, it removes nothing"
    assert transcript_lines(result.history)[-1] == "assistant: Answer."


async def test_filter_is_applied_once_at_the_handoff(models: CheckedModels, store: CheckedStore) -> None:
    """Later requests of the agent start with the same messages."""
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


async def test_handoff_back_applies_the_newest_filter(models: CheckedModels) -> None:
    """A `full` handoff removes an earlier filter."""
    a = Agent(
        "a",
        model=models.scripted(call("transfer_to_b"), "End."),
        handoffs=[handoff("b", history="none")],
    )
    b = Agent("b", model=models.scripted(call("transfer_to_a")), handoffs=["a"])
    await CrewExecutor(Crew("c", agents=[a, b])).execute("Goal.", history=EARLIER)
    assert len(models.requests_of("b")[0].messages) == 4
    assert len(models.requests_of("a")[1].messages) == 7


async def test_handoff_to_itself_applies_its_filter(models: CheckedModels, store: CheckedStore) -> None:
    """It has a result, and counts as a handoff."""
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
    """The payload of a handoff."""

    order: int
    urgent: bool = False


async def test_payload_is_validated_before_the_handoff(models: CheckedModels, store: CheckedStore) -> None:
    """An invalid payload becomes an error result, and the agent tries again; the target reads the payload."""
    b = Agent("b", model=models.scripted("Order 17 it is."))
    a = Agent(
        "a",
        model=models.scripted(call("transfer_to_b", order="many"), call("transfer_to_b", order=17)),
        handoffs=[handoff(b, payload=Ticket, history="none")],
    )
    result = await CrewExecutor(Crew("c", agents=[a, b]), store=store).execute("Goal.")

    expected = (
        "The arguments are not valid: order: Input should be a valid integer, unable to parse string as an integer"
    )
    found = results(models.requests_of("a")[1].messages)["transfer_to_b"]
    assert found == f"{expected} (got 'many'). Call the tool again with arguments that match its schema."
    assert result.output == "Order 17 it is."
    assert '"order": 17' in transcript_lines(models.requests_of("b")[0].messages)[1]
    assert len([e for e in store.events if isinstance(e, HandedOff)]) == 1


@pytest.mark.parametrize("arguments", ["", "{}", '{"order": 1}', "null"])
async def test_handoff_without_payload_accepts_any_json_object(models: CheckedModels, arguments: str) -> None:
    """Models often add a reason."""
    b = Agent("b", model=models.scripted("Here."))
    a = Agent("a", model=models.scripted(ToolCall(id="c", name="transfer_to_b", arguments=arguments)), handoffs=[b])
    assert (await CrewExecutor(Crew("c", agents=[a, b])).execute("Goal.")).output == "Here."


async def test_handoff_with_broken_json_becomes_an_error_result(models: CheckedModels) -> None:
    """The model can correct it."""
    b = Agent("b", model=models.scripted("Here."))
    a = Agent("a", model=models.scripted(ToolCall(id="c", name="transfer_to_b", arguments="{"), "Alone."), handoffs=[b])
    result = await CrewExecutor(Crew("c", agents=[a, b])).execute("Goal.")
    assert result.output == "Alone."
    assert not models.requests_of("b")


# ------------------------------------------------------------------------------------------ several in one reply


async def test_first_of_two_handoffs_in_one_reply_wins(models: CheckedModels, store: CheckedStore) -> None:
    """Every call gets a result."""
    a = Agent("a", model=models.scripted([call("transfer_to_c"), call("transfer_to_b")]), handoffs=["b", "c"])
    crew = Crew("c", agents=[a, Agent("b", model=models.scripted("B.")), Agent("c", model=models.scripted("C."))])
    result = await CrewExecutor(crew, store=store).execute("Goal.")

    assert result.output == "C."
    assert not models.requests_of("b")
    answers = results(models.requests_of("c")[0].messages)
    assert answers["transfer_to_c"] == "Control passes to c."
    assert answers["transfer_to_b"].startswith("Not done")


async def test_second_handoff_wins_if_the_first_is_invalid(models: CheckedModels) -> None:
    """The first valid handoff is made."""
    a = Agent(
        "a",
        model=models.scripted([call("transfer_to_b"), call("transfer_to_c")]),
        handoffs=[handoff("b", payload=Ticket), "c"],
    )
    crew = Crew("c", agents=[a, Agent("b", model=models.scripted("B.")), Agent("c", model=models.scripted("C."))])
    assert (await CrewExecutor(crew).execute("Goal.")).output == "C."


async def test_other_calls_of_a_reply_run_before_the_handoff(models: CheckedModels) -> None:
    """A handoff does not drop calls of the same reply."""
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


async def test_handoff_is_accepted_among_many_calls(models: CheckedModels) -> None:
    """With a small limit most calls are declined, but never the handoff."""
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
async def test_only_tools_of_the_agent_run(models: CheckedModels, store: CheckedStore, name: str) -> None:
    """An unknown agent, a tool of another agent or a similar name becomes an error result. The history stays valid and
    can be passed to the next run."""
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


async def test_unknown_handoff_suggests_a_similar_name(models: CheckedModels) -> None:
    """The error lists the available handoffs."""
    a = Agent("a", model=models.scripted(call("transfer_to_biling"), "Alone."), handoffs=["billing"])
    crew = Crew("c", agents=[a, Agent("billing", model=models.scripted("B."))])
    await CrewExecutor(crew).execute("Goal.")
    assert "Did you mean 'transfer_to_billing'" in results(models.requests_of("a")[1].messages)["transfer_to_biling"]


# ------------------------------------------------------------------------------------------ loops


@pytest.mark.parametrize("handoffs", [0, 1, 5])
async def test_handoff_loop_ends_at_the_handoff_limit(
    models: CheckedModels, store: CheckedStore, handoffs: int
) -> None:
    """A → B → A: the run returns its result so far, with a valid history."""

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


async def test_loop_of_handoffs_to_itself_ends_at_a_limit(models: CheckedModels) -> None:
    """The first limit that is reached ends the run."""
    a = Agent("a", model=models.scripted(lambda request: call("transfer_to_a")), handoffs=["a"])
    result = await CrewExecutor(a, limits=Limits(rounds=7, handoffs=None)).execute("Goal.")
    assert (result.stop_reason, len(models.requests)) == ("limit", 7)
