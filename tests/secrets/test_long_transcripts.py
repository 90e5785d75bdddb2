"""Secrets in long conversations: a turn searches what is new, and everything once if a secret is new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import SecretStr

from crew import Agent, CrewExecutor, RunResult, ScriptedProvider
from crew.messages import Message, Transcript, UserMessage
from crew.secrets.scrubbing import _ValueScrubber


@dataclass
class Deps:
    key: SecretStr


async def test_turn_searches_only_new_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the conversation is; a new secret is searched for, and replaced, in all messages."""
    searched: list[Message] = []
    search = _ValueScrubber._scrub_message

    def count(self: Any, message: Message) -> Any:
        searched.append(message)
        return search(self, message)

    monkeypatch.setattr(_ValueScrubber, "_scrub_message", count)
    executor = CrewExecutor(Agent("a", model=ScriptedProvider(lambda request: "The word is marmalade-7.")))
    result: RunResult | None = None
    counts: list[int] = []

    for turn in range(60):
        searched.clear()
        result = await executor.execute(f"Question {turn}.", history=result, deps=Deps(SecretStr("sk-abcdefgh")))
        counts.append(len(searched))

    assert max(counts[5:]) <= 4
    assert result is not None
    result = await executor.execute("More.", history=result, deps=Deps(SecretStr("marmalade-7")))
    assert not any("marmalade-7" in message.text for message in result.transcript)


def test_transcript_looks_at_a_message_once_for_each_mark() -> None:
    """Also if a transcript that shares its list was looked at before; a change is never skipped."""
    seen: list[str] = []

    def change(message: Message) -> Message:
        seen.append(message.text)
        return UserMessage("new") if message.text == "old" else message

    mark, other = object(), object()
    whole = Transcript([UserMessage("a"), UserMessage("b")])
    assert whole.mapped(change, mark) is whole
    longer = whole.append(UserMessage("c"))
    fork = whole.append(UserMessage("old"))
    seen.clear()
    assert longer.mapped(change, mark) is longer
    assert seen == ["c"]
    assert [message.text for message in fork.mapped(change, mark)] == ["a", "b", "new"]
    seen.clear()
    assert longer.mapped(change, other) is longer
    assert seen == ["a", "b", "c"]
    seen.clear()
    assert whole.mapped(change, other) is whole
    assert longer.append(UserMessage("old")).mapped(change, other)[-1].text == "new"
    assert seen == ["old"]
