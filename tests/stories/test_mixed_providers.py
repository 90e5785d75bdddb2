"""Crews whose agents use different services: the conversation passes between them, and no request is refused."""

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
from tests.support.remote_providers import ERAS, PROTOCOLS, provider, refusal_reasons, run, thinking
from tests.wire import Era, Model, Protocol, Reply, WireServer, by_agent, newest


@tool
async def look(n: int) -> str:
    """Look something up.

    Args:
        n: Which one.
    """
    return f"found {n}"


def alternate(other: str, rounds: int, thinks: bool) -> Any:
    """Calls twice, hands off, calls again when control returns; ends after so many rounds."""

    def responder(body: Any, protocol: Protocol, index: int) -> Reply:
        thought = f"Thought {index}." if thinks else None

        if index >= rounds * 6:
            return Reply(text="finished", thinking=thought)

        last = newest(body, protocol)

        if index % 3 == 2 and last.calls:
            return Reply(calls=[(f"transfer_to_{other}", {})], thinking=thought)

        return Reply(calls=[("look", {"n": index}), ("look", {"n": index + 100})], thinking=thought)

    return responder


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
async def test_handoff_in_a_tool_loop_and_back(first: Protocol, second: Protocol, era: Era, streamed: bool) -> None:
    """Between agents with and without reasoning, on every pair of services; reasoning returns only to the model that
    wrote it."""
    responder = by_agent({"quick": alternate("thorough", 4, False), "thorough": alternate("quick", 4, True)})

    async with WireServer(responder, model=Model(era=era)) as server:
        other = {"model": "claude-opus-4-1" if second == "messages" else "gpt-5-mini"}
        crew = crew_of(provider(server, first, era), provider(server, second, era, **other), thinking(second, era))
        result = await run(CrewExecutor(crew), streamed=streamed)

        assert result.output == "finished"
        assert not server.refused, refusal_reasons(server)
        served = {request.body["model"] for request in server.requests}
        assert len(served) == 2

        for request in server.requests:
            if request.body["model"] != other["model"]:
                assert b'"signature"' not in request.raw
                assert b'"encrypted_content":"' not in request.raw


def imported_history() -> list[Any]:
    """A history of another framework: long call ids, system messages in unusual places, broken arguments, an empty
    result."""
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
async def test_imported_history_is_made_valid(protocol: Protocol, era: Era, demands: bool) -> None:
    """Long or repeated ids, invalid arguments, empty results, system messages between replies: the service accepts the
    repaired history, also from an agent without tools."""
    async with WireServer(model=Model(era=era, demand_tools=demands)) as server:
        agent = Agent("reader", instructions="Read.", model=provider(server, protocol, era))
        result = await CrewExecutor(agent).execute("And now?", history=imported_history())

        assert not server.refused, refusal_reasons(server)
        assert result.output == "And now?"
        wire = server.requests[0].raw.decode()
        assert all(words in wire for words in ("Speak plainly.", "Be brief.", "Be kind.", "Be quick."))
        assert "[Conversation Summary]" in wire


async def test_system_messages_on_each_era_of_anthropic() -> None:
    """Leading ones join the instructions; later ones keep their place, with a separate role where it exists, else as
    user text, so that the prefix stays."""
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


async def test_reasoning_with_an_invalid_signature_is_dropped() -> None:
    """`Invalid signature` costs one more request and the earlier reasoning, not the run; later reasoning is sent
    again."""
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
