"""`TemporalRuns`: starts, follows, answers and cancels the workflows of an executor's runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from crew.engine.active_runs import ActiveRuns, closing_observers
from crew.engine.run import ActiveRun
from crew.errors import InvalidInput, RunActive, RunError, Violation, describe
from crew.runs.events import Paused, Resumed, RunFailed, RunFinished, RunStarted, Warned
from crew.runs.interfaces import Cursor, EffectRecords, EventFollower, RunReader
from crew.runs.result import RunResult
from crew.runs.state import is_blocked, run_status
from crew.secrets.scrubbing import scrub_value
from crew.temporal.encoding import (
    ANSWER,
    WORKFLOW,
    RunInput,
    RunSettings,
    decode_error,
    encode_event,
    encode_snapshot,
    plan_fingerprint,
)
from crew.temporal.record_codec import reference
from crew.temporal.run_mirrors import newest_sequence
from crew.temporal.waiting import waiting_reason
from crew.transitions.advance import InputEvent

DRIVER = "temporal"
POLL_SECONDS, FOLLOW_SECONDS = 0.1, 5.0
QUIET_SECONDS, MOST_QUIET_SECONDS = 5.0, 60.0
"""After so long without an event the reason is reported, if there is one; then after twice the time, and so on."""
RECONNECT_SECONDS = 1.0
START_SECONDS = 10.0
"""How long the server may take to accept a run."""


def workflow_id(run_id: str) -> str:
    """The id of the workflow of a run: at most one execution with this id is under way."""
    return f"crew:{run_id}"


async def _answered(request: Awaitable[Any], report: Callable[[], Awaitable[None]]) -> None:
    """Wait for the answer to a request that needs a worker; call `report` at growing intervals while there is none."""
    task, pause = asyncio.ensure_future(request), QUIET_SECONDS

    try:
        while not (await asyncio.wait([task], timeout=pause))[0]:
            pause = min(2 * pause, MOST_QUIET_SECONDS)
            await report()

        await task
    finally:
        task.cancel()
        await asyncio.wait([task])

        if not task.cancelled():
            task.exception()  # marks it as retrieved, so that asyncio does not log it


@dataclass(slots=True, kw_only=True, eq=False)
class TemporalRuns(ActiveRuns):
    """The runs of a `TemporalExecutor`. Workers drive them; this process reads their events from the store."""

    client: Client
    task_queue: str
    store: Callable[[], RunReader]
    records: EffectRecords
    settings: RunSettings
    task_seconds: float

    async def run(self, run: ActiveRun, first: InputEvent, *, take_over: bool = False) -> RunResult:
        """Start a workflow, or resume one, and follow the run until it is finished or paused."""
        with closing_observers(run):
            self._check_driver(run, may_change=take_over or isinstance(first, RunStarted))

            if isinstance(first, RunStarted):
                await run.record(first)
                known = await self._newest_cursor(run)
                return await self._follow(run, await self._start(run), known)

            assert isinstance(first, Resumed)
            known, status = await self._newest_cursor(run), await self._status(run.state.run_id)

            if status != WorkflowExecutionStatus.RUNNING:
                # It failed, or was never started: a new execution continues from the stored state.
                return await self._follow(run, await self._start(run, first), known)

            handle = self._handle(run.state.run_id)

            if first.answers:
                answer = self._answer(run.state.run_id, first)
                await _answered(answer, lambda: self._report_waiting(run, handle))
            elif is_blocked(run.state):
                return self._result(run)

            return await self._follow(run, handle, known)

    async def _newest_cursor(self, run: ActiveRun) -> Cursor:
        """The cursor of the newest event of the loaded commit: a failure may be appended to it later."""
        first = Cursor(run.version, -1)
        stored = await self.store().events(run.state.run_id, first)
        return max([first, *(one.cursor for one in stored if one.cursor.version == run.version)])

    def _handle(self, run_id: str) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(workflow_id(run_id))

    async def _status(self, run_id: str) -> WorkflowExecutionStatus | None:
        try:
            return (await self._handle(run_id).describe(rpc_timeout=timedelta(seconds=START_SECONDS))).status
        except (RPCError, RuntimeError) as error:  # a client that is not connected yet raises RuntimeError
            if isinstance(error, RPCError) and error.status == RPCStatusCode.NOT_FOUND:
                return None

            reason = describe(error).rstrip(".")
            text = f"The Temporal server does not answer: {reason}. Run {run_id!r} is as it was; try again later."
            raise RunError(text) from error

    async def _start(self, run: ActiveRun, resumed: Resumed | None = None) -> WorkflowHandle[Any, Any]:
        """Start a workflow with the state of this run, which is stored."""
        # Numbers go on after those of stored events, also of an execution that failed: its effects have other keys.
        sequence = await newest_sequence(self.store(), run.state, run.version)
        state, key = replace(run.state, sequence=sequence), f"state@{sequence}"
        await self.records.put(state.run_id, key, encode_snapshot(state))
        start = RunInput(
            run_id=state.run_id,
            fingerprint=plan_fingerprint(run.plan),
            settings=self.settings,
            resumed=None if resumed is None else encode_event(resumed),
            since=None if resumed is not None else state.last_event_at,
        )

        try:
            return await self.client.start_workflow(
                WORKFLOW,
                args=[start, reference(state.run_id, key)],
                id=workflow_id(state.run_id),
                task_queue=self.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                task_timeout=timedelta(seconds=self.task_seconds),
                result_type=str,
                rpc_timeout=timedelta(seconds=START_SECONDS),
            )
        except WorkflowAlreadyStartedError:
            raise RunActive(state.run_id, f"the workflow {workflow_id(state.run_id)!r}") from None
        except (RPCError, RuntimeError) as error:  # a client that is not connected yet raises RuntimeError
            reason = describe(error).rstrip(".")
            text = f"Run {state.run_id!r} is stored, but its workflow could not be started: {reason}."
            raise RunError(f"{text} Call resume({state.run_id!r}) when the server is available.") from error

    async def _answer(self, run_id: str, resumed: Resumed) -> None:
        """Answer the pauses of a workflow, which checks the answers before it accepts them. This needs a worker."""
        try:
            await self._handle(run_id).execute_update(ANSWER, encode_event(resumed))
        except WorkflowUpdateFailedError as error:
            cause = error.cause

            if isinstance(cause, ApplicationError) and cause.type == RunActive.__name__:
                raise RunActive(run_id, f"the workflow {workflow_id(run_id)!r}") from None

            text = cause.message if isinstance(cause, ApplicationError) else describe(error)
            raise InvalidInput([Violation(rule="answer", text=text)]) from error

    # ------------------------------------------------------------------------------------------ following

    async def _follow(self, run: ActiveRun, handle: WorkflowHandle[Any, Any], cursor: Cursor) -> RunResult:
        """Publish the events that are stored after the cursor, until the run is finished or paused; its result."""
        ended = asyncio.ensure_future(_ended(handle))
        run_id = run.state.run_id
        clock = asyncio.get_running_loop().time
        pause = QUIET_SECONDS
        report_at = clock() + pause

        try:
            while True:
                was_over = ended.done()
                found = await self.store().events(run_id, cursor)

                for stored in found:
                    cursor, event = stored.cursor, scrub_value(run.scrubber, stored.event)
                    run.observers(event)

                    if event.run_id == run_id and isinstance(event, Paused | RunFinished | RunFailed):
                        return await self._settled(run, ended if isinstance(event, RunFailed) else None)

                if was_over and not found:
                    return await self._settled(run, ended)

                if found:
                    pause = QUIET_SECONDS
                    report_at = clock() + pause
                elif clock() >= report_at:
                    pause = min(2 * pause, MOST_QUIET_SECONDS)
                    report_at = clock() + pause
                    await self._report_waiting(run, handle)

                await self._wait_for_events(run_id, cursor, ended)
        finally:
            ended.cancel()
            await asyncio.wait([ended])

            if not ended.cancelled():
                ended.exception()  # marks it as retrieved, so that asyncio does not log it

    async def _report_waiting(self, run: ActiveRun, handle: WorkflowHandle[Any, Any]) -> None:
        """Warn the reader of the events, if the run makes no progress."""
        reason = await waiting_reason(self.client, handle, self.task_queue)

        if reason is not None:
            state = run.state
            warned = Warned(
                run_id=state.run_id, agent=state.agent, sequence=state.sequence, at=run.clock(), text=reason
            )
            run.observers(scrub_value(run.scrubber, warned))

    async def _wait_for_events(self, run_id: str, after: Cursor, ended: asyncio.Future[str]) -> None:
        """Wait until the store has further events, or the workflow has ended."""
        store = self.store()

        if not isinstance(store, EventFollower):
            await asyncio.wait([ended], timeout=POLL_SECONDS)
            return

        following = asyncio.ensure_future(store.wait_for_events(run_id, after, FOLLOW_SECONDS))

        try:
            both: list[asyncio.Future[Any]] = [ended, following]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            following.cancel()
            await asyncio.wait([following])

    async def _settled(self, run: ActiveRun, failed: asyncio.Future[str] | None) -> RunResult:
        """The result of a run that is finished, paused or failed, from the store."""
        record = await self.store().run(run.state.run_id)
        run.state, run.version = scrub_value(run.scrubber, record.state), record.info.version
        status = run_status(run.state)

        if failed is not None and status == "running":
            raise await self._error(run, failed)

        return self._result(run)

    async def _error(self, run: ActiveRun, failed: asyncio.Future[str]) -> Exception:
        """The error that ended the workflow of a run."""
        result, run_id = self._result(run), run.state.run_id
        text, cause = f"its workflow {workflow_id(run_id)!r} ended without a result", None

        try:
            await failed
        except WorkflowFailureError as error:
            found = error.cause
            text, cause = describe(found), found

            if isinstance(found, ApplicationError) and found.details:
                cause = decode_error(found.details[0])
                text = describe(cause)

        if isinstance(cause, RunError):
            cause.result = result
            return cause

        raised = RunError(f"Run {run_id!r} failed: {text}", result=result)
        raised.__cause__ = cause
        return raised

    # ------------------------------------------------------------------------------------------ other requests

    async def cancel(self, run_id: str) -> bool:
        """Cancel a workflow that is under way, and wait for its end; False if there is none."""
        if await self._status(run_id) != WorkflowExecutionStatus.RUNNING:
            return False

        handle = self._handle(run_id)
        await handle.cancel()

        async def refuse_to_wait() -> None:
            if reason := await waiting_reason(self.client, handle, self.task_queue):
                advice = f"its cancellation is requested, and takes effect when a worker takes the run. {reason}"
                raise RunActive(run_id, f"the workflow {workflow_id(run_id)!r}", advice)

        try:
            await _answered(handle.result(), refuse_to_wait)
        except WorkflowFailureError:
            pass  # it was cancelled

        return True

    async def is_owned(self, run_id: str) -> bool:
        """Whether the workflow of this run is under way and does not wait for a person."""
        if await self._status(run_id) != WorkflowExecutionStatus.RUNNING:
            return False

        return not is_blocked((await self.store().run(run_id)).state)


async def _ended(handle: WorkflowHandle[Any, Any]) -> str:
    """The result of a workflow; a server that does not answer is waited for: the run is safe there."""
    while True:
        try:
            result: str = await handle.result()
            return result
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                raise

            await asyncio.sleep(RECONNECT_SECONDS)
