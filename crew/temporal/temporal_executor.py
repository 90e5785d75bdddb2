"""`TemporalExecutor`: the public API of `CrewExecutor`, for runs that workers drive on Temporal."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from crew.agents.agent import Agent
from crew.agents.crew import Crew
from crew.errors import InvalidInput, RunError, UnknownRun, Violation, describe
from crew.executor import CrewExecutor
from crew.run_streams import RunStreams
from crew.runs.interfaces import RunReader, RunStore
from crew.runs.state import RunState
from crew.store.location import StoreLocation
from crew.temporal.encoding import STATE, RunSettings
from crew.temporal.runs import DRIVER, TemporalRuns, workflow_id
from crew.temporal.worker import check_concurrency, default_task_queue, records_of, with_references


class WorkflowStreams(RunStreams):
    """Starts and resumes runs on Temporal. Their deps are built by the workers."""

    async def deps(self, given: Any, state: RunState, *, resumes: bool = False) -> Any:
        """None; `InvalidInput` for given deps, which can't be sent to another process."""
        if given is not None:
            text = "deps can't be sent to the workers: pass a factory, CrewWorker(…, deps=factory), and metadata=…"
            raise InvalidInput([Violation(rule="deps", text=text)])

        return None


class TemporalExecutor(CrewExecutor[Any, Any]):
    """Runs a crew on Temporal: `CrewWorker` processes drive the runs, and this process starts and follows them.

    Methods and options are those of `CrewExecutor`. The store must be one that the workers share. A stream delivers
    events as they are stored; text deltas and tool progress stay in the workers. Leaving a stream early does not stop
    the run: use `cancel`, or `resume` to follow it again. `deps` come from the factory of the workers.

    heartbeat_seconds    after so long without a sign of life, a worker counts as lost, and another one takes over.
    task_seconds         after so long, a workflow task that a lost worker had is given to another one.
    effect_seconds       the longest time that one call of a model or a tool may take; then it counts as lost.
    max_history_events, max_history_bytes
                         the run continues as a new execution of its workflow before its history reaches these sizes.
    """

    def __init__(
        self,
        client: Client,
        crew: Crew | Agent,
        *,
        store: RunStore | StoreLocation,
        task_queue: str | None = None,
        heartbeat_seconds: float = 10.0,
        task_seconds: float = 10.0,
        effect_seconds: float = 3_600.0,
        max_history_events: int = 8_000,
        max_history_bytes: int = 8_000_000,
        **options: Any,
    ) -> None:
        check_concurrency("TemporalExecutor", options)
        super().__init__(crew, store=store, **options)
        records = records_of(self.store, "TemporalExecutor")
        self.task_queue = task_queue or default_task_queue(crew)
        self._client, opened = with_references(client, records), self._store
        self._active_runs = TemporalRuns(
            connections=self._pool,
            driver=DRIVER,
            client=self._client,
            task_queue=self.task_queue,
            store=lambda: _reader(opened.get()),
            records=records,
            settings=RunSettings(
                heartbeat_seconds=heartbeat_seconds,
                effect_seconds=effect_seconds,
                max_history_events=max_history_events,
                max_history_bytes=max_history_bytes,
            ),
            task_seconds=task_seconds,
        )
        parts = {part.name: getattr(self._streams, part.name) for part in fields(self._streams)}
        self._streams = WorkflowStreams(**(parts | {"active_runs": self._active_runs}))

    async def state(self, run_id: str) -> dict[str, Any]:
        """Where a run is, as its workflow answers: status, agent, next step, pauses, and the size of its history."""
        try:
            found: dict[str, Any] = await self._client.get_workflow_handle(workflow_id(run_id)).query(STATE)
            return found
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                raise UnknownRun(run_id, f"The Temporal server has no workflow of the run {run_id!r}.") from error

            reason = describe(error).rstrip(".")
            raise RunError(f"Run {run_id!r} can't be asked for its state: {reason}. Is a worker running?") from error


def _reader(store: RunStore) -> RunReader:
    assert isinstance(store, RunReader)
    return store
