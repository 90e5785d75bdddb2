"""`RunStreams`: from the arguments of `execute` and `resume` to a run and the stream of its events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from crew.engine.active_runs import ActiveRuns
from crew.engine.conversations import Conversations
from crew.engine.fairness import take_turn
from crew.engine.observers import Observers, observers_for_run
from crew.engine.requests import RequestProviders
from crew.engine.run import ActiveRun
from crew.engine.run_start import ResumeArguments, RunArguments, RunStarter, build_deps
from crew.engine.stored_runs import ExistingRun, cancel_run, read_state
from crew.engine.stream import EventStream, Publish
from crew.errors import UnknownRun
from crew.runs.events import Resumed
from crew.runs.interfaces import DepsFactory, Observer, ObserverFactory, StoredRun, commits_immediately
from crew.runs.result import RunResult
from crew.runs.state import RunState
from crew.secrets.registry import ExecutorSecrets
from crew.secrets.scrubbing import scrub_value
from crew.store.location import ExecutorStore
from crew.telemetry.executor_telemetry import ExecutorTelemetry
from crew.transitions.plan import Plan
from crew.transitions.result import build_result
from crew.transitions.resume import check_crew
from crew.validation.answer_checks import answers_as_dict, check_answers
from crew.validation.executor_arguments import check_deps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunStreams:
    """Starts and resumes the runs of one executor. It refers to the parts of the executor, never to the executor."""

    starter: RunStarter
    store: ExecutorStore
    active_runs: ActiveRuns
    secrets: ExecutorSecrets
    providers: RequestProviders
    telemetry: ExecutorTelemetry
    observers: tuple[Observer | ObserverFactory, ...]
    deps_factory: DepsFactory | None
    clock: Callable[[], float]
    monotonic: Callable[[], float]

    @property
    def plan(self) -> Plan:
        """The compiled crew."""
        return self.starter.plan

    def start(self, given: RunArguments, deps: Any, *, streams: bool) -> EventStream[Any]:
        """The stream of a new run."""
        checked = self.starter.check(given, self.secrets.scrubber())
        conversations, new = self.conversations(), self.starter.start(checked)

        async def start(publish: Publish) -> RunResult[Any]:
            async def run_after(before: RunState | None) -> RunResult[Any]:
                state, started = new if before is None else self.starter.start(checked, before)
                run, traceparent = self._active_run(state, publish, await self.deps(deps, state), streams=streams)
                run.order = given.order
                return await self.active_runs.run(run, replace(started, traceparent=traceparent))

            return await (run_after(None) if checked.turn is None else conversations.run_turn(checked.turn, run_after))

        if given.on_existing == "error":
            return self._stream(start, checked.run_id)

        existing = ExistingRun(self.store.get(), self.active_runs, self.plan, new[1], self.secrets.scrubber())
        return self._stream(lambda publish: existing.find_or(lambda: start(publish)), checked.run_id)

    def _stream(
        self, work: Callable[[Publish], Awaitable[RunResult[Any]]], run_id: str, *, resumes: bool = False
    ) -> EventStream[Any]:
        return EventStream(
            work,
            run_id,
            self.active_runs.cancel,
            lambda publish: self._cancel(run_id, publish),
            self.plan.output_type,
            resumes=resumes,
        )

    async def _cancel(self, run_id: str, publish: Publish) -> RunResult[Any]:
        """Cancel a run that is paused, or under way again; its result, also if it finished in the meantime."""
        try:
            state = await cancel_run(
                run_id, self.active_runs, self.store.load, lambda stored: self.close(stored, publish)
            )
        except UnknownRun as error:
            if not error.is_finished:
                raise

            state = None

        if state is None and (state := await read_state(self.store.get(), run_id)) is None:
            raise UnknownRun(run_id, is_finished=True)

        return scrub_value(self.secrets.scrubber(), build_result(self.plan, state))

    def conversations(self) -> Conversations:
        """The stored conversations of this crew."""
        # Made for each use: an executor must not refer to itself.
        active = self.active_runs
        return Conversations(self.store.get(), self.plan.crew.name, active.driver, self.close, active.is_owned)

    def resume(self, given: ResumeArguments, deps: Any, *, streams: bool) -> EventStream[Any]:
        """The stream of a run that is continued."""
        run_id, answers = given.run_id, scrub_value(self.secrets.scrubber(), answers_as_dict(given.answers))

        async def work(publish: Publish) -> RunResult[Any]:
            self.active_runs.check_inactive(run_id)
            await take_turn(given.order)
            stored = await self.store.load(run_id)
            await self.active_runs.check_unowned(run_id, take_over=given.take_over)
            check_crew(self.plan, stored.state, strict=given.strict)
            check_answers(stored.state, answers, self.starter.validator, self.plan.tool_of)
            built = await self.deps(deps, stored.state, resumes=True)
            run, trace = self._active_run(stored.state, publish, built, streams=streams, resumes=True)
            run.version, run.order = stored.version, given.order
            resumed = Resumed(run_id=run_id, answers=answers, traceparent=trace)
            return await self.active_runs.run(run, resumed, take_over=given.take_over)

        return self._stream(work, run_id, resumes=True)

    async def close(self, stored: StoredRun, publish: Publish = lambda event: None) -> RunState:
        """Cancel a run that is not under way; its last state."""
        run, _ = self._active_run(stored.state, publish, None, streams=False, resumes=True)
        run.version = stored.version
        await self.active_runs.cancel_inactive(run)
        return run.state

    async def deps(self, given: Any, state: RunState, *, resumes: bool = False) -> Any:
        """The given deps of a run, or those that the factory builds."""
        if given is not None or self.deps_factory is None:
            check_deps(self.plan.crew, given)
            return given

        scrubber = self.secrets.scrubber()
        so_far = scrub_value(scrubber, build_result(self.plan, state)) if resumes else None
        return await build_deps(self.deps_factory, self.plan.crew, state, scrubber, so_far)

    def _active_run(
        self, state: RunState, publish: Publish, deps: Any, *, streams: bool, resumes: bool = False
    ) -> tuple[ActiveRun, str]:
        """A run with its observers, and the W3C traceparent of its trace."""
        scrubber = self.secrets.scrubber_for_run(deps)
        state = scrub_value(scrubber, state)  # an earlier process may not have known all secrets
        telemetry = self.telemetry.start_run(state, scrubber, resumes=resumes)
        others = observers_for_run(self.observers, self.plan.crew, state, resumes=resumes)
        store = self.store.get()
        run = ActiveRun(
            plan=self.plan,
            state=state,
            store=store,
            clock=self.clock,
            monotonic=self.monotonic,
            observers=Observers(state.run_id, (telemetry, *others), publish, scrubber),
            scrubber=scrubber,
            register_keys=self.secrets.register_new_keys,
            providers=self.providers,
            meter=self.starter.meter,
            commits=self.active_runs.commits,
            toolsets=self.active_runs.toolsets,
            deps=deps,
            wants_deltas=streams,
            commits_immediately=commits_immediately(store),
        )
        return run, telemetry.traceparent
