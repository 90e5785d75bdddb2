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
from crew import Agent, ScriptedProvider, call, tool

@tool(approval="always")
def pay(amount: int) -> str:
    "Pay."
    return f"paid {amount}"

def reply(request):
    last = request.messages[-1]

    if last.role == "tool":
        return last.results[0].text
    if "pay" in last.text:
        return call("pay", amount=3)
    if "interrupt" in last.text and not os.path.exists(__file__ + ".interrupted"):
        open(__file__ + ".interrupted", "w").close()
        os.kill(os.getpid(), signal.SIGINT)
    if "fail" in last.text:
        raise ValueError("boom")

    return f"I see {len(request.messages)} messages."

cashier = Agent("cashier", model=ScriptedProvider(reply), tools=[pay])
"""

Chat = Callable[..., str]


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
            try:
                return next(typed)
            except StopIteration:
                raise EOFError from None

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


def test_commands_show_history_requests_and_cost(chat: Chat) -> None:
    """/history, /why, /cost, /retry and /help; an unknown command is not sent to the crew."""
    out = chat("Hello.", "/history", "/why", "/cost", "/retry", "/help", "/unknown")
    assert "user: Hello.\ncashier: I see 1 messages.\n" in out
    assert "cashier · " in out
    assert "prefix: none, this is the first request of the agent" in out
    assert "1 turns, 1 requests" in out
    assert "I see 3 messages." in out
    assert "/why      what the last request held" in out
    assert "I see 5 messages." not in out


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
    assert "I see 3 messages." in text
    assert "I see 5 messages." in text
