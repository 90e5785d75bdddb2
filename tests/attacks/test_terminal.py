"""Text of models, tools and files can't control the terminal or disguise what a person approves."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from crew import Agent, CrewExecutor, ScriptedProvider, tool
from crew.cli import main
from crew.cli.escaped_output import EscapedStream
from crew.interfaces import ModelReply
from crew.messages import ToolCall

HOSTILE = "\x1b[2J\x1b]0;title\x07 \x9b31m a\rb \u202egnp.exe\u202c \u2066x\u2069 \x08\x7f end"
CONTROLS = set("\x1b\x07\x9b\r\u202e\u202c\u2066\u2069\x08\x7f")

CREW = '''
from crew import Agent, Crew, Route, ScriptedProvider, call, tool

HOSTILE = {hostile!r}

@tool
def read() -> str:
    """Read."""
    return HOSTILE

@tool(approval="always")
def pay(to: str, amount: int, note: str = "") -> str:
    """Pay."""
    return "paid"

crew = Crew("c", agents=[
    Agent("a", model=ScriptedProvider(call("read"), HOSTILE), tools=[read], routes=[Route("x" + HOSTILE, to=None)]),
])
failing = Agent("a", model=ScriptedProvider(ValueError(HOSTILE)))
payer = Agent("a", model=ScriptedProvider(call("pay", to=HOSTILE, amount=5, note="n" * 10_000)), tools=[pay])
'''


@pytest.fixture
def crew_file(tmp_path: Path) -> str:
    path = tmp_path / "hostile_crew.py"
    path.write_text(CREW.format(hostile=HOSTILE))
    return str(path)


COMMANDS = {
    "run": ["run", "{}", "go"],
    "stream": ["run", "{}", "go", "--stream"],
    "json": ["run", "{}", "go", "--json"],
    "trace": ["run", "{}", "go", "--trace"],
    "failing": ["run", "{}:failing", "go"],
    "pause": ["run", "{}:payer", "go"],
    "graph": ["show", "{}"],
    "target": ["run", HOSTILE, "go"],
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_no_control_character_is_printed(
    arguments: list[str], crew_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Replies, results, errors, approvals, graphs and names of files: controls and direction marks are escaped."""
    main([argument.replace("{}", crew_file) for argument in arguments])
    printed = "".join(capsys.readouterr())
    assert not CONTROLS & set(printed)
    assert "202e" in printed or "8238" in printed, "the text itself is shown"


def test_json_output_with_controls_is_valid_json(crew_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The escapes are those of JSON, so that a program reads the text as the model wrote it."""
    assert main(["run", crew_file, "go", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["output"] == HOSTILE


def test_line_ends_stay_also_in_pieces() -> None:
    """A carriage return before a line feed is a line end; alone it would overwrite the line."""
    stream = io.StringIO()
    escaped = EscapedStream(stream)

    for piece in ("one\r", "\ntwo\r\n", "pay 1000000\r", "pay 5      \n", "\ttab"):
        escaped.write(piece)

    assert stream.getvalue() == "one\ntwo\npay 1000000\\u000dpay 5      \n\ttab"


async def test_approval_shows_the_validated_arguments_line_by_line() -> None:
    """Not the raw JSON, which can hide values: duplicate keys, a carriage return, very long values."""

    @tool(approval="always")
    async def pay(to: str, amount: int, note: str = "") -> str:
        """Pay."""
        return "paid"

    raw = '{"amount": 5,\r "to": "bob\\u202e", "amount": "1000000", "note": "%s"}' % ("n" * 2_000)
    reply = ModelReply(calls=(ToolCall(id="", name="pay", arguments=raw),))
    agent = Agent("clerk", model=ScriptedProvider(reply), tools=[pay])
    pause = (await CrewExecutor(agent).execute("Pay bob 5.")).pauses[0]
    question, to, amount, note = pause.text.splitlines()
    assert question == "May clerk call pay?"
    assert to == '  to: "bob\\u202e"'
    assert amount == "  amount: 1000000"
    assert note.startswith('  note: "nnn')
    assert note.endswith("… (2,002 characters)")
    assert pause.arguments == {"to": "bob\u202e", "amount": 1_000_000, "note": "n" * 2_000}
