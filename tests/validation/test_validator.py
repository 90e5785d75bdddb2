"""`InputValidator` accepts valid input and reports all violations of invalid input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crew import Agent, CrewExecutor, InputValidator, Limits, ScriptedProvider, call
from crew.errors import InvalidInput
from crew.messages import AssistantMessage, SystemMessage, ToolCall, ToolMessage, ToolResult, UserMessage
from crew.simulator import read_recording
from tests.support.runs import executor_for
from tests.support.tools import look

USER: dict[str, Any] = {"role": "user", "content": "hi"}
CALLS = [{"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
ASKED: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": CALLS}
FOUND: dict[str, Any] = {"role": "tool", "tool_call_id": "a", "content": "1"}


def nested(depth: int) -> dict[str, Any]:
    value: Any = "core"

    for _ in range(depth):
        value = [value]

    return {"role": "user", "content": value}


BAD: list[tuple[str, dict[str, Any], list[str]]] = [
    ("nothing", {"input": ""}, ["blank"]),
    ("white space", {"input": " \n\t "}, ["blank"]),
    ("no text", {"input": None}, ["type"]),
    ("a number", {"input": 17}, ["type"]),
    ("a list", {"input": ["hi"]}, ["type"]),
    ("bytes", {"input": b"hi"}, ["type"]),
    ("too long by one", {"input": "x" * 10_001}, ["too_long"]),
    ("NUL", {"input": "a\0b"}, ["control"]),
    ("escape", {"input": "a\x1bb"}, ["control"]),
    ("delete", {"input": "a\x7fb"}, ["control"]),
    ("vertical tab", {"input": "a\x0bb"}, ["control"]),
    ("high surrogate", {"input": "a\ud800b"}, ["unicode"]),
    ("low surrogate", {"input": "\udfff"}, ["unicode"]),
    ("long, NUL and surrogate", {"input": "\0\ud800" + "x" * 10_000}, ["too_long", "unicode", "control"]),
    ("blank and NUL", {"input": "", "run_id": "no id", "agent": "a b"}, ["blank", "agent", "run_id"]),
    ("agent with a space", {"agent": "no agent"}, ["agent"]),
    ("agent too long by one", {"agent": "a" * 129}, ["agent"]),
    ("agent without letters", {"agent": ""}, ["agent"]),
    ("agent of another type", {"agent": 5}, ["agent"]),
    ("run id with a slash", {"run_id": "a/b"}, ["run_id"]),
    ("run id too long by one", {"run_id": "r" * 129}, ["run_id"]),
    ("run id of another type", {"run_id": 5}, ["run_id"]),
    ("history of another type", {"history": 5}, ["type"]),
    ("history as text", {"history": "hi"}, ["type"]),
    ("history as a dict", {"history": USER}, ["type"]),
    ("1,001 messages", {"history": [USER] * 1_001}, ["too_many"]),
    ("message of another type", {"history": [5]}, ["message"]),
    ("no message", {"history": [None]}, ["message"]),
    ("no role", {"history": [{"content": "hi"}]}, ["message"]),
    ("unknown role", {"history": [{"role": "robot", "content": "hi"}]}, ["message"]),
    ("role of another type", {"history": [{"role": 5, "content": "hi"}]}, ["message"]),
    ("content of another type", {"history": [{"role": "user", "content": 5}]}, ["message"]),
    ("no content", {"history": [{"role": "user"}]}, ["message"]),
    ("content as bytes", {"history": [{"role": "user", "content": b"hi"}]}, ["message"]),
    ("block of another type", {"history": [{"role": "user", "content": [5]}]}, ["message"]),
    ("text of another type", {"history": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, ["message"]),
    ("deep nesting", {"history": [nested(21)]}, ["message"]),
    ("very deep nesting", {"history": [nested(5_000)]}, ["message"]),
    ("message too long by one", {"history": [{"role": "user", "content": "x" * 100_001}]}, ["too_long"]),
    ("NUL in a message", {"history": [{"role": "assistant", "content": "\0"}]}, ["control"]),
    ("surrogate in a result", {"history": [USER, ASKED, {**FOUND, "content": "\ud800"}]}, ["unicode"]),
    ("result without an id", {"history": [{"role": "tool", "content": "1"}]}, ["message"]),
    ("call without a function", {"history": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, ["message"]),
    ("call without an id", {"history": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, ["message"]),
    (
        "image without a source",
        {"history": [{"role": "user", "content": [{"type": "image", "source": 5}]}]},
        ["message"],
    ),
    (
        "input that is no JSON",
        {
            "history": [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {1, 2}}]}
            ]
        },
        ["message"],
    ),
    ("message object with a number", {"history": [UserMessage(5)]}, ["type"]),  # type: ignore[arg-type]
    ("message object with calls of another type", {"history": [AssistantMessage("a", calls=[1])]}, ["message"]),  # type: ignore[arg-type]
    ("message object with results as text", {"history": [ToolMessage("a")]}, ["message"]),  # type: ignore[arg-type]
    ("message object without results", {"history": [ToolMessage(None)]}, ["message"]),  # type: ignore[arg-type]
    ("message object with images as text", {"history": [UserMessage("a", images="b")]}, ["message"]),  # type: ignore[arg-type]
    ("message object with an id of another type", {"history": [SystemMessage("a", id=5)]}, ["message"]),  # type: ignore[arg-type]
    (
        "message object with a call id of another type",
        {
            "history": [
                AssistantMessage(calls=(ToolCall(id=5, name="f"),))  # type: ignore[arg-type]
            ]
        },
        ["message"],
    ),
    (
        "our arguments of another type",
        {
            "history": [
                AssistantMessage(calls=(ToolCall(id="a", name="f", arguments={}),))  # type: ignore[arg-type]
            ]
        },
        ["type"],
    ),
    (
        "three at once",
        {"history": [5, USER, {"role": "robot"}, {"role": "user", "content": "\0"}]},
        ["message", "message", "control"],
    ),
]


@pytest.mark.parametrize(("given", "rules"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
async def test_all_violations_are_reported(given: dict[str, Any], rules: list[str]) -> None:
    """Nothing runs; the error holds all violations, and its text is valid UTF-8."""
    executor = executor_for("scripted:hello")

    with pytest.raises(InvalidInput) as caught:
        await executor.execute(**{"input": "hi", **given})

    assert sorted(v.rule for v in caught.value.violations) == sorted(rules)
    str(caught.value).encode()

    with pytest.raises(InvalidInput):
        executor.execute_stream(**{"input": "hi", **given})


def test_there_are_at_least_forty_bad_inputs() -> None:
    """The list above is the specification; cases must not disappear."""
    assert len(BAD) >= 40


@pytest.mark.parametrize(
    "given",
    [
        {"input": "x" * 10_000},
        {"input": "tabs\tand\r\nlines, ünïcödé 漢字 🙂"},
        {"input": UserMessage("hi")},
        {"agent": "solo"},
        {"run_id": "r" * 128},
        {"history": []},
        {"history": [USER] * 1_000},
        {"history": ({"role": "user", "content": "x" * 100_000},)},
        {"history": [USER, ASKED, FOUND]},
        {"history": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    ],
)
async def test_input_at_the_limits_is_accepted(given: dict[str, Any]) -> None:
    """The limits are inclusive."""
    result = await executor_for("scripted:hello").execute(**{"input": "hi", **given})
    assert result.output == "hello"


def violations(validator: InputValidator, **given: Any) -> list[tuple[str, int | None]]:
    with pytest.raises(InvalidInput) as caught:
        validator.check("hi", **given)

    return [(v.rule, v.index) for v in caught.value.violations]


def test_an_index_refers_to_the_given_history() -> None:
    """Items that are merged into one message, or split into two, do not shift later indices."""
    asked = {**ASKED, "tool_calls": [*CALLS, {**CALLS[0], "id": "b"}]}
    history = [USER, asked, FOUND, {**FOUND, "tool_call_id": "b"}, {"role": "user", "content": "\0"}, 5]
    assert violations(InputValidator(), history=history) == [("message", 5), ("control", 4)]


def test_tool_pairs_refuse_reports_broken_pairs() -> None:
    """By default they are repaired; `tool_pairs="refuse"` reports them with the index of the item."""
    strict = InputValidator(tool_pairs="refuse")
    assert strict.check("hi", history=[USER, ASKED, FOUND])
    assert strict.check("hi") == ()
    assert violations(strict, history=[USER, FOUND]) == [("orphan_result", 1)]
    assert violations(strict, history=[USER, ASKED]) == [("unanswered_call", 1)]
    assert violations(strict, history=[USER, ASKED, FOUND, FOUND, ASKED]) == [
        ("duplicate_result", 2),
        ("duplicate_call", 4),
        ("unanswered_call", 4),
    ]
    orphan = ToolMessage((ToolResult(call_id="a", text="1"),))
    assert InputValidator().check("hi", history=[orphan]) == (orphan,)


def test_the_limits_can_be_changed() -> None:
    tight = InputValidator(max_query_chars=1, max_history_messages=1, max_message_chars=1)
    assert tight.check("x", history=[{"role": "user", "content": "y"}])

    with pytest.raises(InvalidInput) as caught:
        tight.check("xx", history=[USER])

    assert [(v.rule, v.value, v.limit) for v in caught.value.violations] == [("too_long", 2, 1), ("too_long", 2, 1)]


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"query": "x" * 10_001}, "max_query_chars"),
        ({"query": "x", "history": [UserMessage("x" * 100_001)]}, "max_message_chars"),
        ({"query": "x", "history": [UserMessage("x")] * 1_001}, "max_history_messages"),
    ],
)
def test_a_limit_names_the_option_that_raises_it(given: dict[str, Any], option: str) -> None:
    """The error says what to do."""
    validator = InputValidator(max_message_chars=100_000)

    with pytest.raises(InvalidInput, match=rf"InputValidator\({option}="):
        validator.check(given["query"], history=given.get("history", ()))


@pytest.mark.parametrize("character", ["\x80", "\x9b", "\x9f", "\x7f"])
def test_c1_control_characters_are_refused(character: str) -> None:
    """A terminal reads them as escape sequences."""
    with pytest.raises(InvalidInput, match="control"):
        InputValidator().check(f"a{character}b")


async def test_messages_of_an_earlier_run_are_not_limited(tmp_path: Path) -> None:
    """A result, its history and a recording continue at any length and size; the new input stays limited."""
    reply = "word \x1b[1m" * 12_000  # longer than a message from outside may be, with a control character
    steps = [call("look", n=n) for n in range(500)]
    agent = Agent("a", model=ScriptedProvider(reply, *steps, lambda _: "Fine."), tools=[look])
    limits, validator = Limits(rounds=None), InputValidator(max_query_chars=20)
    executor = CrewExecutor(agent, history="unbounded", limits=limits, validator=validator)
    result = await executor.execute("More.", history=await executor.execute("Goal."))
    assert len(result.history) > 1_000

    read_recording(result).save(tmp_path / "run.json")
    recorded = read_recording(tmp_path / "run.json").messages

    for history in (result, result.history, recorded):
        continued = await executor.execute("And now?", history=history)
        assert len(continued.history) == len(result.history) + 2

        with pytest.raises(InvalidInput, match="The input has 21 characters; at most 20 are accepted"):
            await executor.execute("x" * 21, history=history)


def test_messages_without_an_id_are_limited_beside_those_of_a_run() -> None:
    """What an outsider adds to a conversation of ours counts alone."""
    ours = [UserMessage(f"Note {n}.", id=f"r:{n}") for n in range(1_500)]
    assert len(InputValidator().check("x", history=[*ours, *[{"role": "user", "content": "x"}] * 1_000])) == 2_500

    with pytest.raises(InvalidInput, match="The history has 1001 messages; at most 1000 are accepted"):
        InputValidator().check("x", history=[*ours, *[{"role": "user", "content": "x"}] * 1_001])
