"""Whole crews, generated: whatever the graph, the models, the person and the machine do, the laws hold everywhere."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given, note, settings

from crew import InputValidator
from crew.message_rules import validate
from crew.messages import Usage, UserMessage
from crew.runs.events import BranchFinished, BranchStarted, Replied, RunFinished, Summarised
from crew.runs.state import total_counters
from crew.transitions.result import without_open_calls
from tests.support.clocks import run_in_virtual_time
from tests.support.generated_crews import ROUNDS, Interrupting, Ledger, Sketch, carry, is_over, sketches
from tests.support.providers import CheckedModels


@settings(max_examples=settings().max_examples * 2 // 5)
@given(sketch=sketches)
def test_every_crew_keeps_every_law_in_parent_and_branches(sketch: Sketch) -> None:
    """User, tools, parallel tools, handoffs, routes, branches, called agents, pauses, answers, failures, cancels,
    crashes, under any policy: every request is valid everywhere and within the bound, every state survives its JSON,
    nothing that was committed is done twice, what was spent adds up, and in the end nothing is left under way.
    """
    models, ledger = CheckedModels(sketch.limit), Ledger()
    store = Interrupting(sketch.limit, sketch.interruptions)

    async def story() -> None:
        end = await carry(sketch, models, store, ledger)
        assert len(asyncio.all_tasks()) == 1
        assert is_over(end)
        replied = [event for event in store.events if isinstance(event, Replied | Summarised)]
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
    assert not ledger.too_often
    began = Counter(event.branch for event in store.events if isinstance(event, BranchStarted))
    assert began == Counter(event.branch for event in store.events if isinstance(event, BranchFinished))
    assert max(began.values(), default=1) == 1
    assert len([event for event in store.events if isinstance(event, RunFinished)]) == 1
    numbers = [event.sequence for event in store.events]
    assert numbers == sorted(set(numbers))
