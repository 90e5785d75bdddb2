"""The inspector shows any run: generated crews with branches, pauses, failures, cancels and crashes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from crew.runs.events import Event, Replied
from crew.runs.interfaces import Cursor, RunRecord, StoredEvent, StoredRunInfo
from crew.runs.state import RunState
from crew.server.inspector_data import RunView
from tests.server.test_inspector_data import merge, sent_positions
from tests.support.clocks import run_in_virtual_time
from tests.support.generated_crews import CallCounts, InterruptingStore, Sketch, run_to_end, sketches
from tests.support.providers import CheckedModels


def record_of(state: RunState, version: int) -> RunRecord:
    facts = {"status": "completed", "version": version, "messages": len(state.transcript)}
    info = StoredRunInfo(
        run_id=state.run_id,
        conversation_id=state.conversation_id,
        crew=state.crew,
        agent=state.agent,
        created=0.0,
        updated=0.0,
        **facts,
    )
    return RunRecord(info=info, state=state)


def shown(state: RunState, events: list[Event], step: int) -> dict[str, Any]:
    """The data of the page after so many events at a time."""
    view, record, merged = RunView(), record_of(state, len(events)), {}
    stored = [StoredEvent(cursor=Cursor(number, 0), event=event) for number, event in enumerate(events, 1)]

    for start in range(0, len(stored), step):
        before = view.cursor
        view.update(record, stored[start : start + step])
        merged = merge(merged, json.loads(json.dumps(view.changes(before, "completed"))))

    return merged


@pytest.mark.filterwarnings("ignore::UserWarning")  # some sketches have a setting that can't take effect
@settings(max_examples=settings().max_examples // 10)
@given(sketch=sketches)
def test_every_generated_run_can_be_shown(sketch: Sketch) -> None:
    """Read at once or in parts, the page has the same data: each reply is in one request, which lists messages of the
    transcript before it; each span has a parent that began before it, and has ended."""
    store = InterruptingStore(sketch.limit, sketch.interruptions)
    end = run_in_virtual_time(run_to_end(sketch, CheckedModels(sketch.limit), store, CallCounts()))
    events = list(store.events)
    data = shown(end, events, len(events))
    assert data == shown(end, events, 3)
    spans, threads = data["spans"], data["threads"]

    for span in spans[1:]:
        assert 0 <= span["p"] < span["i"]
        assert span["e"] is not None, span
        assert span["s"] <= span["e"]
        assert span["t"] < len(threads)

    replies = [request for thread in threads for request in thread["requests"] if "out" in request]
    assert len(replies) == len([event for event in events if isinstance(event, Replied)])

    for thread in threads:
        size = thread["offset"] + len(thread["messages"])

        for request, places in zip(thread["requests"], sent_positions(thread), strict=True):
            assert all(-1 <= place < request.get("seen", size) or _is_summary(thread, place) for place in places)
            assert [one["i"] for one in thread["messages"]] == list(range(len(thread["messages"])))


def _is_summary(thread: dict[str, Any], place: int) -> bool:
    return place < thread["offset"] or "covers" in thread["messages"][place - thread["offset"]]
