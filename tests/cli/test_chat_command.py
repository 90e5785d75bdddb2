"""`crew chat`: a conversation in the terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from crew.cli import main

CREW = """\
import os, signal
from crew import Agent, Context, ScriptedProvider, call, tool
from crew.agents import Refused, guardrail

@tool(approval="always")
def pay(amount: int) -> str:
    "Pay."
    return f"paid {amount}"

@tool(asks=True)
def choose(context: Context) -> str:
    "Ask twice."
    first = context.ask_user("Which account?", choices=["checking", "savings"])
    return f"{first}: {context.ask_user('A note?')}"

@tool
def broken() -> str:
    "End the process."
    raise SystemExit(1)

@guardrail("input")
def no_poems(context, text):
    return Refused("I write no poems.") if "poem" in text else None

def reply(request):
    last = request.messages[-1]

    if last.role == "tool":
        return last.results[0].text
    if "pay" in last.text:
        return call("pay", amount=3)
    if "choose" in last.text:
        return call("choose")
    if "interrupt" in last.text and not os.path.exists(__file__ + ".interrupted"):
        open(__file__ + ".interrupted", "w").close()
        os.kill(os.getpid(), signal.SIGINT)
    if "break" in last.text:
        return call("broken")
    if "fail" in last.text:
        raise ValueError("boom")

    return f"I see {len(request.messages)} messages."

cashier = Agent("cashier", model=ScriptedProvider(reply), tools=[pay, choose, broken], guardrails=[no_poems])
"""

Chat = Callable[..., str]

EOF = "\x04"
"""Ctrl-D, typed instead of a line."""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "crew_for_chats.py"
    path.write_text(CREW, encoding="utf-8")
    return path


@pytest.fixture
def chat(target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Chat:
    """A function that types lines into `crew chat` and returns what was printed to stdout."""

    def type_lines(*lines: str, store: bool = False) -> str:
        typed = iter(lines)

        def read(prompt: str) -> str:
            line = next(typed, EOF)
            return _end_input() if line == EOF else line

        monkeypatch.setattr("builtins.input", read)
        options = ["--store", str(target.with_name("runs.db")), "--conversation", "c"] if store else []
        assert main(["chat", str(target), *options]) == 0
        return capsys.readouterr().out

    return type_lines


def test_chat_remembers_earlier_turns(chat: Chat) -> None:
    """Without a store, for the session."""
    assert chat("Hello.", "And now?") == "I see 1 messages.\nI see 3 messages.\n"


def test_stored_conversation_is_continued_by_another_chat(chat: Chat) -> None:
    """With --store and --conversation."""
    assert chat("Hello.", store=True) == "I see 1 messages.\n"
    assert chat("And now?", "/quit", "not read", store=True) == "I see 3 messages.\n"


def test_pause_is_answered_at_the_prompt(chat: Chat) -> None:
    """The turn goes on with the answer."""
    assert chat("Please pay.", "yes", "Thanks.") == "paid 3\nI see 5 messages.\n"


def test_pause_of_an_earlier_chat_is_asked_again(chat: Chat) -> None:
    """A chat that ended at the question leaves the turn paused; the next chat begins with it."""
    assert chat("Please pay.", store=True) == ""
    assert chat("yes", "Thanks.", store=True) == "paid 3\nI see 5 messages.\n"


def test_next_question_of_an_earlier_chat_is_asked_too(chat: Chat) -> None:
    """A tool that asks twice: the chat that continues the turn asks both questions before it reads a message."""
    assert chat("Please choose.", store=True) == ""
    assert chat("3", "2", "rent", "Thanks.", store=True) == "savings: rent\nI see 5 messages.\n"


def test_retry_asks_a_question_again_that_was_not_answered(
    target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also after the end of the chat that asked it first: Ctrl-D at the question keeps the turn."""
    typed = iter(["Please pay.", EOFError(), "/quit", EOFError(), "/retry", "yes"])

    def read(prompt: str) -> str:
        line = next(typed, EOFError())

        if isinstance(line, EOFError):
            raise line

        return line

    monkeypatch.setattr("builtins.input", read)
    command = ["chat", str(target), "--store", str(target.with_name("runs.db")), "--conversation", "c"]
    assert main(command) == 0
    assert "/retry asks again" in capsys.readouterr().err
    assert main(command) == 0
    assert capsys.readouterr().out == "paid 3\n"


def test_answer_that_the_tool_does_not_accept_is_asked_for_again(chat: Chat) -> None:
    """Arguments of a wrong type; the next line is an answer and no message that cancels the turn."""
    assert chat("Please pay.", 'edit {"amount": "much"}', "yes", "Thanks.") == "paid 3\nI see 5 messages.\n"


def test_words_of_a_refused_input_are_printed(
    target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `crew chat` and by `crew run`, also with --quiet: without them, nobody knows why there is no answer."""
    typed = iter(["A poem, please."])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed, None) or _end_input())
    assert main(["chat", str(target)]) == 0
    assert "crew: stopped: I write no poems.\n" in capsys.readouterr().err
    assert main(["run", str(target), "A poem, please.", "--quiet"]) == 5
    assert capsys.readouterr().err == "crew: stopped: I write no poems.\n"


def _end_input() -> str:
    raise EOFError


def test_failed_turn_is_resumed_by_another_chat(chat: Chat, target: Path) -> None:
    """/retry resumes the last turn of the stored conversation."""
    assert chat("Please fail.", store=True) == ""
    target.write_text(CREW.replace('raise ValueError("boom")', 'return "Repaired."'), encoding="utf-8")
    assert chat("/retry", store=True) == "Repaired.\n"


def test_conversation_of_another_crew_is_refused_at_once(
    chat: Chat, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before it asks for the answers that the other crew waits for."""
    chat("Please pay.", store=True)
    target.write_text(CREW.replace('Agent("cashier"', 'Agent("teller"'), encoding="utf-8")
    assert main(["chat", str(target), "--store", str(target.with_name("runs.db")), "--conversation", "c"]) == 2
    assert "'c' belongs to the crew 'cashier', not to 'teller'; use another id" in capsys.readouterr().err


def test_why_lists_all_messages_of_the_last_request(chat: Chat) -> None:
    """With their texts, and also those of earlier chats."""
    chat("Hello.", store=True)
    out = chat("And now?", "/why", store=True)
    assert "3 messages sent, 0 left out" in out
    assert "● #0 user: Hello.  kept" in out
    assert "● #1 cashier: I see 1 messages.  kept" in out


def test_commands_show_history_requests_and_cost(chat: Chat) -> None:
    """/history, /why, /cost, /retry and /help; an unknown command is not sent to the crew."""
    out = chat("Hello.", "/history", "/why", "/cost", "/retry", "/help", "/unknown")
    assert "user: Hello.\ncashier: I see 1 messages.\n" in out
    assert "cashier · " in out
    assert "prefix: none, this is the first request of the agent" in out
    assert "1 turn, 1 request, " in out
    assert "I see 3 messages." in out
    assert "/why      what the last request held" in out
    assert "I see 5 messages." not in out


def test_cost_has_failed_and_unanswered_turns(chat: Chat) -> None:
    """Their requests are billed too: one before the failure of a tool, and one before a question."""
    assert "2 turns, 2 requests, " in chat("Hello.", "Please break.", "/cost")
    assert "1 turn, 1 request, " in chat("Please pay.", EOF, "/cost")


def test_conversation_without_a_store_is_lost_with_a_warning(
    target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an id, the user expects to continue it later; without one, the session is enough."""
    monkeypatch.setattr("builtins.input", lambda prompt: _end_input())
    options = [[], ["--conversation", "c"], ["--conversation", "c", "--store", str(target.with_name("runs.db"))]]
    warned = []

    for one in options:
        assert main(["chat", str(target), *one]) == 0
        warned.append(
            "'c' is kept in memory, and lost at the end of this chat; pass --store" in capsys.readouterr().err
        )

    assert warned == [False, True, False]


def test_failed_turn_leaves_the_conversation_open(chat: Chat) -> None:
    """The error is printed, and the next turn continues."""
    assert chat("Hello.", "Please fail.", "Hello?").splitlines()[-1] == "I see 4 messages."


def test_ctrl_c_cancels_the_turn_and_keeps_the_conversation(target: Path) -> None:
    """At a terminal: the interrupted turn can be retried, and its question stays in the conversation."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "crew.cli", "chat", str(target)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True)
    os.close(theirs)
    os.write(ours, b"Hello.\nPlease interrupt.\n/retry\nAnd now?\n/quit\n")
    printed = b""

    while True:
        try:
            piece = os.read(ours, 4_096)
        except OSError:
            break  # the terminal is closed

        if not piece:
            break

        printed += piece

    os.close(ours)
    assert process.wait(timeout=30) == 0
    text = printed.decode()
    assert "the turn is cancelled; the conversation goes on" in text
    assert "cashier: I see 1 messages.\r\n■ completed" in text, "a terminal shows events and streams the replies"
    assert "I see 3 messages." in text
    assert "I see 5 messages." in text


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("--agent", "nobody", "has no agent 'nobody'. Available: cashier."),
        ("--agent", "a b", "The agent must be a name"),
        ("--model", "gpt", "a model is provider:name"),
    ],
)
def test_option_that_no_turn_can_have_is_refused_before_the_first_message(
    target: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, problem: str
) -> None:
    """The chat does not begin: no prompt, exit code 2."""
    assert main(["chat", str(target), option, value]) == 2
    assert problem in capsys.readouterr().err


def test_a_terminal_shows_the_output_and_not_only_its_wrapper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The streamed reply of an agent with `output=list[int]` is an object around the list."""
    path = tmp_path / "wrapped_for_chats.py"
    path.write_text(
        "from crew import Agent, ScriptedProvider\n"
        "agent = Agent('a', model=ScriptedProvider('{\"value\": [1]}'), output=list[int])\n"
    )
    monkeypatch.setattr("crew.cli.chat_command.stdout_is_terminal", lambda: True)
    lines = iter(["hi"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines, None) or _end_input())
    assert main(["chat", str(path)]) == 0
    assert capsys.readouterr().out == "[\n  1\n]\n"


def test_metadata_is_stored_with_each_turn(
    target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`crew runs --metadata` finds the turns by it."""
    options = ["--store", str(target.with_name("runs.db")), "--metadata", "shop=south"]
    lines = iter(["hi", "ho"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines, None) or _end_input())
    assert main(["chat", str(target), *options]) == 0
    capsys.readouterr()
    assert main(["runs", *options]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
