"""The workflow of a run: the engine's loop, with an activity for each effect."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from typing import Any, NoReturn

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from crew.engine.journal import JournalRun
from crew.engine.loop import drive
from crew.engine.run import ActiveRun, Effect, RunEnded
from crew.errors import RunActive, describe
from crew.runs.events import CallLost, Cancelled, LimitReached, Resumed, RunFailed
from crew.runs.state import CallTools, Finished, RunState, is_blocked, pending_pauses, run_status, total_usage
from crew.temporal.encoding import (
    ANSWER,
    APPEND,
    FIND,
    NOT_STARTED,
    PERFORM,
    SNAPSHOT,
    STATE,
    WORKFLOW,
    EffectInput,
    RunInput,
    decode_error,
    decode_event,
    decode_outcome,
    decode_snapshot,
    encode_entry,
    encode_error,
)
from crew.temporal.record_codec import reference
from crew.temporal.runtime import WorkerRuntime
from crew.transitions.advance import InputEvent, find_run
from crew.transitions.prepared_agents import tool_effect
from crew.validation.answer_checks import check_answers

RETRY_SECONDS, MOST_RETRY_SECONDS = 1.0, 60.0
"""How long a write waits that could not be started, because the store was not available, for example; twice as long
after each attempt, since every attempt is in the history."""

_RUNTIME: ContextVar[WorkerRuntime] = ContextVar("crew_worker_runtime")


class RuntimeInterceptor(Interceptor):
    """Gives the runtime of a worker to its workflows."""

    def __init__(self, runtime: WorkerRuntime) -> None:
        self._runtime = runtime

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        """An interceptor that sets the runtime in the context of the workflow."""
        runtime = self._runtime

        class Inbound(WorkflowInboundInterceptor):
            async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
                _RUNTIME.set(runtime)
                return await super().execute_workflow(input)

        return Inbound


@workflow.defn(name=WORKFLOW, sandboxed=False)
class CrewRunWorkflow:
    """One run of a crew. Its result is the status of the run; the store has everything else."""

    def __init__(self) -> None:
        self._driver: WorkflowDriver | None = None

    @workflow.run
    async def run(self, start: RunInput, state: bytes) -> str:
        """Drive the run to its end."""
        self._driver = WorkflowDriver(_RUNTIME.get(), start, decode_snapshot(state))
        return await self._driver.run()

    @workflow.update(name=ANSWER)
    async def answer(self, resumed: dict[str, Any]) -> None:
        """Resume the run, which waits for a person, with answers."""
        assert self._driver is not None
        self._driver.answer = _resumed(resumed)

    @answer.validator
    def check_answer(self, resumed: dict[str, Any]) -> None:
        """Refuse answers that the run does not wait for; a refused update is not recorded."""
        if self._driver is None:
            raise ApplicationError("The run has not started yet.", type=RunActive.__name__)

        self._driver.check_answer(_resumed(resumed))

    @workflow.query(name=STATE)
    def state(self) -> dict[str, Any]:
        """Where the run is: its status, agent, next step, pauses and usage."""
        return {} if self._driver is None else self._driver.describe()


def _resumed(data: dict[str, Any]) -> Resumed:
    event = decode_event(data)
    assert isinstance(event, Resumed)
    return event


class WorkflowDriver:
    """Drives a run inside its workflow. Everything here is deterministic: activities do all I/O."""

    def __init__(self, runtime: WorkerRuntime, start: RunInput, state: RunState) -> None:
        if start.fingerprint != runtime.fingerprint:
            # Not a failure of the workflow: its task is retried until a worker with the right definition takes it.
            raise RuntimeError(runtime.mismatch(start.run_id, start.fingerprint))

        self._runtime, self._start, self._settings = runtime, start, start.settings
        self._run: JournalRun = runtime.workflow_run(state, workflow.time, self, start.since)
        self._in_flight = self._parked = self._dropped = 0
        self._is_full = False
        self.answer: Resumed | None = None

    # ------------------------------------------------------------------------------------------ the run

    async def run(self) -> str:
        """Drive the run until it is finished; while it is paused, wait for answers."""
        try:
            if self._start.resumed is not None:
                await self._run.record(_resumed(self._start.resumed))

            while True:
                await self._drive()
                await self._append()

                if isinstance(self._run.state.next, Finished):
                    return run_status(self._run.state)

                await workflow.wait_condition(lambda: self.answer is not None)
                answer, self.answer = self.answer, None
                assert answer is not None
                self._run.restart_time()
                await self._run.record(answer)
        except asyncio.CancelledError:
            await self._record(Cancelled(run_id=self._start.run_id))
            await self._append()
            raise

    async def _drive(self) -> None:
        """Drive the run until it is finished or paused, or until its time is over."""
        run = self._run
        limit = run.state.limits.seconds
        seconds = None if limit is None else max(0.0, limit - run.state.active_seconds)
        task = asyncio.create_task(drive(run, run.state.run_id))

        try:
            async with asyncio.timeout(seconds) as deadline:
                await workflow.wait_condition(lambda: task.done() or self._is_drained())
        except TimeoutError:
            await _stop(task)

            if not deadline.expired() or limit is None:
                raise

            await self._record(LimitReached(run_id=run.state.run_id, limit="seconds", value=limit))
            return
        except asyncio.CancelledError:
            await _stop(task)
            raise

        if not task.done():
            await _stop(task)
            await self._continue_as_new()

        if (error := task.exception()) is not None and not isinstance(error, RunEnded):
            await self._fail(error)

    async def _record(self, event: InputEvent) -> None:
        if not isinstance(self._run.state.next, Finished):
            await self._run.record(event)

    async def _fail(self, error: BaseException) -> NoReturn:
        """Store the failure, and fail the workflow; a resume starts a new execution from the stored state."""
        run_id = self._start.run_id
        self._run.emit(RunFailed(run_id=run_id, error=describe(error), error_type=type(error).__name__))
        await self._append(ended=True)
        raise ApplicationError(describe(error), encode_error(error), type=type(error).__name__, non_retryable=True)

    def check_answer(self, resumed: Resumed) -> None:
        """Raise unless the run waits for these answers."""
        state = self._run.state

        if self.answer is not None or not is_blocked(state):
            raise ApplicationError(f"Run {state.run_id!r} is under way.", type=RunActive.__name__)

        check_answers(state, resumed.answers, self._runtime.validator, self._run.plan.tool_of)

    def describe(self) -> dict[str, Any]:
        """The state of the run in short."""
        state, info = self._run.state, workflow.info()
        return {
            "run_id": state.run_id,
            "status": run_status(state),
            "agent": state.agent,
            "next": state.next.kind,
            "sequence": state.sequence,
            "messages": len(state.transcript),
            "pauses": [{"id": one.id, "reason": one.reason, "text": one.text} for one in pending_pauses(state)],
            "requests": total_usage(state).requests,
            "history_events": info.get_current_history_length(),
            "history_bytes": info.get_current_history_size(),
        }

    # ------------------------------------------------------------------------------------------ effects

    async def before_step(self) -> None:
        """Wait here if the history of this execution is full: the next execution performs the step."""
        info, settings = workflow.info(), self._settings

        if (
            info.get_current_history_length() >= settings.max_history_events
            or info.get_current_history_size() >= settings.max_history_bytes
        ):
            self._is_full = True

        if self._is_full:
            self._parked += 1
            await asyncio.get_running_loop().create_future()

    def _is_drained(self) -> bool:
        """Whether every branch waits for the next execution, and no activity is under way."""
        return self._is_full and self._parked > 0 and self._in_flight == 0

    async def perform(self, run: ActiveRun, effect: Effect) -> None:
        """Perform an effect in an activity, and record the events of its outcome."""
        state = find_run(run.state, effect.run_id)
        assert state is not None
        key = f"{effect.call_key or f'{effect.run_id}:{len(state.transcript)}.{effect.kind}'}@{run.state.sequence}"
        self._in_flight += 1

        try:
            data = await self._perform(effect, state, key)

            if data is None:
                call = next(one.call for one in _calls(state) if one.key == effect.call_key)
                await run.record(CallLost(run_id=effect.run_id, call_id=call.id, name=call.name))
            else:
                await self._apply(key, data)
        finally:
            self._in_flight -= 1

    async def _perform(self, effect: Effect, state: RunState, key: str) -> bytes | None:
        """The outcome of an effect; None if it is a write whose worker was lost."""
        is_write, pause = effect.kind == "run_call" and self._is_write(effect, state), RETRY_SECONDS

        while True:
            try:
                outcome: bytes = await self._execute(PERFORM, effect, key, attempts=1 if is_write else 0)
                return outcome
            except ActivityError as error:
                if not is_write:
                    raise

                cause = error.cause

            if isinstance(cause, ApplicationError) and cause.type == NOT_STARTED:
                await asyncio.sleep(pause)
                pause = min(2 * pause, MOST_RETRY_SECONDS)
            elif not await self._execute(FIND, effect, key):
                return None
            else:
                is_write = False  # its outcome is stored: the next attempt returns it

    def _is_write(self, effect: Effect, state: RunState) -> bool:
        call = next(one.call for one in _calls(state) if one.key == effect.call_key)
        return tool_effect(self._run.plan, state, call.name) != "read"

    async def _apply(self, key: str, data: bytes) -> None:
        """Record and emit the events of an outcome, and raise its error."""
        outcome, run = decode_outcome(data), self._run

        for index, (is_input, encoded) in enumerate(outcome.events):
            event = decode_event(encoded)
            run.sources[id(event)] = (key, index)

            if is_input:
                await run.record(event)  # type: ignore[arg-type]  # an input event
            else:
                run.emit(event)

            run.sources.pop(id(event), None)

        if outcome.error is not None:
            raise decode_error(outcome.error)

    # ------------------------------------------------------------------------------------------ activities

    async def _append(self, *, ended: bool = False) -> None:
        """Bring the stored run up to date; `ended`: also with events that no input event follows."""
        if self._carried(ended=ended):
            await self._execute(APPEND, ended=ended)

    async def _continue_as_new(self) -> NoReturn:
        state = self._run.state
        key = f"state@{state.sequence}"
        await self._execute(SNAPSHOT, key=key, ended=True)
        start = replace(self._start, resumed=None, since=state.last_event_at)
        workflow.continue_as_new(args=[start, reference(state.run_id, key)])

    def _carried(self, *, ended: bool = False) -> int:
        """How many entries of the journal the next activity stores: those that a commit can hold."""
        journal = self._run.journal
        last = next((place for place in range(len(journal), 0, -1) if journal[place - 1].is_input), 0)
        return len(journal) if ended else last

    async def _execute(
        self, name: str, effect: Effect | None = None, key: str = "", *, attempts: int = 0, ended: bool = False
    ) -> Any:
        """Run an activity; it stores the entries of the journal that are not known to be stored."""
        carried, before = self._carried(ended=ended), self._dropped
        given = EffectInput(
            run_id=self._start.run_id,
            fingerprint=self._start.fingerprint,
            entries=[encode_entry(entry) for entry in self._run.journal[:carried]],
            kind="" if effect is None else effect.kind,
            path="" if effect is None else effect.run_id,
            call_key="" if effect is None else effect.call_key,
            key=key,
            heartbeat_seconds=self._settings.heartbeat_seconds,
            traceparent=self._run.state.traceparent,
        )
        retry = RetryPolicy(
            initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=10), maximum_attempts=attempts
        )

        try:
            result = await workflow.execute_activity(
                name,
                given,
                activity_id=key.partition("@")[0] if name == PERFORM else None,
                result_type={PERFORM: bytes, FIND: bool}.get(name),
                start_to_close_timeout=timedelta(seconds=self._settings.effect_seconds),
                heartbeat_timeout=timedelta(seconds=self._settings.heartbeat_seconds),
                retry_policy=retry,
            )
        except ActivityError as error:
            if is_cancelled_exception(error):  # whatever the activity did: the run is cancelled
                raise asyncio.CancelledError from error

            raise

        stored = max(0, before + carried - self._dropped)
        del self._run.journal[:stored]
        self._dropped += stored
        return result


def _calls(state: RunState) -> Any:
    assert isinstance(state.next, CallTools)
    return state.next.calls


async def _stop(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end; its own error, if any, is not raised."""
    task.cancel()
    await asyncio.wait([task])

    if not task.cancelled():
        task.exception()
