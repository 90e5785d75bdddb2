"""Content is exported only by opt-in, as complete JSON."""

import json

from crew import Agent, CrewExecutor, ScriptedProvider, call, tool
from crew.messages import AssistantMessage, SystemMessage, ToolCall, ToolMessage, ToolResult, UserMessage
from crew.telemetry import names
from crew.telemetry.span_attributes import MAX_ATTRIBUTE_CHARS, messages_json


@tool
async def look(order_id: str) -> str:
    """Look an order up."""
    return f"order {order_id} is on its way"


def agent() -> Agent:
    return Agent(
        "a", instructions="Be kind.", model=ScriptedProvider(call("look", order_id="17"), "Sent."), tools=[look]
    )


async def test_no_content_is_exported_by_default(seen) -> None:
    """No input, arguments, results, replies or instructions."""
    await CrewExecutor(agent(), telemetry=seen.telemetry()).execute("Where is order 17, dear?")
    exported = "".join(span.to_json() for span in seen.spans)
    assert not [word for word in ("dear", "on its way", "Sent.", "Be kind", "order_id") if word in exported]


async def test_opt_in_exports_each_kind_as_one_json_attribute(seen) -> None:
    """Messages, reply and instructions on the chat span; arguments and result on the tool span."""
    await CrewExecutor(agent(), telemetry=seen.telemetry(capture_content=True)).execute("Where is order 17?")
    first, last = seen.named("chat")
    assert json.loads(first.attributes[names.INPUT_MESSAGES]) == [
        {"role": "user", "parts": [{"type": "text", "content": "Where is order 17?"}]}
    ]
    assert json.loads(first.attributes[names.INSTRUCTIONS]) == [{"type": "text", "content": "Be kind."}]
    assert [m["role"] for m in json.loads(last.attributes[names.INPUT_MESSAGES])] == ["user", "assistant", "tool"]
    (reply,) = json.loads(last.attributes[names.OUTPUT_MESSAGES])
    assert reply == {"role": "assistant", "parts": [{"type": "text", "content": "Sent."}], "finish_reason": "stop"}
    called = seen.one("execute_tool look")
    assert json.loads(called.attributes[names.TOOL_ARGUMENTS]) == {"order_id": "17"}
    assert called.attributes[names.TOOL_RESULT] == "order 17 is on its way"


def test_long_conversations_are_cut_between_messages() -> None:
    """The newest messages stay, the JSON is complete, and the number of missing ones is given."""
    messages = [UserMessage(f"{number} {'x' * 5_000}") for number in range(50)]
    shown, omitted = messages_json(messages)
    parsed = json.loads(shown)
    assert len(shown) <= MAX_ATTRIBUTE_CHARS
    assert len(parsed) + omitted == 50
    assert parsed[-1]["parts"][0]["content"].startswith("49 ")


def test_long_message_is_cut_inside_its_text() -> None:
    """Ten megabytes are shortened inside the text, so that the JSON is complete."""
    shown, omitted = messages_json([UserMessage("y" * 10_000_000)])
    assert omitted == 0
    assert len(json.loads(shown)[0]["parts"][0]["content"]) < 11_000


def test_every_message_type_is_exported() -> None:
    """System, user, assistant with calls, tool."""
    messages = [
        SystemMessage("s"),
        UserMessage("u"),
        AssistantMessage("", calls=(ToolCall(id="1", name="look", arguments="{}"),)),
        ToolMessage((ToolResult(call_id="1", text="r"),)),
    ]
    parsed = json.loads(messages_json(messages)[0])
    assert [m["role"] for m in parsed] == ["system", "user", "assistant", "tool"]
    assert parsed[2]["parts"] == [{"type": "tool_call", "id": "1", "name": "look", "arguments": "{}"}]
    assert parsed[3]["parts"] == [{"type": "tool_call_response", "id": "1", "response": "r"}]


async def test_many_long_calls_stay_within_the_cap_as_json(seen) -> None:
    """A reply with sixteen calls of nine thousand characters, and one of seventy thousand."""
    long = [call("look", order_id="7" * 9_000) for _ in range(16)]
    script = ScriptedProvider(long, call("look", order_id="7" * 70_000), "Done.")
    agent = Agent("a", model=script, tools=[look])
    await CrewExecutor(agent, telemetry=seen.telemetry(capture_content=True)).execute("Go")

    for span in seen.spans:
        for key in (names.INPUT_MESSAGES, names.OUTPUT_MESSAGES, names.TOOL_ARGUMENTS):
            assert len(span.attributes.get(key, "[]")) <= MAX_ATTRIBUTE_CHARS
            json.loads(span.attributes.get(key, "[]"))

    (reply,) = json.loads(seen.named("chat")[0].attributes[names.OUTPUT_MESSAGES])
    assert reply["parts"][-1]["content"] == f"[… {16 - len(reply['parts']) + 1} more parts]"
