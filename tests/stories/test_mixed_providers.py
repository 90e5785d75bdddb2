"""Crews whose agents sit on different services: a conversation goes from one to the other, and nothing is refused."""

import json
from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, handoff, tool
from crew.interfaces import Provider
from crew.messages import (
    AssistantMessage,
    SummaryMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from tests.support.remote_providers import ERAS, PROTOCOLS, provider, run, said, thinking
from tests.wire import Era, Model, Protocol, Reply, WireServer, by_agent, newest


@tool
async def look(n: int) -> str:
    """Look something up.

    Args:
        n: Which one.
    """
    return f"found {n}"


def to_and_fro(other: str, rounds: int, thinks: bool) -> Any:
    """Looks twice, hands over, looks again when the work comes back; ends after so many rounds."""

    def brain(body: Any, protocol: Protocol, index: int) -> Reply:
        thought = f"Thought {index}." if thinks else None

        if index >= rounds * 6:
            return Reply(text="finished", thinking=thought)

        last = newest(body, protocol)

        if index % 3 == 2 and last.calls:
            return Reply(calls=[(f"transfer_to_{other}", {})], thinking=thought)

        return Reply(calls=[("look", {"n": index}), ("look", {"n": index + 100})], thinking=thought)

    return brain


def crew_of(one: Provider, two: Provider, settings: Any) -> Crew:
    quick = Agent("quick", instructions="You are quick.", model=one, tools=[look], handoffs=["thorough"])
    thorough = Agent(
        "thorough",
        instructions="You are thorough.",
        model=two,
        tools=[look],
        handoffs=[handoff("quick", history="full")],
        settings=settings,
    )
    return Crew("pair", agents=[quick, thorough])


@pytest.mark.parametrize(("era", "streamed"), [("classic", True), ("modern", False)], ids=["classic", "modern"])
@pytest.mark.parametrize("second", PROTOCOLS)
@pytest.mark.parametrize("first", PROTOCOLS)
async def test_a_handoff_in_the_middle_of_a_tool_loop_and_back(
    first: Protocol, second: Protocol, era: Era, streamed: bool
) -> None:
    """From an agent without thinking to one with it and back, on every pair of services, nothing is refused; thinking
    goes to the model that wrote it and to nobody else."""
    brain = by_agent({"quick": to_and_fro("thorough", 4, False), "thorough": to_and_fro("quick", 4, True)})

    async with WireServer(brain, model=Model(era=era)) as server:
        other = {"model": "claude-opus-4-1" if second == "messages" else "gpt-5-mini"}
        crew = crew_of(provider(server, first, era), provider(server, second, era, **other), thinking(second, era))
        result = await run(CrewExecutor(crew), streamed=streamed)

        assert result.output == "finished"
        assert not server.refused, said(server)
        served = {request.body["model"] for request in server.requests}
        assert len(served) == 2

        for request in server.requests:
            if request.body["model"] != other["model"]:
                assert b'"signature"' not in request.raw
                assert b'"encrypted_content":"' not in request.raw


def imported() -> list[Any]:
    """A history from elsewhere: long call ids, system messages in odd places, broken arguments, an empty result."""
    long = "call_" + "x" * 60
    return [
        SystemMessage("Speak plainly."),
        UserMessage("First question."),
        AssistantMessage("I shall look.", calls=(ToolCall(id=long, name="look", arguments='{"n": 1, '),)),
        ToolMessage((ToolResult(call_id=long, text="", name="look", outcome="error"),)),
        SystemMessage("Be brief."),
        SystemMessage("Be kind."),
        AssistantMessage("One."),
        AssistantMessage("And two."),
        SystemMessage("Be quick."),
        UserMessage("Second question."),
        AssistantMessage(calls=(ToolCall(id="b", name="look.up it", arguments="[1]"), ToolCall(id="b", name="look"))),
        ToolMessage((ToolResult(call_id="b", text="  ", name="look"), ToolResult(call_id="b", text="ok", name="look"))),
        SummaryMessage("What was said before.", covers=("m1",)),
        AssistantMessage("Three."),
    ]


@pytest.mark.parametrize("demands", [False, True], ids=["", "tools demanded"])
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_history_from_anywhere_is_made_valid(protocol: Protocol, era: Era, demands: bool) -> None:
    """Ids that are too long or used twice, arguments that are no JSON, results without text, system messages between
    replies: the service accepts what is made of them, also from an agent that has no tools."""
    async with WireServer(model=Model(era=era, demand_tools=demands)) as server:
        agent = Agent("reader", instructions="Read.", model=provider(server, protocol, era))
        result = await CrewExecutor(agent).execute("And now?", history=imported())

        assert not server.refused, said(server)
        assert result.output == "And now?"
        wire = server.requests[0].raw.decode()
        assert all(words in wire for words in ("Speak plainly.", "Be brief.", "Be kind.", "Be quick."))
        assert "[Conversation Summary]" in wire


async def test_system_messages_stand_where_each_era_of_anthropic_takes_them() -> None:
    """Leading ones join the instructions; later ones keep their place, so that the front of the request holds still:
    under a role of their own after a user's turn where there is one, else as a user's text."""
    roles = {}

    for era in ERAS:
        async with WireServer(model=Model(era=era)) as server:
            agent = Agent("reader", instructions="Read.", model=provider(server, "messages", era))
            history = [
                SystemMessage("Leading."),
                UserMessage("One."),
                SystemMessage("Later."),
                AssistantMessage("Two."),
            ]
            await CrewExecutor(agent).execute("Three.", history=history)
            body = server.requests[0].body

        assert [block["text"] for block in body["system"]] == ["Read.", "Leading."]
        roles[era] = [message["role"] for message in body["messages"]]

    assert roles["modern"] == ["user", "system", "assistant", "user"]
    assert roles["classic"] == ["user", "user", "assistant", "user"]


async def test_thinking_that_the_service_does_not_know_again_is_dropped_whole() -> None:
    """`Invalid signature` costs one more request and the thinking so far, not the run; what is thought after it goes
    back again."""
    thought = Reply(calls=[("look", {"n": 1})], thinking="Old thought.")

    async with WireServer([thought, "Done."], secret=b"one") as server:
        history = (await CrewExecutor(_thinker(server)).execute("Go.")).history

    async with WireServer(lambda *_: Reply(text="Again.", thinking="New thought."), secret=b"two") as server:
        result = await CrewExecutor(_thinker(server)).execute("And?", history=history)
        assert result.output == "Again."
        assert [request.rule for request in server.requests] == ["thinking_signature", None]
        assert b'"signature"' not in server.requests[1].raw
        assert json.loads(server.requests[1].raw)["thinking"]["type"] == "enabled"
        await CrewExecutor(_thinker(server)).execute("And then?", history=result)
        assert server.count == 3
        assert b"New thought." in server.requests[2].raw


def _thinker(server: WireServer) -> Agent:
    model = provider(server, "messages", "classic")
    return Agent("thinker", instructions="Think.", model=model, tools=[look], settings=thinking("messages", "classic"))
