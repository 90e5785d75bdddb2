"""`CrewExecutor`: the public API, and the one place where the packages are joined."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, Unpack

from pydantic import SecretStr

from crew import config
from crew.agents.agent import Agent
from crew.agents.crew import Crew
from crew.engine.active_runs import ActiveRuns
from crew.engine.compile_crew import check_models, compile_crew
from crew.engine.conversations import Conversation, Conversations
from crew.engine.fairness import Admission, take_turn
from crew.engine.held_leases import LeaseKeeper
from crew.engine.observers import Observers, observers_for_run
from crew.engine.requests import RequestProviders
from crew.engine.run import ActiveRun
from crew.engine.run_start import HistoryInput, ResumeArguments, RunArguments, RunOptions, RunStarter, build_deps
from crew.engine.run_sync import run_sync
from crew.engine.stored_runs import ExistingRun, recover_runs
from crew.engine.stream import EventStream, Publish
from crew.engine.token_meter import TokenMeter
from crew.errors import CrewError, UnknownRun
from crew.history.policies.lookup import PolicySpec
from crew.interfaces import RetryPolicy, TokenCounter
from crew.messages import Message, UserMessage
from crew.providers.pool import ProviderPool
from crew.runs.events import Resumed
from crew.runs.interfaces import DepsFactory, Observer, ObserverFactory, RunStore, StoredRun, commits_immediately
from crew.runs.parameters import Limits, RequestParameters
from crew.runs.result import RunResult
from crew.runs.state import RunState
from crew.secrets.registry import ExecutorSecrets
from crew.secrets.scrubbing import scrub_value
from crew.settings import Place, settings_located_by
from crew.store.location import ExecutorStore, StoreLocation, store_problem
from crew.telemetry.executor_telemetry import ExecutorTelemetry, Telemetry
from crew.telemetry.metrics import MetricValue
from crew.telemetry.setup import current_telemetry, telemetry_from_settings
from crew.transitions.result import build_result
from crew.transitions.resume import check_crew
from crew.validation.executor_arguments import answers_as_dict, check_answers, check_arguments
from crew.validation.validator import InputValidator


class CrewExecutor:
    """Runs a crew, any number of times concurrently; runs share no state.

    max_messages_per_request  the bound of the history after every append; the default is the policy's, mostly 50.
    prune_to                  the size to which a pruning cuts; the default is half of the bound.
    history                   the policy that decides which messages stay.
    max_input_tokens          the window of each agent without its own; the default is that of its model.
    sanitize_output           remove thinking tags, NULs and surplus white space from outputs. An agent may override it;
                              the transcript keeps replies as they are.
    limits, parameters        defaults of every run.
    store                     persists runs: an object, the path of an SQLite file, or a URL such as sqlite:///runs.db.
                              The default keeps the newest runs in memory.
    deps                      a sync or async function that builds the deps of a run from its `RunInfo`, when it starts
                              and when it resumes; `execute(deps=…)` and `resume(deps=…)` override it.
    validator                 checks input, history and answers.
    observers                 are called with every event.
    counter                   counts tokens, instead of each model's tokenizer.
    retry                     how often a model request is repeated after an outage. An agent may override it.
    clock, monotonic          the wall clock, which dates a run, and the clock that measures its durations.
    max_concurrent_runs       how many runs are under way at once; further ones wait in the order of their start.
    telemetry                 the default is what `crew.telemetry.configure` or the environment set up.
    secrets                   texts that are removed from messages, logs and traces.
    """

    def __init__(
        self,
        crew: Crew | Agent,
        *,
        max_messages_per_request: int | None = None,
        prune_to: int | None = None,
        history: PolicySpec = "rolling",
        max_input_tokens: int | None = None,
        sanitize_output: bool = False,
        limits: Limits | None = None,
        store: RunStore | StoreLocation | None = None,
        deps: DepsFactory | None = None,
        validator: InputValidator | None = None,
        observers: Sequence[Observer | ObserverFactory] = (),
        parameters: RequestParameters | None = None,
        counter: TokenCounter | None = None,
        retry: RetryPolicy | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        max_concurrent_runs: int | None = None,
        telemetry: Telemetry | None = None,
        secrets: Sequence[str | SecretStr] = (),
    ) -> None:
        check_arguments(
            crew,
            store_problem(store),
            observers,
            secrets,
            deps=deps,
            counter=counter,
            clocks={"clock": clock, "monotonic": monotonic},
            sanitize_output=sanitize_output,
            max_concurrent_runs=max_concurrent_runs,
            settings={
                "limits": (limits, Limits),
                "validator": (validator, InputValidator),
                "parameters": (parameters, RequestParameters),
                "retry": (retry, RetryPolicy),
                "telemetry": (telemetry, Telemetry),
            },
        )
        crew = Crew(crew.name, agents=[crew]) if isinstance(crew, Agent) else crew
        parameters = parameters or RequestParameters()
        self.plan = compile_crew(
            crew,
            history,
            (max_messages_per_request, prune_to),
            parameters,
            max_input_tokens=max_input_tokens,
            sanitize_output=sanitize_output,
        )
        self._meter = TokenMeter(plan=self.plan, counter=counter)
        self._validator = validator or InputValidator()
        self._starter = RunStarter(self.plan, limits or Limits(), parameters, self._validator, self._meter)
        self._deps_factory, self._observers = deps, tuple(observers)
        self._clock, self._monotonic = clock, monotonic
        self._pool = ProviderPool(retry)
        # Not a bound method: an executor without reference cycles closes its connections as soon as it is dropped.
        self._current_telemetry: Callable[[], Telemetry] = lambda: telemetry or current_telemetry()
        self._telemetry = telemetry
        models = [model for agent in self.plan.agents.values() for model in (agent.model, agent.backup)]
        self._secrets = ExecutorSecrets(secrets, [*models, *self.plan.summarizers])
        self._providers = RequestProviders(self._pool, self._secrets.register_new_keys)
        self._executor_telemetry = ExecutorTelemetry(crew, self.plan.budget.limit, clock, self._current_telemetry)
        check_models(self.plan, self._pool.check)
        self._store = ExecutorStore(store)
        self._commits_immediately = commits_immediately(self._store.get())
        leases = LeaseKeeper.of_store(self._store.get, monotonic)
        self._active_runs = ActiveRuns(connections=self._pool, admission=Admission(max_concurrent_runs), leases=leases)

    @classmethod
    def from_config(
        cls,
        path: str | Path,
        crew: str | Crew | Agent,
        *,
        allowed_modules: Sequence[str] | None = None,
        **changes: Any,
    ) -> Self:
        """An executor with the settings of a configuration file; `crew` is the name of a crew in it, or an object.

        A file names tools and models to import, and importing runs code: for a file that others wrote, list the
        `allowed_modules`. `changes` are arguments of the constructor; they override the file.
        """
        settings = config.load(path)
        selected = config.build_crew(settings, crew, str(path), allowed_modules) if isinstance(crew, str) else crew
        options = config.executor_options(settings, str(path))

        if settings.telemetry is not None and "telemetry" not in changes:
            options["telemetry"] = telemetry_from_settings(settings.telemetry)

        def locate(place: Place) -> str:
            """The place in the file of a setting that comes from the file."""
            outside = place[0] in changes or (place[0] == "crews" and selected is crew)
            return "" if outside else settings.location(*place)

        with settings_located_by(locate):
            return cls(selected, **(options | changes))

    # ------------------------------------------------------------------------------------------ running

    async def execute(
        self,
        input: str | UserMessage,
        history: HistoryInput = None,
        agent: str | None = None,
        parameters: RequestParameters | None = None,
        run_id: str | None = None,
        deps: Any = None,
        metadata: Mapping[str, object] | None = None,
        **options: Unpack[RunOptions],
    ) -> RunResult:
        """Run the crew on this input until it is finished, paused, or stopped by a limit.

        `metadata` are JSON values that are stored with the run, and kept when it resumes. If a run with this `run_id`
        exists, `on_existing="return"` returns its result, or its state if it is unfinished; else it is `RunExists`.
        `conversation` is the id of a stored conversation, which this run continues, or of a new one. If its last turn
        is under way, `on_busy` is "error" or "wait"; if it waits for an answer, `on_paused` is "error" or "cancel".
        """
        given = RunArguments(input, history, agent, parameters, run_id, metadata, **options)
        await take_turn(given.order)
        return await self._stream(given, deps, streams=False).drain()

    def execute_stream(
        self,
        input: str | UserMessage,
        history: HistoryInput = None,
        agent: str | None = None,
        parameters: RequestParameters | None = None,
        run_id: str | None = None,
        deps: Any = None,
        metadata: Mapping[str, object] | None = None,
        **options: Unpack[RunOptions],
    ) -> EventStream:
        """The same run as a stream of events."""
        given = RunArguments(input, history, agent, parameters, run_id, metadata, **options)
        return self._stream(given, deps, streams=True)

    def execute_sync(
        self,
        input: str | UserMessage,
        history: HistoryInput = None,
        agent: str | None = None,
        parameters: RequestParameters | None = None,
        run_id: str | None = None,
        deps: Any = None,
        metadata: Mapping[str, object] | None = None,
        **options: Unpack[RunOptions],
    ) -> RunResult:
        """The same run for scripts and notebooks; inside a running event loop it runs on another thread.

        Each thread keeps an event loop, so that connections stay open between calls. Ctrl-C stops the run as `cancel`
        of its task does: its state is committed, and it can be resumed.
        """
        given = RunArguments(input, history, agent, parameters, run_id, metadata, **options)
        stream = self._stream(given, deps, streams=False)
        return run_sync(stream.drain)

    async def resume(
        self,
        run_id: str,
        answers: Mapping[str, Any] | None = None,
        deps: Any = None,
        *,
        strict: bool = False,
        take_over: bool = False,
    ) -> RunResult:
        """Continue a run that was paused, interrupted or failed; nothing whose result was committed is repeated.

        If the crew changed since then, a warning names the changes; with `strict`, `CrewChanged` is raised instead.
        A run that another live process owns raises `RunActive`; `take_over` takes it from that process.
        """
        given = ResumeArguments(run_id, answers, strict, take_over)
        return await self._resume_stream(given, deps, streams=False).drain()

    def resume_stream(
        self,
        run_id: str,
        answers: Mapping[str, Any] | None = None,
        deps: Any = None,
        *,
        strict: bool = False,
        take_over: bool = False,
    ) -> EventStream:
        """The same as a stream of events."""
        given = ResumeArguments(run_id, answers, strict, take_over)
        return self._resume_stream(given, deps, streams=True)

    async def recover(self) -> dict[str, RunResult | CrewError]:
        """Resume the runs of this crew whose owner died, all at the same time: the result or error of each run."""
        return await recover_runs(self._active_runs, self._store.load, self.resume, self.plan.crew.name)

    async def cancel(self, run_id: str) -> None:
        """Cancel a run that is under way or paused; it returns with `stop_reason="cancelled"` and a valid history.

        If another process owns the run, wait until that process has cancelled it.
        """
        if await self._active_runs.cancel(run_id):
            return

        requested = await self._active_runs.cancel_elsewhere(run_id)

        try:
            stored = await self._store.load(run_id)
        except UnknownRun:
            if requested:
                return  # its owner cancelled it

            raise

        if await self._active_runs.cancel(run_id):
            return  # it was resumed in the meantime

        await self._close(stored)

    async def _close(self, stored: StoredRun) -> RunState:
        """Cancel a run that is not under way; its last state."""
        run, _ = self._active_run(stored.state, lambda event: None, None, streams=False, resumes=True)
        run.version = stored.version
        await self._active_runs.cancel_inactive(run)
        return run.state

    async def conversation(self, id: str) -> Conversation:
        """The runs of a stored conversation, its newest messages, and the pauses that wait for an answer."""
        return scrub_value(self._secrets.scrubber(), await self._conversations().read(id))

    async def transcript(self, id: str) -> tuple[Message, ...]:
        """Every message of a stored conversation, or of a run with those of the runs that it continues."""
        return scrub_value(self._secrets.scrubber(), await self._conversations().transcript(id))

    async def aclose(self) -> None:
        """Stop active runs, which stay resumable, close all connections and the store, and flush telemetry.

        A store that was passed as an object stays open. The executor can be used again.
        """
        await self._active_runs.aclose()
        self._store.close()
        await self._current_telemetry().flush()

    def metrics(self) -> dict[str, MetricValue]:
        """The metrics of all runs of this executor so far, by name."""
        return self._executor_telemetry.metrics()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    # ------------------------------------------------------------------------------------------ starting

    def _stream(self, given: RunArguments, deps: Any, *, streams: bool) -> EventStream:
        checked = self._starter.check(given, self._secrets.scrubber())
        conversations, new = self._conversations(), self._starter.start(checked)

        async def start(publish: Publish) -> RunResult:
            async def run_after(before: RunState | None) -> RunResult:
                state, started = new if before is None else self._starter.start(checked, before)
                run, traceparent = self._active_run(state, publish, await self._deps(deps, state), streams=streams)
                run.order = given.order
                return await self._active_runs.run(run, replace(started, traceparent=traceparent))

            return await (run_after(None) if checked.turn is None else conversations.run_turn(checked.turn, run_after))

        if given.on_existing == "error":
            return EventStream(start)

        existing = ExistingRun(self._store.get(), self._active_runs, self.plan, new[1], self._secrets.scrubber())
        return EventStream(lambda publish: existing.find_or(lambda: start(publish)))

    def _conversations(self) -> Conversations:
        # Made for each use: an executor must not refer to itself.
        return Conversations(self._store.get(), self.plan.crew.name, self._close, self._active_runs.is_owned)

    def _resume_stream(self, given: ResumeArguments, deps: Any, *, streams: bool) -> EventStream:
        run_id, answers = given.run_id, scrub_value(self._secrets.scrubber(), answers_as_dict(given.answers))

        async def work(publish: Publish) -> RunResult:
            self._active_runs.check_inactive(run_id)
            await take_turn(given.order)
            stored = await self._store.load(run_id)
            await self._active_runs.check_unowned(run_id, take_over=given.take_over)
            check_crew(self.plan, stored.state, strict=given.strict)
            check_answers(stored.state, answers, self._validator)
            built = await self._deps(deps, stored.state, resumes=True)
            run, trace = self._active_run(stored.state, publish, built, streams=streams, resumes=True)
            run.version, run.order = stored.version, given.order
            resumed = Resumed(run_id=run_id, answers=answers, traceparent=trace)
            return await self._active_runs.run(run, resumed, take_over=given.take_over)

        return EventStream(work)

    async def _deps(self, given: Any, state: RunState, *, resumes: bool = False) -> Any:
        if given is not None or self._deps_factory is None:
            return given

        scrubber = self._secrets.scrubber()
        so_far = scrub_value(scrubber, build_result(self.plan, state)) if resumes else None
        return await build_deps(self._deps_factory, state, scrubber, so_far)

    def _active_run(
        self, state: RunState, publish: Publish, deps: Any, *, streams: bool, resumes: bool = False
    ) -> tuple[ActiveRun, str]:
        """A run with its observers, and the W3C traceparent of its trace."""
        scrubber = self._secrets.scrubber_for_run(deps)
        state = scrub_value(scrubber, state)  # an earlier process may not have known all secrets
        telemetry = self._executor_telemetry.start_run(state, scrubber, resumes=resumes)
        others = observers_for_run(self._observers, self.plan.crew, state, resumes=resumes)
        run = ActiveRun(
            plan=self.plan,
            state=state,
            store=self._store.get(),
            clock=self._clock,
            monotonic=self._monotonic,
            observers=Observers(state.run_id, (telemetry, *others), publish, scrubber),
            scrubber=scrubber,
            register_keys=self._secrets.register_new_keys,
            providers=self._providers,
            meter=self._meter,
            commits=self._active_runs.commits,
            deps=deps,
            wants_deltas=streams,
            commits_immediately=self._commits_immediately,
        )
        return run, telemetry.traceparent
