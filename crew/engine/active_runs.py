"""The runs that are under way in one executor: started, driven to their end, cancelled, or left resumable."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace

from crew.engine.concurrency import USER_CODE_ERRORS, cancel_and_wait, is_failure, wait_for_end
from crew.engine.fairness import Admission, CommitGate, enter_run
from crew.engine.held_leases import LeaseKeeper
from crew.engine.loop import drive
from crew.engine.run import ActiveRun, RunEnded
from crew.engine.toolsets import OpenToolsets
from crew.errors import CrewError, RunActive, RunConflict, RunError, RunExists, describe
from crew.interfaces import AsyncClosable
from crew.runs.events import Cancelled, LimitReached, RunFailed, RunStarted
from crew.runs.result import RunResult
from crew.runs.state import Finished
from crew.secrets.scrubbing import scrub_error, scrub_value
from crew.transitions.advance import InputEvent
from crew.transitions.result import build_result


@contextmanager
def closing_observers(run: ActiveRun) -> Iterator[None]:
    """Notify observers when the run ends, with the error that ended it, if any."""
    try:
        yield
    except BaseException as error:  # observers are notified of every outcome; the error is raised again
        run.is_open = False
        run.observers.close(error, run.state)
        raise

    run.is_open = False
    run.observers.close(None, run.state)


def _driven_elsewhere(run_id: str, driver: str, own: str) -> RunActive:
    """The error for a run that another system drives than that of this executor; one of them may be this process."""
    if not driver:
        advice = f"resume or cancel it without {own}. take_over=True (--take-over) moves it to {own}"
        return RunActive(run_id, "a process", advice)

    with_driver = f"{driver.capitalize()}Executor, or --{driver} HOST:PORT on the command line"
    advice = f"resume or cancel it with {with_driver}. take_over=True (--take-over) takes it from there for ever"
    return RunActive(run_id, f"a workflow of {driver}", advice)


@asynccontextmanager
async def _storing_last_events(run: ActiveRun) -> AsyncIterator[None]:
    """Store the events that no commit followed, before the lease of the run is released."""
    try:
        yield
    finally:
        # A coroutine that is closed because its loop is gone can't await.
        if isinstance(sys.exception(), GeneratorExit):
            run.stop_storing_events()
        else:
            await run.store_last_events()


@dataclass(slots=True, kw_only=True, eq=False)
class ActiveRuns:
    """Holds the task of each run. Connections belong to the executor and its event loop, not to a run.

    `leases` is None if the store has none: then no other process can reach its runs. `driver` is the system that drives
    these runs; it is empty if this process does.
    """

    connections: AsyncClosable
    admission: Admission = field(default_factory=Admission)
    commits: CommitGate = field(default_factory=CommitGate)
    leases: LeaseKeeper | None = None
    driver: str = ""
    toolsets: OpenToolsets = field(default_factory=OpenToolsets)
    _tasks: dict[str, asyncio.Task[object]] = field(default_factory=dict)
    _cancelled: set[str] = field(default_factory=set)
    _ending: set[str] = field(default_factory=set)
    """The runs under way whose outcome is committed: what is left is to release the lease."""
    _cancelling: dict[str, asyncio.Future[None]] = field(default_factory=dict)
    """The inactive runs whose cancellation is being recorded; the future ends with it."""

    async def run(self, run: ActiveRun, first: InputEvent, *, take_over: bool = False) -> RunResult:
        """Record the first event and drive the run; observers are notified when it ends.

        With `take_over` the run is taken from the process that owns it.
        """
        enter_run(run.order, run.state.run_id)

        with closing_observers(run):
            self._check_driver(run, may_change=take_over or isinstance(first, RunStarted))
            return await self._run_claimed(run, first, take_over=take_over)

    def _check_driver(self, run: ActiveRun, *, may_change: bool) -> None:
        """Raise `RunActive` if another system drives this run, unless it is new or taken over."""
        if run.state.driver != self.driver and not may_change:
            raise _driven_elsewhere(run.state.run_id, run.state.driver, self.driver)

        if run.state.driver != self.driver:
            run.state = replace(run.state, driver=self.driver)

    async def _run_claimed(self, run: ActiveRun, first: InputEvent, *, take_over: bool) -> RunResult:
        run_id = run.state.run_id

        if isinstance(first, RunStarted) and run_id in self._tasks:
            raise RunExists(run_id)

        async with self.claim(run_id), AsyncExitStack() as stack, _storing_last_events(run):
            failure: BaseException | None = None

            try:
                async with self.admission.admitted(run.order):
                    await self._record_first(run, first, stack, take_over=take_over)
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

            self._ending.add(run_id)

            # Raised outside the except block, so that the caller's error is its cause and not also its context.
            if failure is not None:
                raise self._run_error(run, failure)

        return self._result(run)

    async def _record_first(
        self, run: ActiveRun, first: InputEvent, stack: AsyncExitStack, *, take_over: bool = False
    ) -> None:
        """Record the first event and take the lease of the run, which is released with the stack.

        A new run takes it with its first commit, not before: its id may belong to a run whose lease must stay.
        """
        run_id, is_new = run.state.run_id, isinstance(first, RunStarted)

        if self.leases is not None:
            held = self.leases.hold(run_id, lambda: self._request_cancel(run_id), is_new=is_new, take_over=take_over)
            run.lease = await stack.enter_async_context(held)

        await run.record(first)

    def _request_cancel(self, run_id: str) -> None:
        """Cancel the task of a run, which then records the cancellation."""
        task = self._tasks.get(run_id)

        if task is not None and run_id not in {*self._cancelling, *self._cancelled, *self._ending}:
            self._cancelled.add(run_id)
            task.cancel()

    def _result(self, run: ActiveRun) -> RunResult:
        result = build_result(run.plan, run.state)
        return replace(result, orphans=tuple(run.orphans)) if run.orphans else result

    async def _drive_until_time_limit(self, run: ActiveRun) -> None:
        limit = run.state.limits.seconds
        seconds = None if limit is None else max(0.0, limit - run.state.active_seconds)

        try:
            async with asyncio.timeout(seconds) as deadline:
                await drive(run, run.state.run_id)
        except RunEnded:
            pass  # a tool ended it, as recorded
        except TimeoutError:
            if not deadline.expired() or limit is None:
                raise

            await run.record(LimitReached(run_id=run.state.run_id, limit="seconds", value=limit))

    def _run_error(self, run: ActiveRun, error: BaseException) -> Exception:
        """The error for the caller; the stream's last event reports it first."""
        if isinstance(error, RunConflict | RunActive):
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
        self._check_driver(run, may_change=False)
        run_id = run.state.run_id
        self.check_inactive(run_id)
        ended = self._cancelling[run_id] = asyncio.get_running_loop().create_future()

        try:
            async with self.claim(run_id), AsyncExitStack() as stack:
                with closing_observers(run):
                    if not isinstance(run.state.next, Finished):
                        await self._record_first(run, Cancelled(run_id=run_id), stack)
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
            self._ending.discard(run_id)

    def check_inactive(self, run_id: str) -> None:
        """Raise `RunActive` if this run is under way here."""
        if self.is_active(run_id):
            raise RunActive(run_id)

    def is_active(self, run_id: str) -> bool:
        """Whether this run is under way here."""
        return run_id in self._tasks

    async def is_owned(self, run_id: str) -> bool:
        """Whether this run is under way here, or in another live process."""
        return run_id in self._tasks or (self.leases is not None and await self.leases.owner(run_id) is not None)

    async def check_unowned(self, run_id: str, *, take_over: bool = False) -> None:
        """Raise `RunActive` if this run is under way in another live process, unless it is taken over."""
        if self.leases is not None and not take_over and (owner := await self.leases.owner(run_id)) is not None:
            raise RunActive(run_id, str(owner))

    async def cancel_elsewhere(self, run_id: str) -> bool:
        """Ask the process that owns a run to cancel it, and wait until it did; False if no process owns it."""
        return self.leases is not None and await self.leases.cancel_elsewhere(run_id)

    async def cancel(self, run_id: str) -> bool:
        """Cancel a run that is under way here and wait for its end; False if it is not, or has ended by itself."""
        task = self._tasks.get(run_id)

        if task is None:
            return False

        if run_id in self._cancelling:
            # Another caller records the cancellation in its task, which must not be cancelled.
            await asyncio.wait([self._cancelling[run_id]])
            return True

        if run_id in self._cancelled or run_id in self._ending:
            # The task records the cancellation, or releases the lease: neither must be interrupted.
            is_cancelled = run_id in self._cancelled
            await wait_for_end(task)
            return is_cancelled

        self._cancelled.add(run_id)
        await cancel_and_wait(task)
        return True

    async def aclose(self) -> None:
        """Stop all runs, as committed so far, and close the toolsets and connections."""
        tasks = [task for task in tuple(self._tasks.values()) if task is not asyncio.current_task()]
        await asyncio.gather(*map(cancel_and_wait, tasks))
        await self.toolsets.aclose()
        await self.connections.aclose()
