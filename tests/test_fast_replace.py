"""`fast_replace` behaves as `dataclasses.replace` for the values that a run changes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from crew import Agent
from crew.fast_replace import fast_replace, replace_unchecked
from crew.history import History, View
from crew.messages import AssistantMessage, ToolCall, Usage, UserMessage
from crew.runs import CallTools, Limits, OpenCall, RunCounters, RunState
from crew.runs.events import Replied, ToolsStarted

VALUES: list[tuple[Any, dict[str, Any]]] = [
    (RunState(run_id="r", conversation_id="c", crew="x", agent="a", limits=Limits()), {"agent": "b", "sequence": 7}),
    (RunCounters(), {"rounds": 3, "by_agent": {"a": Usage(requests=1)}}),
    (View(turn=2), {"hidden_before": 5}),
    (History(goal="g"), {"size": 4}),
    (AssistantMessage("text", id="m"), {"time": 2.5}),
    (OpenCall(call=ToolCall(id="c", name="look"), key="r:1.0"), {"status": "done"}),
    (CallTools(calls=()), {"declined": ("x",)}),
    (Replied(message=AssistantMessage("text"), usage=Usage(), tokens=3), {"sequence": 9, "at": 1.0}),
    (ToolsStarted(calls=()), {"agent": "b"}),
]


@pytest.mark.parametrize(("value", "changes"), VALUES, ids=lambda value: type(value).__name__)
def test_result_equals_that_of_dataclasses_replace(value: Any, changes: dict[str, Any]) -> None:
    """The copy has the changed fields and shares the others; the value is unchanged."""
    before = dataclasses.replace(value)
    assert fast_replace(value, **changes) == dataclasses.replace(value, **changes)
    assert value == before


def test_cached_bytes_are_not_copied() -> None:
    """A message caches its rendered bytes outside its fields: a changed copy must not have those of the original."""
    message = UserMessage("text", id="m")
    message.cache()["tokens"] = {}
    assert fast_replace(message, text="other").cache() == {}


def test_unknown_field_is_an_error() -> None:
    """As a last resort: mypy reports it first."""
    with pytest.raises(KeyError):
        fast_replace(View(), nothing=1)  # type: ignore[call-arg]


def test_values_that_check_themselves_are_refused() -> None:
    """A `__post_init__` would be skipped, and with it the checks of the value."""
    with pytest.raises(TypeError, match=r"use dataclasses\.replace"):
        fast_replace(Limits(), rounds=-5)


def test_an_unchecked_copy_keeps_what_was_built() -> None:
    """For changes that were checked before: `__post_init__` is not called."""
    agent = Agent("a", output=list[int])
    copy = replace_unchecked(agent, model="scripted:Hi.")
    assert (copy.model, copy.name, agent.model) == ("scripted:Hi.", "a", "")
    assert copy.output_type is agent.output_type
