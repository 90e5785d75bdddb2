"""Finds the runs that no process drives any more, and resumes them."""

from __future__ import annotations

import asyncio

from crew.errors import CrewError
from crew.runs.interfaces import StoredRunInfo
from crew.server.server_context import ServerContext


async def interrupted_runs(context: ServerContext) -> list[StoredRunInfo]:
    """The unfinished runs of the crews of this service that no process drives, newest first.

    Paused and failed runs are not among them: they wait for a person.
    """
    found: list[StoredRunInfo] = []
    cursor: str | None = None

    while True:
        page = await context.reader.runs(status="running", limit=500, cursor=cursor)

        for info in page.runs:
            executor = context.executors.get(info.crew)

            if executor is not None and not await executor.is_owned(info.run_id):
                found.append(info)

        if (cursor := page.cursor) is None:
            return found


async def resume_runs(context: ServerContext, runs: list[StoredRunInfo]) -> dict[str, CrewError]:
    """Let the hub drive these runs; the errors of those that can't be resumed, by id."""
    errors: dict[str, CrewError] = {}

    async def resume(info: StoredRunInfo) -> None:
        try:
            await context.hub.start(info.run_id, context.executors[info.crew].resume_stream(info.run_id))
        except CrewError as error:
            errors[info.run_id] = error

    try:
        await asyncio.gather(*map(resume, runs))
    finally:
        context.hub.is_recovering = False

    return errors
