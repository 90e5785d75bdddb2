"""`WorkerRuntime`: the parts of an executor that a worker needs, for workflows and for activities."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from crew.engine.journal import JournalRun, JournalStore
from crew.engine.observers import Observers
from crew.engine.run import RemoteEffects
from crew.executor import CrewExecutor
from crew.runs.events import Event
from crew.runs.state import RunState
from crew.telemetry.remote_spans import remote_span
from crew.temporal.encoding import EffectInput, plan_fingerprint
from crew.validation.validator import InputValidator


def discard(event: Event) -> None:
    """Drop an event: the client reads it from the store."""


class WorkerRuntime(CrewExecutor[Any, Any]):
    """An executor that drives no run itself: it builds the runs of workflows and of activities."""

    @property
    def fingerprint(self) -> str:
        """A short hash of the crew: a worker takes only runs of the same definition."""
        return plan_fingerprint(self.plan)

    @property
    def validator(self) -> InputValidator:
        """Checks answers."""
        return self._streams.starter.validator

    def mismatch(self, run_id: str, fingerprint: str) -> str:
        """Why this worker can't take a run."""
        return (
            f"Run {run_id!r} was started with another definition of the crew {self.plan.crew.name!r}, or with other "
            f"settings of its history: its fingerprint is {fingerprint}, that of this worker is {self.fingerprint}. "
            "Start a worker with the definition and the settings that started the run; it can also cancel the run."
        )

    def effect_run(self, state: RunState, deps: Any) -> JournalRun:
        """The run of one activity."""
        return self._journal_run(state, self._streams.clock, self._streams.monotonic, deps=deps)

    def workflow_run(
        self, state: RunState, clock: Callable[[], float], effects: RemoteEffects, since: float | None
    ) -> JournalRun:
        """The run of a workflow, which performs no effect itself. Its clock is that of the workflow."""
        return self._journal_run(state, clock, clock, effects=effects, since=since)

    def _journal_run(
        self,
        state: RunState,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        *,
        deps: Any = None,
        effects: RemoteEffects | None = None,
        since: float | None = None,
    ) -> JournalRun:
        scrubber, journal = self._secrets.scrubber_for_run(deps), JournalStore()
        return JournalRun(
            plan=self.plan,
            state=state,
            store=journal,
            journal=journal.journal,
            clock=clock,
            monotonic=monotonic,
            observers=Observers(state.run_id, (), discard, scrubber),
            providers=self._streams.providers,
            meter=self._streams.starter.meter,
            toolsets=self._active_runs.toolsets,
            deps=deps,
            commits_immediately=True,
            scrubber=scrubber,
            register_keys=self._secrets.register_new_keys,
            effects=effects,
            since=since,
        )

    async def build_deps(self, state: RunState) -> Any:
        """The deps of a run, from the factory."""
        return await self._streams.deps(None, state, resumes=True)

    def effect_span(self, given: EffectInput, attempt: int) -> AbstractContextManager[None]:
        """The span of one activity, in the trace of the client that started or resumed the run."""
        name = f"perform {given.kind}"
        attributes: dict[str, str | int] = {"crew.effect.key": given.key, "crew.effect.attempt": attempt}
        return remote_span(self._current_telemetry(), name, given.traceparent, given.path, attributes)
