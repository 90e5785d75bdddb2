"""Outcomes are reported truthfully: answers, results and effects."""

from __future__ import annotations

from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, Parallel, ScriptedProvider
from crew.interfaces import ModelReply
from crew.runs.events import Warned
from tests.support.stores import CheckedStore


@pytest.mark.parametrize(
    ("replies", "reason", "warnings"),
    [
        (["Whole."], "stop", []),
        ([ModelReply(text="Half an ans", finish_reason="length")], "length", ["was cut off"]),
        ([ModelReply(text="I can't.", finish_reason="refusal")], "refusal", ["is a refusal"]),
        ([ModelReply(text="Some", finish_reason="filter")], "filter", ["content filter"]),
        (["", ""], "empty", []),
    ],
    ids=["complete", "cut off", "refused", "filtered", "twice empty"],
)
async def test_result_shows_why_the_answer_ended(
    replies: list[Any], reason: str, warnings: list[str], store: CheckedStore
) -> None:
    """An incomplete answer is not only `completed`: `finish_reason` and a warning show it, in branches too."""
    agent = Agent("writer", model=ScriptedProvider(*replies))
    result = await CrewExecutor(agent, store=store).execute("Write.")
    assert (result.stop_reason, result.finish_reason) == ("completed", reason)
    texts = [event.text for event in store.events if isinstance(event, Warned)]
    assert len(texts) == len(warnings)
    assert all(words in text for words, text in zip(warnings, texts, strict=True))

    crew = Crew("c", agents=[agent], groups=[Parallel("g", branches=[agent])], entry="g")
    joined = await CrewExecutor(crew).execute("Write.")
    assert (joined.finish_reason, joined.branches[0].finish_reason) == ("stop", reason)


async def test_unfinished_run_has_no_finish_reason() -> None:
    """Only a final answer has one."""
    agent = Agent("a", model=ScriptedProvider("Which one?"), wait_for_signal=True)
    assert (await CrewExecutor(agent).execute("Pay.")).finish_reason is None
