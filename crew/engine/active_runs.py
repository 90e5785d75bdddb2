"""The runs that are under way in one executor: started, driven to their end, cancelled, or left resumable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace

from crew.engine.concurrency import USER_CODE_ERRORS, cancel_and_wait, is_failure
from crew.engine.fairness import Admission, CommitGate, enter_run
from crew.engine.loop import drive
from crew.engine.run import ActiveRun
from crew.errors import CrewError, RunActive, RunConflict, RunError, RunExists, describe
from crew.interfaces import AsyncClosable
from crew.runs.events import Cancelled, LimitReached, RunFailed, RunStarted
from crew.runs.result import RunResult
from crew.runs.state import Finished
from crew.secrets.scrubbing import scrub_error, scrub_value
from crew.transitions.advance import InputEvent
from crew.transitions.result import build_result


@contextmanager
def _closing_observers(run: ActiveRun) -> Iterator[None]:
    """Notify observers when the run ends, with the error that ended it, if any."""
    try:
        yield
    except BaseException as error:  # observers are notified of every outcome; the error is raised again
        run.is_open = False
        run.observers.close(error, run.state)
        raise

    run.is_open = False
    run.observers.close(None, run.state)


@dataclass(slots=True, kw_only=True, eq=False)
class ActiveRuns:
    """Holds the task of each run. Connections belong to the executor and its event loop, not to a run."""

    connections: AsyncClosable
    admission: Admission = field(default_factory=Admission)
    commits: CommitGate = field(default_factory=CommitGate)
    _tasks: dict[str, asyncio.Task[object]] = field(default_factory=dict)
    _cancelled: set[str] = field(default_factory=set)
    _cancelling: dict[str, asyncio.Future[None]] = field(default_factory=dict)
    """The inactive runs whose cancellation is being recorded; the future ends with it."""

    async def run(self, run: ActiveRun, first: InputEvent) -> RunResult:
        """Record the first event and drive the run; observers are notified when it ends."""
        enter_run(run.order)

        with _closing_observers(run):
            return await self._run_claimed(run, first)

    async def _run_claimed(self, run: ActiveRun, first: InputEvent) -> RunResult:
        run_id = run.state.run_id

        if isinstance(first, RunStarted) and run_id in self._tasks:
            raise RunExists(run_id)

        async with self.claim(run_id):
            failure: BaseException | None = None

            try:
                async with self.admission.admitted(run.order):
                    await run.record(first)
                    await self._drive_until_time_limit(run)
            except USER_CODE_ERRORS as error:  # policies, filters and stores are user code: the caller gets a RunError
                if is_failure(error):
                    scrub_error(run.scrubber, error)
                    failure = error
                elif run_id in self._cancelled:
                    task = asyncio.current_task()
                    assert task is not None
                    task.uncancel()

                    if run.version == 0:
                        await run.record(first)  # it was cancelled while it waited for its admission

                    await self._record_cancelled(run)
                else:
                    raise

            # Raised outside the except block, so that the caller's error is its cause and not also its context.
            if failure is not None:
                raised = self._run_error(run, failure)
                await run.store_last_events()
                raise raised

        return self._result(run)

    def _result(self, run: ActiveRun) -> RunResult:
        return replace(build_result(run.plan, run.state), orphans=tuple(run.orphans))

    async def _drive_until_time_limit(self, run: ActiveRun) -> None:
        limit = run.state.limits.seconds
        seconds = None if limit is None else max(0.0, limit - run.state.active_seconds)

        try:
            async with asyncio.timeout(seconds) as deadline:
                await drive(run, run.state.run_id)
        except TimeoutError:
            if not deadline.expired() or limit is None:
                raise

            await run.record(LimitReached(run_id=run.state.run_id, limit="seconds", value=limit))

    def _run_error(self, run: ActiveRun, error: BaseException) -> Exception:
        """The error for the caller; the stream's last event reports it first."""
        if isinstance(error, RunConflict):
            return error  # the run did not fail: another process drives it

        if run.version == 0 and isinstance(error, CrewError) and not isinstance(error, RunError):
            return error  # the run never started

        run.emit(RunFailed(run_id=run.state.run_id, error=describe(error), error_type=type(error).__name__))
        result = self._result(run)

        if isinstance(error, RunError):
            error.result = result
            return error

        text = scrub_value(run.scrubber, f"Run {run.state.run_id!r} failed: {describe(error)}")
        raised = RunError(text, result=result)
        raised.__cause__ = error
        return raised

    async def cancel_inactive(self, run: ActiveRun) -> None:
        """Record that a run which is not under way is cancelled."""
        run_id = run.state.run_id
        ended = self._cancelling[run_id] = asyncio.get_running_loop().create_future()

        try:
            async with self.claim(run_id):
                with _closing_observers(run):
                    await self._record_cancelled(run)
        finally:
            del self._cancelling[run_id]
            ended.set_result(None)

    async def _record_cancelled(self, run: ActiveRun) -> None:
        if not isinstance(run.state.next, Finished):
            await run.record(Cancelled(run_id=run.state.run_id))

    @asynccontextmanager
    async def claim(self, run_id: str) -> AsyncIterator[None]:
        """Make the current task the only one that drives this run."""
        task = asyncio.current_task()
        assert task is not None

        self.check_inactive(run_id)
        self._tasks[run_id] = task

        try:
            yield
        finally:
            del self._tasks[run_id]
            self._cancelled.discard(run_id)

    def check_inactive(self, run_id: str) -> None:
        """Raise `RunActive` if this run is under way here."""
        if run_id in self._tasks:
            raise RunActive(run_id)

    async def cancel(self, run_id: str) -> bool:
        """Cancel a run that is under way here and wait for its end; False if it is not under way."""
        task = self._tasks.get(run_id)

        if task is None:
            return False

        if run_id in self._cancelling:
            # Another caller records the cancellation in its task, which must not be cancelled.
            await asyncio.wait([self._cancelling[run_id]])
            return True

        self._cancelled.add(run_id)
        await cancel_and_wait(task)
        return True

    async def aclose(self) -> None:
        """Stop all runs, as committed so far, and close the connections."""
        tasks = [task for task in tuple(self._tasks.values()) if task is not asyncio.current_task()]
        await asyncio.gather(*map(cancel_and_wait, tasks))
        await self.connections.aclose()
