"""The generated crews of the property suite have the same transcripts on Temporal as in one process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import Phase, given, note, settings
from temporalio.client import Client

from crew import Context, CrewExecutor, Limits, tool
from crew.errors import CrewError, RunError, UnknownRun
from crew.messages import Transcript
from crew.runs.events import Event, Warned
from crew.runs.state import RunState
from crew.temporal import CrewWorker, TemporalExecutor
from tests.support.generated_crews import (
    CallCounts,
    Sketch,
    answer_to,
    build,
    policy_of,
    sketches,
    without_cancellation,
)
from tests.support.providers import CheckedModels

pytestmark = [pytest.mark.servers, pytest.mark.filterwarnings("ignore::UserWarning")]

EXAMPLES = int(os.environ.get("CREW_TEMPORAL_EXAMPLES", "15"))
ANSWERS, FAILURES, SECONDS = 12, 2, 120
_numbers = itertools.count()


class QuickCounts(CallCounts):
    """Tools that do not wait."""

    def _tools(self) -> list[Any]:
        async def look(context: Context[None]) -> str:
            """Look."""
            return "seen"

        async def fail(context: Context[None]) -> str:
            """Fail."""
            raise ValueError("no")

        async def pay(context: Context[None]) -> str:
            """Pay."""
            return "paid"

        return [tool(look), tool(fail), tool(approval=True)(pay)]


ELSEWHERE = {"time", "active_seconds", "last_event_at", "traceparent", "driver"}
"""Fields that legitimately differ: when and where a run was driven. Every other field of the state is compared."""


def facts(value: Any, ignored: frozenset[str]) -> Any:
    """A state, or a part of it, as plain values without these fields."""
    if isinstance(value, Transcript | list | tuple):
        return [facts(item, ignored) for item in value]

    if isinstance(value, dict):
        return {key: facts(item, ignored) for key, item in value.items()}

    if is_dataclass(value):
        names = [part.name for part in fields(value) if part.compare and part.name not in ignored]
        return {name: facts(getattr(value, name), ignored) for name in names}

    return value


def kinds(events: Iterable[Event]) -> Counter[str]:
    """How many events of each kind there were; without warnings, since a run that waits for a busy worker warns too."""
    return Counter(event.kind for event in events if not isinstance(event, Warned))


async def play(executor: CrewExecutor, sketch: Sketch, run_id: str) -> tuple[list[str], RunState]:
    """Run to the end with the answers of the sketch; what happened, and the last state."""
    counts, choices, story, failures = CallCounts(), list(sketch.answers), list[str](), 0
    step = executor.execute("Goal.", run_id=run_id)

    for _ in range(ANSWERS + FAILURES):
        try:
            result = await step
        except RunError as error:
            story.append(f"{type(error).__name__}: {error}")
            failures += 1
            result = error.result

            if result is None or failures > FAILURES:
                break

            step = executor.resume(run_id)
            continue
        except CrewError as error:
            story.append(f"{type(error).__name__}: {error}")
            return story, RunState(run_id=run_id, conversation_id=run_id, crew="", agent="", limits=Limits())

        story.append(f"{result.stop_reason}: {result.output}")

        if result.stop_reason != "paused":
            break

        choices.append(choices.pop(0))
        pause = result.pauses[choices[0] % len(result.pauses)]
        step = executor.resume(run_id, {pause.id: answer_to(pause, choices[0], counts)})
    else:
        step.close()

    return story, result.state


async def compare(address: str, sketch: Sketch) -> None:
    models = CheckedModels(sketch.limit)
    crew, same = (build(sketch, models, QuickCounts()) for _ in range(2))  # guardrails of sketches count their calls
    # Without a limit that concurrent branches share: which of them reaches it depends on their speed.
    options: dict[str, Any] = {
        "max_messages_per_request": sketch.limit,
        "history": policy_of(sketch),
        "limits": Limits(rounds=40, handoffs=6),
    }
    here, there = list[Event](), list[Event]()
    local = CrewExecutor(crew, observers=[here.append], **options)
    queue = f"generated-{next(_numbers)}"
    expected = await play(local, sketch, queue)
    await local.aclose()

    with tempfile.TemporaryDirectory() as folder:
        client, store = await Client.connect(address), f"{folder}/runs.db"

        async with CrewWorker(client, same, store=store, task_queue=queue, **options):
            remote = TemporalExecutor(client, same, store=store, task_queue=queue, observers=[there.append], **options)
            found = await play(remote, sketch, queue)
            counted = kinds(there)

            with contextlib.suppress(UnknownRun):  # it may have finished
                await remote.cancel(queue)

            await remote.aclose()

    note(f"in one process: {expected[0]}\non Temporal: {found[0]}")
    assert found[0] == expected[0]
    # A resume of a failed run starts another execution. Its events are numbered after the stored ones, of which the
    # failure is one; in one process that event has a number which the resume gives again.
    failed = any(event.kind == "run_failed" for event in here)
    ignored = frozenset(ELSEWHERE | ({"sequence"} if failed else set()))
    assert facts(found[1], ignored) == facts(expected[1], ignored)
    assert counted == kinds(here)
    assert not models.violations


@settings(max_examples=EXAMPLES, phases=[Phase.explicit, Phase.generate])  # each example takes seconds
@given(sketch=sketches)
def test_generated_crews_have_the_same_transcript_on_temporal(temporal_address: str, sketch: Sketch) -> None:
    """Handoffs, routes, branches, called agents, summaries, pauses and failures: the whole state is the same, with
    every message, view, counter and open call, and as many events of each kind."""
    asyncio.run(asyncio.wait_for(compare(temporal_address, without_cancellation(sketch)), SECONDS))
