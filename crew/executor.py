"""`CrewExecutor`: the public API, and the one place where the packages are joined."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Self, Unpack

from pydantic import SecretStr
from typing_extensions import TypeVar

from crew import config
from crew.agents.agent import Agent, AnyAgent
from crew.agents.crew import Crew
from crew.engine.active_runs import ActiveRuns
from crew.engine.compile_crew import check_models, compile_crew
from crew.engine.conversations import Conversation
from crew.engine.fairness import Admission, take_turn
from crew.engine.held_leases import LeaseKeeper
from crew.engine.requests import RequestProviders
from crew.engine.run_start import HistoryInput, ResumeArguments, ResumeOptions, RunArguments, RunOptions, RunStarter
from crew.engine.run_sync import run_sync
from crew.engine.stored_runs import cancel_run, is_driven_elsewhere, recover_runs, unfinished_runs
from crew.engine.stream import EventStream
from crew.engine.token_meter import TokenMeter
from crew.errors import CrewError
from crew.history.policies.lookup import PolicySpec
from crew.interfaces import RetryPolicy, TokenCounter
from crew.messages import Message, UserMessage
from crew.providers.pool import ProviderPool, limiter_for
from crew.providers.rate_limits import RateLimit, RateLimiter
from crew.run_streams import RunStreams
from crew.runs.interfaces import Observer, ObserverFactory, RunInfo, RunStore
from crew.runs.parameters import Limits, RequestParameters
from crew.runs.result import RunResult
from crew.secrets.registry import ExecutorSecrets
from crew.secrets.scrubbing import scrub_value
from crew.settings import Place, settings_located_by
from crew.store.location import ExecutorStore, StoreLocation, store_problem
from crew.telemetry.executor_telemetry import ExecutorTelemetry, Telemetry
from crew.telemetry.metrics import MetricValue
from crew.telemetry.setup import current_telemetry, telemetry_from_settings
from crew.validation.executor_arguments import check_arguments
from crew.validation.validator import InputValidator

Deps_contra = TypeVar("Deps_contra", contravariant=True, default=Any)
Output_co = TypeVar("Output_co", covariant=True, default=Any)
Value = TypeVar("Value")


class CrewExecutor(Generic[Deps_contra, Output_co]):
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
    rate_limits               the requests and tokens a minute of a provider or model, by name, or a `RateLimiter` that
                              several executors share.
    clock, monotonic          the wall clock, which dates a run, and the clock that measures its durations.
    max_concurrent_runs       how many runs are under way at once; further ones wait in the order of their start.
    telemetry                 the default is what `crew.telemetry.configure` or the environment set up.
    secrets                   texts that are removed from messages, logs and traces.
    """

    def __init__(
        self,
        crew: Crew[Deps_contra, Output_co] | Agent[Deps_contra, Output_co],
        *,
        max_messages_per_request: int | None = None,
        prune_to: int | None = None,
        history: PolicySpec = "rolling",
        max_input_tokens: int | None = None,
        sanitize_output: bool = False,
        limits: Limits | None = None,
        store: RunStore | StoreLocation | None = None,
        deps: Callable[[RunInfo], Deps_contra | Awaitable[Deps_contra]] | None = None,
        validator: InputValidator | None = None,
        observers: Sequence[Observer | ObserverFactory] = (),
        parameters: RequestParameters | None = None,
        counter: TokenCounter | None = None,
        retry: RetryPolicy | None = None,
        rate_limits: Mapping[str, RateLimit] | RateLimiter | None = None,
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
        meter, validator = TokenMeter(plan=self.plan, counter=counter), validator or InputValidator()
        used = [part for a in self.plan.agents.values() for part in (a.model, a.backup, a.settings, *a.toolsets)]
        self._pool = ProviderPool(retry, limiter_for(rate_limits, [*used, *self.plan.summarizers], crew.name))
        # Not a bound method: an executor without reference cycles closes its connections as soon as it is dropped.
        self._current_telemetry: Callable[[], Telemetry] = lambda: telemetry or current_telemetry()
        self._secrets = ExecutorSecrets(secrets, [*used, *self.plan.summarizers])
        self._executor_telemetry = ExecutorTelemetry(crew, self.plan.budget.limit, clock, self._current_telemetry)
        check_models(self.plan, self._pool.check)
        self._store = ExecutorStore(store)
        leases = LeaseKeeper.of_store(self._store.get, monotonic)
        self._active_runs = ActiveRuns(connections=self._pool, admission=Admission(max_concurrent_runs), leases=leases)
        self._streams = RunStreams(
            starter=RunStarter(self.plan, limits or Limits(), parameters, validator, meter, self._pool.check),
            store=self._store,
            active_runs=self._active_runs,
            secrets=self._secrets,
            providers=RequestProviders(self._pool, self._secrets.register_new_keys),
            telemetry=self._executor_telemetry,
            observers=tuple(observers),
            deps_factory=deps,
            clock=clock,
            monotonic=monotonic,
        )

    @classmethod
    def from_config(
        cls,
        path: str | Path,
        crew: str | Crew | AnyAgent,
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
            return cls(crew=selected, **(options | changes))

    # ------------------------------------------------------------------------------------------ running

    async def execute(
        self,
        input: str | UserMessage,
        history: HistoryInput = None,
        agent: str | None = None,
        parameters: RequestParameters | None = None,
        run_id: str | None = None,
        deps: Deps_contra | None = None,
        metadata: Mapping[str, object] | None = None,
        **options: Unpack[RunOptions],
    ) -> RunResult[Output_co]:
        """Run the crew on this input until it is finished, paused, or stopped by a limit.

        `metadata` are JSON values that are stored with the run, and kept when it resumes. `model` (a name) and
        `settings` override those of all agents for this run; they are stored too. If a run with this `run_id` exists,
        `on_existing="return"` returns its result, or its state if it is unfinished; else it is `RunExists`.
        `conversation` is the id of a stored conversation, which this run continues, or of a new one. If its last turn
        is under way, `on_busy` is "error" or "wait"; if it waits for an answer, `on_paused` is "error" or "cancel".
        """
        given = RunArguments(input, history, agent, parameters, run_id, metadata, **options)
        await take_turn(given.order)
        return await self._streams.start(given, deps, streams=False).drain()

    def execute_stream(
        self,
        input: str | UserMessage,
        history: HistoryInput = None,
        agent: str | None = None,
        parameters: RequestParameters | None = None,
        run_id: str | None = None,
        deps: Deps_contra | None = None,
        metadata: Mapping[str, object] | None = None,
        **options: Unpack[RunOptions],
    ) -> EventStream[Output_co]:
        """The same run as a stream of events."""
        given = RunArguments(input, history, agent, parameters, run_id, metadata, **options)
        return self._streams.start(given, deps, streams=True)

    def execute_sync(
        self,
        input: str | UserMessage,
        history: HistoryInput = None,
        agent: str | None = None,
        parameters: RequestParameters | None = None,
        run_id: str | None = None,
        deps: Deps_contra | None = None,
        metadata: Mapping[str, object] | None = None,
        **options: Unpack[RunOptions],
    ) -> RunResult[Output_co]:
        """The same run for scripts and notebooks; inside a running event loop it runs on another thread.

        Each thread keeps an event loop, so that connections stay open between calls. Ctrl-C stops the run as `cancel`
        of its task does: its state is committed, and it can be resumed.
        """
        given = RunArguments(input, history, agent, parameters, run_id, metadata, **options)
        stream = self._streams.start(given, deps, streams=False)
        return run_sync(stream.drain)

    def resume_sync(
        self,
        run_id: str,
        answers: Mapping[str, Any] | None = None,
        deps: Deps_contra | None = None,
        **options: Unpack[ResumeOptions],
    ) -> RunResult[Output_co]:
        """The same as `resume`, for scripts and notebooks, as `execute_sync`."""
        stream = self._streams.resume(ResumeArguments(run_id, answers, **options), deps, streams=False)
        return run_sync(stream.drain)

    async def resume(
        self,
        run_id: str,
        answers: Mapping[str, Any] | None = None,
        deps: Deps_contra | None = None,
        **options: Unpack[ResumeOptions],
    ) -> RunResult[Output_co]:
        """Continue a run that was paused, interrupted or failed; nothing whose result was committed is repeated.

        If the crew changed since then, a warning names the changes; with `strict`, `CrewChanged` is raised instead.
        A run that another live process owns raises `RunActive`; `take_over` takes it from that process.
        """
        given = ResumeArguments(run_id, answers, **options)
        return await self._streams.resume(given, deps, streams=False).drain()

    def resume_stream(
        self,
        run_id: str,
        answers: Mapping[str, Any] | None = None,
        deps: Deps_contra | None = None,
        **options: Unpack[ResumeOptions],
    ) -> EventStream[Output_co]:
        """The same as a stream of events."""
        given = ResumeArguments(run_id, answers, **options)
        return self._streams.resume(given, deps, streams=True)

    async def recover(self, *, interrupted: bool = False) -> dict[str, RunResult[Output_co] | CrewError]:
        """Resume the runs of this crew whose owner died, all at the same time: the result or error of each run.

        With `interrupted`, also the unfinished runs that nothing drives: `aclose` or the cancellation of a task stopped
        them. Paused and failed runs wait for a person.
        """
        crew = self.plan.crew.name
        unfinished = await unfinished_runs(self.store, crew) if interrupted else ()
        return await recover_runs(self._active_runs, self._store.load, self.resume, crew, unfinished)

    async def cancel(self, run_id: str) -> None:
        """Cancel a run that is under way or paused; it returns with `stop_reason="cancelled"` and a valid history.

        If another process owns the run, wait until that process has cancelled it.
        """
        await cancel_run(run_id, self._active_runs, self._store.load, self._streams.close)

    @property
    def store(self) -> RunStore:
        """The store of the runs; one that was closed with the executor is opened again."""
        return self._store.get()

    async def is_owned(self, run_id: str) -> bool:
        """Whether this run is under way: here, in another live process that shares the store, or in a workflow."""
        return await self._active_runs.is_owned(run_id) or await is_driven_elsewhere(
            run_id, self._active_runs, self.store
        )

    def scrub(self, value: Value) -> Value:
        """The value without the secrets that this executor knows; for values that were read from the store."""
        return scrub_value(self._secrets.scrubber(), value)

    async def conversation(self, id: str) -> Conversation:
        """The runs of a stored conversation, its newest messages, and the pauses that wait for an answer."""
        return self.scrub(await self._streams.conversations().read(id))

    async def transcript(self, id: str) -> tuple[Message, ...]:
        """Every message of a stored conversation, or of a run with those of the runs that it continues."""
        return self.scrub(await self._streams.conversations().transcript(id))

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
