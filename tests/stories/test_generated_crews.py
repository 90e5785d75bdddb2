"""Generated crews: every invariant holds for any graph, model behaviour, answers and interruptions."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TypeGuard

import pytest
from hypothesis import given, note, settings

from crew import InputValidator
from crew.message_rules import validate
from crew.messages import Usage, UserMessage
from crew.runs import Event
from crew.runs.events import (
    AgentPrepared,
    AgentStarted,
    BranchFinished,
    BranchStarted,
    GuardrailChecked,
    Replied,
    RunFinished,
    Summarised,
    ToolReturned,
)
from crew.runs.state import total_counters
from crew.transitions.result import without_open_calls
from tests.support.clocks import run_in_virtual_time
from tests.support.generated_crews import (
    ROUNDS,
    CallCounts,
    InterruptingStore,
    Sketch,
    hostile_sketches,
    is_finished,
    replies_of,
    run_to_end,
    sketches,
)
from tests.support.providers import CheckedModels


@pytest.mark.filterwarnings("ignore::UserWarning")  # some sketches have a setting that can't take effect
@settings(max_examples=settings().max_examples * 2 // 5)
@given(sketch=sketches)
def test_every_generated_crew_keeps_every_invariant(sketch: Sketch) -> None:
    """Tools, handoffs, routes, branches, called agents, pauses, failures, cancels and crashes, with any policy: every
    request is valid and within the limit, every state survives its JSON, committed work is not repeated, usage adds
    up, and at the end nothing is active."""
    models, counts = CheckedModels(sketch.limit), CallCounts()
    store = InterruptingStore(sketch.limit, sketch.interruptions)

    async def story() -> None:
        end = await run_to_end(sketch, models, store, counts)
        assert len(asyncio.all_tasks()) == 1
        assert is_finished(end)
        replied = [event for event in store.events if isinstance(event, Replied | Summarised) or is_discarded(event)]
        usage = sum((event.usage for event in replied), Usage())
        assert total_counters(end).usage == usage
        assert sum((part for part in total_counters(end).by_agent.values()), Usage()) == usage
        assert len(replied) <= ROUNDS
        history = [entry.message for entry in without_open_calls(end.history.entries)]
        InputValidator().check("And now?", history=history)
        assert not validate([*history, UserMessage("And now?")])

    run_in_virtual_time(story())
    note("\n".join(models.turns))
    assert not models.violations
    assert not store.violations
    assert not counts.too_often
    began = Counter(event.branch for event in store.events if isinstance(event, BranchStarted))
    assert began == Counter(event.branch for event in store.events if isinstance(event, BranchFinished))
    assert max(began.values(), default=1) == 1
    assert len([event for event in store.events if isinstance(event, RunFinished)]) == 1
    started = Counter((e.run_id, e.agent) for e in store.events if isinstance(e, AgentStarted))
    assert not Counter((e.run_id, e.agent) for e in store.events if isinstance(e, AgentPrepared)) - started
    checks = Counter((e.key, e.guardrail) for e in store.events if isinstance(e, GuardrailChecked) and e.key)
    assert max(checks.values(), default=1) == 1
    numbers = [event.sequence for event in store.events]
    assert numbers == sorted(set(numbers))


@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(max_examples=settings().max_examples // 5)
@given(sketch=hostile_sketches)
def test_no_fact_is_lost_if_policies_and_filters_fail(sketch: Sketch) -> None:
    """Every reply that a model gave and every result of a call is committed, once: nothing runs again, nothing is in
    doubt, and the invariants hold in every state, whatever user code fails between a fact and the next request."""
    models, counts = CheckedModels(sketch.limit), CallCounts()
    store = InterruptingStore(sketch.limit, {})
    end = run_in_virtual_time(run_to_end(sketch, models, store, counts))
    note("\n".join(models.turns))
    assert is_finished(end)
    assert not end.in_doubt
    assert not models.violations
    assert not store.violations
    returned = Counter((e.run_id, e.result.call_id) for e in store.events if isinstance(e, ToolReturned))
    assert not counts.ran - returned
    assert not counts.too_often
    assert replies_of(sketch, models) == len([event for event in store.events if isinstance(event, Replied)])


def is_discarded(event: Event) -> TypeGuard[GuardrailChecked]:
    """Whether a reply was billed and discarded, because a guardrail beside the request did not accept the input."""
    return isinstance(event, GuardrailChecked) and event.usage.requests > 0
