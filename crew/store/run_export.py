"""Exports stored runs as JSON: each run with its messages and events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from crew.runs.interfaces import Cursor, RunReader, StoredEvent, StoredRunInfo
from crew.store.codec import encode_events, encode_messages, message_sections


async def export_runs(reader: RunReader, id: str | None = None) -> AsyncIterator[dict[str, object]]:
    """The run with this id, the runs of the conversation with this id, or all runs, as JSON objects.

    The `type` of an object is `run`, `message` or `event`; those of a run follow it. Each message is exported once: a
    run that continues another exported run, its `parent_run`, begins after its `inherited_messages`.
    """
    ids = await _all_runs(reader) if id is None else await find_runs(reader, id)
    exported = frozenset(ids)

    for run_id in ids:
        record = await reader.run(run_id)
        state = record.state
        first = state.inherited_messages if state.parent_run in exported else 0
        parent = {"parent_run": state.parent_run, "inherited_messages": state.inherited_messages}
        yield {"type": "run", **info_json(record.info), **parent}

        for section in message_sections(state):
            skipped = first if section.path == run_id else 0

            for position, data in enumerate(encode_messages(section.messages[skipped:]), section.start + skipped):
                message = json.loads(data)
                yield {"type": "message", "run_id": section.path, "position": position, "message": message}

        async for one in all_events(reader, run_id):
            [event] = json.loads(encode_events([one.event]))["events"]
            yield {"type": "event", "run_id": run_id, "cursor": str(one.cursor), "event": event}


def info_json(info: StoredRunInfo) -> dict[str, object]:
    """The facts of a run as JSON."""
    return {
        "run_id": info.run_id,
        "conversation_id": info.conversation_id,
        "crew": info.crew,
        "agent": info.agent,
        "status": info.status,
        "messages": info.messages,
        "created": info.created,
        "updated": info.updated,
        "metadata": dict(info.metadata),
    }


async def find_runs(reader: RunReader, id: str) -> list[str]:
    """The run with this id, or the runs of the conversation with this id, oldest first."""
    runs = await reader.conversation(id)
    return [id] if not runs or any(info.run_id == id for info in runs) else [info.run_id for info in runs]


async def all_events(reader: RunReader, run_id: str) -> AsyncIterator[StoredEvent]:
    """The stored events of a run, in order."""
    after: Cursor | None = None

    while page := await reader.events(run_id, after):
        for one in page:
            yield one

        after = page[-1].cursor


async def _all_runs(reader: RunReader) -> list[str]:
    """The ids of all runs, newest first."""
    found: list[str] = []
    cursor: str | None = None

    while True:
        page = await reader.runs(limit=200, cursor=cursor)
        found += [info.run_id for info in page.runs]

        if (cursor := page.cursor) is None:
            return found
