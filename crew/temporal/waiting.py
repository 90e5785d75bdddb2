"""Why a run makes no progress: no worker takes its next step, or the step fails and is tried again."""

from __future__ import annotations

import time
from datetime import UTC

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, PendingActivityState, PendingWorkflowTaskState
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError

from crew.errors import describe

NEWEST_EVENTS = 10
UNTAKEN_SECONDS = 3.0
"""A step that no worker took for so long is reported."""


async def waiting_reason(client: Client, handle: WorkflowHandle[object, object], task_queue: str) -> str | None:
    """Why a run waits, in words for its user; None if a worker is at work for it, or it waits for a person."""
    try:
        found = (await handle.describe()).raw_description
        task = found.pending_workflow_task

        if task.attempt > 1 and (failure := await _newest_failure(client, handle.id)):
            return f"No worker can continue the run: {failure}"

        is_scheduled = task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED
        since = [task.original_scheduled_time.ToDatetime(UTC)] if is_scheduled else []

        for activity in found.pending_activities:
            if failure := activity.last_failure.message:
                kind = activity.activity_type.name.removeprefix("crew_")
                return f"An attempt to {kind} failed, and is repeated (attempt {activity.attempt}): {failure}"

            if activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED:
                since.append(activity.scheduled_time.ToDatetime(UTC))

        # A write that could not be started waits before the next attempt, and is no pending activity meanwhile.
        if not found.pending_activities and not is_scheduled and (failure := await _newest_failure(client, handle.id)):
            return f"A write could not be started, and is tried again: {failure}"
    except RPCError as error:
        return f"The Temporal server does not answer: {describe(error)}"

    if since and (seconds := time.time() - min(since).timestamp()) > UNTAKEN_SECONDS:
        text = f"No worker has taken the next step of the run from the task queue {task_queue!r} for {seconds:.0f} s"
        return f"{text}. Is a worker running? crew worker TARGET --temporal ADDRESS --store STORE starts one"

    return None


async def _newest_failure(client: Client, workflow_id: str) -> str:
    """The failure of the newest workflow task or activity; empty if it did not fail."""
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=workflow_id),
        maximum_page_size=NEWEST_EVENTS,
    )

    for event in (await client.workflow_service.get_workflow_execution_history_reverse(request)).history.events:
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
                return event.workflow_task_failed_event_attributes.failure.message
            case EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED:
                return event.activity_task_failed_event_attributes.failure.message
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                return ""
            case _:
                pass

    return ""
