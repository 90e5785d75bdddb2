"""`Step`: a mutable copy of a state, frozen without loss."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from crew import Agent, CrewExecutor, Limits, ScriptedProvider
from crew.runs import RunState
from crew.runs.events import BaseEvent
from crew.transitions.step import Step

STATE = RunState(run_id="r", conversation_id="c", crew="crew", agent="a", limits=Limits())
PLAN = CrewExecutor(Agent("a", model=ScriptedProvider("done"))).plan


@pytest.mark.parametrize("name", [field.name for field in fields(RunState)])
def test_every_field_of_a_state_survives_a_step(name: str) -> None:
    """A field that `Step` did not copy, or did not freeze, would silently return to its default."""
    value: Any = object()
    state = replace(STATE, **{name: value})
    assert getattr(Step(PLAN, state, BaseEvent()).freeze(), name) is value


def test_a_step_does_not_change_the_state_it_started_from() -> None:
    """A state is a value: another step may start from it."""
    before = replace(STATE)
    step = Step(PLAN, STATE, BaseEvent())
    step.agent, step.next = "b", step.next
    step.set_child("k", STATE)
    step.warn_once("limit")
    assert before == STATE
    assert step.freeze() != before
