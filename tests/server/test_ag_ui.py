"""The AG-UI endpoint: every example crew, branches, interrupts and resumed runs, as events of the protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from ag_ui.core import Event as ProtocolEvent
from pydantic import TypeAdapter

from crew import Agent, Crew, CrewExecutor, Parallel, ScriptedProvider, call, tool
from crew.messages import AssistantMessage, ToolCall, Usage
from crew.runs.events import AgentStarted, Asked, Replied, RunFinished, TextDelta, Warned
from crew.server.ag_ui_events import AgUiMapper
from crew.tools import Context
from tests.support.example_crews import EXAMPLE_CREWS
from tests.support.http_service import client_of, secret_of, token
from tests.support.providers import RecordingProvider

PROTOCOL = TypeAdapter(ProtocolEvent)
OPENERS = {
    "TEXT_MESSAGE_START": "TEXT_MESSAGE_END",
    "TOOL_CALL_START": "TOOL_CALL_END",
    "STEP_STARTED": "STEP_FINISHED",
}


@tool(approval=True)
def refund(amount: int) -> str:
    """Pay money back."""
    return f"Paid {amount}."


def user(text: str) -> dict[str, Any]:
    return {"id": f"message-{text}", "role": "user", "content": text}


async def run(client: httpx2.AsyncClient, body: dict[str, Any], path: str = "/ag-ui") -> list[dict[str, Any]]:
    """The events of one run of the protocol; each one is valid."""
    answer = await client.post(path, json={"tools": [], "context": [], "state": {}, "messages": []} | body)
    assert answer.status_code == 200, answer.text
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line.startswith("data: ")]

    for event in events:
        PROTOCOL.validate_python(event)

    assert events[0]["type"] == "RUN_STARTED"
    assert events[-1]["type"] in ("RUN_FINISHED", "RUN_ERROR")
    check_balance(events)
    return events


def check_balance(events: list[dict[str, Any]]) -> None:
    """What is opened is closed, unless the run ended with an error; the ids of calls and subagents are unique."""
    kinds = [event["type"] for event in events]

    if kinds[-1] == "RUN_FINISHED":
        for opener, end in OPENERS.items():
            assert kinds.count(opener) == kinds.count(end), opener

        ended = kinds.count("SUBAGENT_FINISHED") + kinds.count("SUBAGENT_ERROR")
        assert kinds.count("SUBAGENT_STARTED") == ended

    for opener, name in (("TOOL_CALL_START", "toolCallId"), ("SUBAGENT_STARTED", "subagentRunId")):
        ids = [event[name] for event in events if event["type"] == opener]
        assert len(ids) == len(set(ids))


def answers(last: dict[str, Any], payload: Any) -> list[dict[str, Any]]:
    """The answer to every interrupt of a run; a text where the schema of the interrupt asks for one."""
    found = []

    for one in last["outcome"]["interrupts"]:
        schema = one["responseSchema"]
        text = schema.get("enum", ["Yes."])[0] if schema.get("type") == "string" else payload
        found.append({"interruptId": one["id"], "status": "resolved", "payload": text})

    return found


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")


@pytest.mark.parametrize("name", sorted(EXAMPLE_CREWS))
async def test_every_example_crew_speaks_the_protocol(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All events are valid, in pairs and with unique ids, also in the runs that answer the interrupts."""
    monkeypatch.chdir(tmp_path)  # an example writes a file

    async with client_of(CrewExecutor(EXAMPLE_CREWS[name]())) as client:
        body = {"threadId": "t", "runId": "r0", "messages": [user("Please pay order 3 back.")]}
        events = await run(client, body)
        number = 0

        while events[-1].get("outcome", {}).get("type") == "interrupt":
            number += 1
            resume = answers(events[-1], payload=True)
            events = await run(client, {"threadId": "t", "runId": f"r{number}", "resume": resume})

        assert events[-1]["outcome"] == {"type": "success"}
        assert events[-1]["result"]["stopReason"] == "completed"


async def test_a_tool_call_and_its_result_have_the_key_of_the_call() -> None:
    """An approval is an interrupt with a schema for the answer; the resumed run reports the result of the same call."""
    agent = Agent("clerk", model=ScriptedProvider(call("refund", amount=80), "It is paid."), tools=[refund])

    async with client_of(CrewExecutor(agent)) as client:
        first = await run(client, {"threadId": "t", "runId": "r0", "messages": [user("Refund 80.")]})
        [interrupt] = first[-1]["outcome"]["interrupts"]
        [started] = [event for event in first if event["type"] == "TOOL_CALL_START"]
        assert started["toolCallId"] == interrupt["toolCallId"] == "r0:1.0"
        assert "May clerk call refund?" in interrupt["message"]
        second = await run(client, {"threadId": "t", "runId": "r1", "resume": answers(first[-1], payload=True)})

    [result] = [event for event in second if event["type"] == "TOOL_CALL_RESULT"]
    assert (result["toolCallId"], result["content"]) == ("r0:1.0", "Paid 80.")
    assert text_of(second) == "It is paid."
    assert second[-1]["usage"][0]["outputTokens"] > 0


async def test_a_resume_that_is_sent_again_continues_its_stream() -> None:
    """A client whose connection was cut repeats its request: it gets the same events, and nothing runs again."""
    clerks = [
        Agent(name, model=ScriptedProvider(call("refund", amount=1), call("refund", amount=2), "Done."), tools=[refund])
        for name in ("a", "b")
    ]
    executor = CrewExecutor(Crew("shop", agents=clerks, groups=[Parallel("both", branches=clerks)], entry="both"))

    async with client_of(executor) as client:
        first = await run(client, {"threadId": "t", "runId": "r0", "messages": [user("Refund.")]})
        resumes = [{"threadId": "t", "runId": "r1", "resume": answers(first[-1], payload=True)}]
        second = await run(client, resumes[0])
        resumes.append({"threadId": "t", "runId": "r2", "resume": answers(second[-1], payload={"approved": False})})
        third = await run(client, resumes[1])
        assert third[-1]["outcome"] == {"type": "success"}
        stored = await executor.store.events("r0")  # type: ignore[attr-defined]

        for body, events in zip(resumes, (second, third), strict=True):
            again = await run(client, body)
            assert [event for event in again if event["type"] in RESULTS] == [
                event for event in events if event["type"] in RESULTS
            ]

        other = resumes[0] | {"resume": answers(first[-1], payload=False)}
        changed = await client.post("/ag-ui", json=other)
        assert (changed.status_code, changed.json()["error"]["type"]) == (409, "unknown_pause")
        assert await executor.store.events("r0") == stored  # type: ignore[attr-defined]


RESULTS = ("TOOL_CALL_RESULT", "RUN_FINISHED", "SUBAGENT_FINISHED")


async def test_a_resume_with_a_secret_is_found_again() -> None:
    """The log has the answer without the secret: it is compared without it."""

    @tool(asks=True)
    async def sign_in(context: Context[None]) -> str:
        """Ask for the password."""
        await context.ask_user("Which password?")
        return "Signed in."

    agent = Agent("clerk", model=ScriptedProvider(call("sign_in"), "Done."), tools=[sign_in])

    async with client_of(CrewExecutor(agent, secrets=["planted-secret-42"])) as client:
        first = await run(client, {"threadId": "t", "runId": "r0", "messages": [user("Sign in.")]})
        [entry] = answers(first[-1], payload=None)
        body = {"threadId": "t", "runId": "r1", "resume": [entry | {"payload": "planted-secret-42"}]}
        ends = [(await run(client, body))[-1] for _ in ("first", "again")]

    assert ends[0]["outcome"] == {"type": "success"}
    assert ends[0] == ends[1]


async def test_a_question_that_is_cancelled_again_is_cancelled() -> None:
    """A question has no refusal: to cancel it cancels the run, also if the request is repeated."""

    @tool(asks=True)
    async def choose(context: Context[None]) -> str:
        """Ask which order."""
        return await context.ask_user("Which one?")

    agent = Agent("clerk", model=ScriptedProvider(call("choose"), "Never."), tools=[choose])

    async with client_of(CrewExecutor(agent)) as client:
        first = await run(client, {"threadId": "t", "runId": "r0", "messages": [user("Refund.")]})
        entries = [entry | {"status": "cancelled"} for entry in answers(first[-1], payload=None)]
        ends = [
            (await run(client, {"threadId": "t", "runId": "r1", "resume": entries}))[-1] for _ in ("first", "again")
        ]

    assert ends[0] == ends[1]


async def test_a_cancelled_interrupt_refuses_the_call() -> None:
    """The protocol's `cancelled` is a refusal of an approval; the model is asked to go on without it."""
    seen = RecordingProvider(call("refund", amount=80), "Not paid.")

    async with client_of(CrewExecutor(Agent("clerk", model=seen, tools=[refund]))) as client:
        first = await run(client, {"threadId": "t", "runId": "r0", "messages": [user("Refund 80.")]})
        entries = [entry | {"status": "cancelled"} for entry in answers(first[-1], payload=None)]
        second = await run(client, {"threadId": "t", "runId": "r1", "resume": entries})

    assert text_of(second) == "Not paid."


async def test_a_thread_is_a_stored_conversation() -> None:
    """The messages that a client sends again do not enter the history a second time."""
    seen = RecordingProvider("Hello Ada.", "You are Ada.")

    async with client_of(CrewExecutor(Agent("clerk", model=seen))) as client:
        first = user("My name is Ada.")
        await run(client, {"threadId": "t", "runId": "r0", "messages": [first]})
        reply = {"id": "r0:1", "role": "assistant", "content": "Hello Ada."}
        await run(client, {"threadId": "t", "runId": "r1", "messages": [first, reply, user("Who am I?")]})

    assert [message.text for message in seen.requests[1].messages] == ["My name is Ada.", "Hello Ada.", "Who am I?"]


async def test_an_unknown_thread_keeps_the_history_of_the_client() -> None:
    """A client that brings earlier messages loses none of them."""
    seen = RecordingProvider("You are Ada.")
    messages = [user("My name is Ada."), {"id": "a", "role": "assistant", "content": "Hello."}, user("Who am I?")]

    async with client_of(CrewExecutor(Agent("clerk", model=seen))) as client:
        await run(client, {"threadId": "t", "runId": "r0", "messages": messages})

    assert [message.text for message in seen.requests[0].messages] == ["My name is Ada.", "Hello.", "Who am I?"]


async def test_interrupts_in_branches_belong_to_their_subagents() -> None:
    """Each branch is a subagent; it is suspended with its interrupt, and starts again when the run is resumed."""
    clerks = [
        Agent(name, model=ScriptedProvider(call("refund", amount=1), "Done."), tools=[refund]) for name in ("a", "b")
    ]
    executor = CrewExecutor(Crew("shop", agents=clerks, groups=[Parallel("both", branches=clerks)], entry="both"))

    async with client_of(executor) as client:
        first = await run(client, {"threadId": "t", "runId": "r0", "messages": [user("Refund.")]})
        suspended = [event for event in first if event["type"] == "SUBAGENT_FINISHED"]
        assert sorted(event["subagentRunId"] for event in suspended) == ["r0/a", "r0/b"]
        assert {event["outcome"]["type"] for event in suspended} == {"suspended"}
        assert {one["subagentRunId"] for one in first[-1]["outcome"]["interrupts"]} == {"r0/a", "r0/b"}
        second = await run(client, {"threadId": "t", "runId": "r1", "resume": answers(first[-1], payload=True)})

    assert [event["type"] for event in second].count("SUBAGENT_STARTED") == 2
    assert second[-1]["outcome"] == {"type": "success"}


async def test_a_failed_run_ends_with_run_error_and_bad_requests_with_a_status() -> None:
    """Errors that are known before the run starts are 4xx; a failure of the run is the event RUN_ERROR."""
    async with client_of(CrewExecutor(Agent("clerk", model=ScriptedProvider()))) as client:
        failed = await run(client, {"threadId": "t", "runId": "r0", "messages": [user("Hello")]})
        assert failed[-1]["type"] == "RUN_ERROR"
        body = {"threadId": "t", "runId": "r1"}
        no_message = await client.post("/ag-ui", json=body | {"messages": []})
        unknown = await client.post("/ag-ui", json=body | {"resume": [{"interruptId": "x:1", "status": "resolved"}]})
        bad_id = await client.post("/ag-ui", json=body | {"threadId": "a/b", "messages": [user("Hello")]})
        no_crew = await client.post("/ag-ui/other", json=body | {"threadId": "u", "messages": [user("Hello")]})

    assert [answer.status_code for answer in (no_message, unknown, bad_id, no_crew)] == [422, 404, 422, 422]


async def test_threads_and_interrupts_belong_to_their_principal() -> None:
    """Another principal can neither continue a thread nor answer its interrupts, nor learn that they exist."""
    agent = Agent("clerk", model=ScriptedProvider(call("refund", amount=80), "It is paid."), tools=[refund])
    tokens = (token("ada"), token("eve"))

    async with client_of(CrewExecutor(agent), {}, tokens=tokens) as client:
        client.headers["Authorization"] = f"Bearer {secret_of('ada')}"
        first = await run(client, {"threadId": "t", "runId": "r0", "messages": [user("Refund 80.")]})
        client.headers["Authorization"] = f"Bearer {secret_of('eve')}"
        resume = answers(first[-1], payload=True)
        stolen = await client.post("/ag-ui", json={"threadId": "t", "runId": "r1", "resume": resume})
        joined = await client.post("/ag-ui", json={"threadId": "t", "runId": "r2", "messages": [user("Hi")]})

    assert (stolen.status_code, joined.status_code) == (404, 409)


def mapped(*events: Any) -> list[dict[str, Any]]:
    """The events that a mapper makes of these."""
    mapper = AgUiMapper("t", "r")
    made = [mapper.start("r"), *(one for event in events for one in mapper.map(event))]

    for event in made:
        PROTOCOL.validate_python(event)

    return made


def replied(text: str) -> Replied:
    return Replied(run_id="r", agent="a", message=AssistantMessage(text, id="r:1"), usage=Usage(), tokens=1)


def delta(text: str, channel: Any = "text") -> TextDelta:
    return TextDelta(run_id="r", agent="a", text=text, channel=channel)


def test_calls_with_one_provider_id_have_their_own_ids() -> None:
    """A provider may repeat an id in a reply: a client would take the second call for the first."""
    calls = tuple(ToolCall(id="same", name="refund", arguments=f"[{amount}]") for amount in (1, 2))
    message = AssistantMessage("", id="r:1", calls=calls)
    events = mapped(Replied(run_id="r", agent="a", message=message, usage=Usage(), tokens=1))
    assert [event["toolCallId"] for event in events if event["type"] == "TOOL_CALL_START"] == ["r:1.0", "r:1.1"]


def test_pieces_that_were_lost_are_completed_by_the_reply() -> None:
    """A reader that connects late, or loses pieces, gets the rest, or the whole text in a message of its own."""
    late = mapped(delta("It "), replied("It is paid."))
    assert text_of(late) == "It is paid."
    lost = mapped(delta("is "), replied("It is paid."))
    kinds = [event["type"] for event in lost]
    assert kinds.count("TEXT_MESSAGE_START") == 2
    discarded = next(event for event in lost if event.get("name") == "crew.message_discarded")
    assert discarded["value"] == {"messageId": "r:1"}
    last = [event["messageId"] for event in lost if event["type"] == "TEXT_MESSAGE_CONTENT"][-1]
    assert last == "r:2"


def test_thinking_is_reasoning_and_ends_before_the_text() -> None:
    """Thinking and text are separate messages; a restart discards what was sent."""
    made = mapped(
        AgentStarted(run_id="r", agent="a"),
        Asked(run_id="r", agent="a", provider="p", model="m", messages=1, tokens_estimated=1),
        delta("Hm.", "thinking"),
        delta("Wrong."),
        delta("", "restart"),
        delta("Right."),
        replied("Right."),
        Warned(run_id="r", text="Careful."),
        RunFinished(run_id="r", stop_reason="completed", output="Right.", usage=Usage()),
    )
    kinds = [event["type"] for event in made]
    assert kinds[:6] == [
        "RUN_STARTED",
        "STEP_STARTED",
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_CONTENT",
        "REASONING_MESSAGE_END",
    ]
    assert kinds[-2:] == ["STEP_FINISHED", "RUN_FINISHED"]
    assert [event["name"] for event in made if event["type"] == "CUSTOM"] == ["crew.message_discarded", "crew.warned"]
    check_balance(made)
