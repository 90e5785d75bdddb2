"""`CrewExecutor`: the public face, and the one place where the rooms are joined."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import SecretStr

from crew.agents.agent import Agent
from crew.agents.crew import Crew
from crew.config.build import build_crew, executor_options
from crew.config.yaml_source import load
from crew.engine.active_runs import ActiveRuns
from crew.engine.observers import Observers, observers_for_run
from crew.engine.run import ActiveRun
from crew.engine.stream import EventStream, Publish, run_sync
from crew.engine.token_meter import TokenMeter, check_windows
from crew.errors import InvalidInput, Violation, suggest
from crew.history.policies.chain import split_stages
from crew.history.policies.lookup import PolicySpec, resolve_policy
from crew.history.tokens import ESTIMATOR, count_message_tokens
from crew.interfaces import TokenCounter
from crew.message_rules.repair import rename_duplicate_ids, repair
from crew.messages import Message, UserMessage
from crew.providers.pool import ProviderPool
from crew.providers.retrying import RetryPolicy
from crew.runs.events import Resumed, RunStarted
from crew.runs.interfaces import Observer, ObserverFactory, RunStore
from crew.runs.parameters import Limits, RequestParameters
from crew.runs.result import RunResult
from crew.runs.state import RunState
from crew.secrets.scrubbing import scrub_value
from crew.store.memory import MemoryStore
from crew.telemetry.executor_telemetry import ExecutorTelemetry, Telemetry
from crew.telemetry.metrics import MetricValue
from crew.telemetry.setup import current_telemetry, telemetry_from_settings
from crew.transitions.plan import check_system_messages_fit, check_view_policies, compile_plan, resolve_budget
from crew.transitions.result import continue_from
from crew.validation.executor_arguments import answers_as_dict, check_answers, check_arguments, parameters_or_default
from crew.validation.validator import InputValidator

HistoryInput = RunResult | Sequence[Message | Mapping[str, Any]] | None


class CrewExecutor:
    """Runs a crew, any number of times at once; nothing is shared between runs.

    `max_messages_per_request` bounds the history after every append (50 where nothing else is said), `prune_to` says
    how far a pruning cuts (half of it), `history` which policy decides what stays, `retry` how often and how long a
    model that can't be reached is asked again. With `sanitize_output` answers come out without thinking tags, NULs and
    stray white space (an agent may say otherwise; the transcript keeps all). `telemetry` says who watches (what
    `crew.telemetry.configure` or the environment set up, where nothing is given), `secrets` what nobody may see.
    """

    def __init__(
        self,
        crew: Crew | Agent,
        *,
        max_messages_per_request: int | None = None,
        prune_to: int | None = None,
        history: PolicySpec = "rolling",
        sanitize_output: bool = False,
        limits: Limits | None = None,
        store: RunStore | None = None,
        validator: InputValidator | None = None,
        observers: Sequence[Observer | ObserverFactory] = (),
        parameters: RequestParameters | None = None,
        counter: TokenCounter | None = None,
        retry: RetryPolicy | None = None,
        clock: Callable[[], float] = time.time,
        telemetry: Telemetry | None = None,
        secrets: Sequence[str | SecretStr] = (),
    ) -> None:
        check_arguments(crew, limits, store, validator, parameters, observers)
        crew = Crew(crew.name, agents=[crew]) if isinstance(crew, Agent) else crew
        policy = resolve_policy(history)
        shared, views = split_stages(policy)
        budget = resolve_budget(crew, shared, max_messages_per_request, prune_to)
        self.plan = compile_plan(crew, shared, budget, views, sanitize_output=sanitize_output)
        check_view_policies(self.plan)
        check_windows(self.plan)
        self._meter = TokenMeter(plan=self.plan, counter=counter)
        self._limits = limits or Limits()
        self._store: RunStore = store if store is not None else MemoryStore()
        self._validator = validator or InputValidator()
        self._observers = tuple(observers)
        self._parameters = parameters or RequestParameters()
        self._clock = clock
        self._pool = ProviderPool(retry)
        self._active_runs = ActiveRuns(connections=self._pool)
        self._telemetry = telemetry
        summarizer = self.plan.options.summarizer
        self._executor_telemetry = ExecutorTelemetry(
            crew, self.plan.budget.limit, clock, self._current_telemetry, secrets, models=[summarizer]
        )

        for agent in self.plan.agents.values():
            self._pool.check(agent.model, agent.settings)

            if agent.backup is not None:
                self._pool.check(agent.backup, agent.settings)

        if isinstance(summarizer, str):
            self._pool.check(summarizer)

    @classmethod
    def from_config(cls, path: str | Path, crew: str | Crew | Agent, **changes: Any) -> Self:
        """An executor as a configuration file describes it; `crew` is one that the file defines, or an object.

        Whatever the constructor takes can be given here too, and wins over the file.
        """
        settings = load(path)
        chosen = build_crew(settings, crew, str(path)) if isinstance(crew, str) else crew
        described = executor_options(settings, str(path))

        if settings.telemetry is not None and "telemetry" not in changes:
            described["telemetry"] = telemetry_from_settings(settings.telemetry)

        return cls(chosen, **(described | changes))

    # ------------------------------------------------------------------------------------------ running

    async def execute(
        self,
        input: str | UserMessage,
        history: HistoryInput = None,
        agent: str | None = None,
        parameters: RequestParameters | None = None,
        run_id: str | None = None,
        deps: Any = None,
    ) -> RunResult:
        """Run the crew on this input to its end, its pause or its limit."""
        return await self._stream(input, history, agent, parameters, run_id, deps, streams=False).drain()

    def execute_stream(
        self,
        input: str | UserMessage,
        history: HistoryInput = None,
        agent: str | None = None,
        parameters: RequestParameters | None = None,
        run_id: str | None = None,
        deps: Any = None,
    ) -> EventStream:
        """The same run, watched as it happens."""
        return self._stream(input, history, agent, parameters, run_id, deps, streams=True)

    def execute_sync(
        self,
        input: str | UserMessage,
        history: HistoryInput = None,
        agent: str | None = None,
        parameters: RequestParameters | None = None,
        run_id: str | None = None,
        deps: Any = None,
    ) -> RunResult:
        """The same run for scripts and notebooks; inside a running event loop it works on a thread of its own."""
        stream = self._stream(input, history, agent, parameters, run_id, deps, streams=False)
        return run_sync(stream)

    async def resume(self, run_id: str, answers: Mapping[str, Any] | None = None, deps: Any = None) -> RunResult:
        """Carry on a run that was paused, interrupted or failed; nothing whose result was committed is repeated."""
        return await self._resume_stream(run_id, answers, deps, streams=False).drain()

    def resume_stream(self, run_id: str, answers: Mapping[str, Any] | None = None, deps: Any = None) -> EventStream:
        """The same, watched as it happens."""
        return self._resume_stream(run_id, answers, deps, streams=True)

    async def cancel(self, run_id: str) -> None:
        """End a run, under way or paused; it returns with `stop_reason="cancelled"` and a valid history."""
        if await self._active_runs.cancel(run_id):
            return

        stored = await self._store.load(run_id)

        if await self._active_runs.cancel(run_id):
            return  # somebody carried it on meanwhile

        async with self._active_runs.claim(run_id):
            run, _ = self._active_run(stored.state, lambda event: None, None, streams=False, resumes=True)
            run.version = stored.version
            await self._active_runs.cancel_inactive(run)

    async def aclose(self) -> None:
        """Stop what is under way (it can be resumed), close every connection, and send what telemetry still holds."""
        await self._active_runs.aclose()
        await self._current_telemetry().flush()

    def metrics(self) -> dict[str, MetricValue]:
        """What this executor's runs came to so far, by the metric's name."""
        return self._executor_telemetry.metrics()

    async def __aenter__(self) -> Self:
        self._active_runs.keep_connections = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # ------------------------------------------------------------------------------------------ beginning

    def _stream(
        self,
        input: str | UserMessage,
        history: HistoryInput,
        agent: str | None,
        parameters: RequestParameters | None,
        run_id: str | None,
        deps: Any,
        *,
        streams: bool,
    ) -> EventStream:
        told = parameters_or_default(parameters, self._parameters)
        state, started = self._start_state(input, history, agent, run_id, keep=told.enable_token_caching)
        state = replace(state, parameters=told)

        async def work(publish: Publish) -> RunResult:
            run, trace = self._active_run(state, publish, deps, streams=streams)
            return await self._active_runs.run(run, replace(started, traceparent=trace))

        return EventStream(work)

    def _start_state(
        self, input: str | UserMessage, history: HistoryInput, agent: str | None, run_id: str | None, *, keep: bool
    ) -> tuple[RunState, RunStarted]:
        goal = scrub_value(
            self._executor_telemetry.scrub, input if isinstance(input, UserMessage) else UserMessage(input)
        )
        before = (
            ()
            if history is None or isinstance(history, RunResult)
            else scrub_value(self._executor_telemetry.scrub, history)
        )
        given = self._validator.check(goal.text, history=before, agent=agent, run_id=run_id)
        start = self._entry(agent)
        id = run_id or uuid.uuid4().hex
        state = RunState(run_id=id, conversation_id=id, crew=self.plan.crew.name, agent=start, limits=self._limits)

        if isinstance(history, RunResult):
            state = continue_from(state, history.state)

        mended = repair(rename_duplicate_ids((*state.history.messages, *given, goal))[len(state.history.entries) :])
        check_system_messages_fit(self.plan, (*state.history.messages, *mended.messages))
        entry = self.plan.agents.get(start)
        counter = ESTIMATOR if entry is None else self._meter.counter_for(entry.model)
        tokens = tuple(count_message_tokens(message, counter, keep=keep) for message in mended.messages)
        started = RunStarted(run_id=id, messages=mended.messages, tokens=tokens, repairs=mended.changes)
        return state, replace(started, token_budgets=self._meter.token_budgets)

    def _entry(self, agent: str | None) -> str:
        name = agent or self.plan.crew.entry_name

        if name not in self.plan.agents and name not in self.plan.groups:
            known = suggest(name, [*self.plan.agents, *self.plan.groups])
            text = f"There is no agent {name!r} in the crew {self.plan.crew.name!r}. {known}"
            raise InvalidInput([Violation(rule="agent", text=text, value=name)])

        return name

    def _resume_stream(
        self, run_id: str, answers: Mapping[str, Any] | None, deps: Any, *, streams: bool
    ) -> EventStream:
        given = scrub_value(self._executor_telemetry.scrub, answers_as_dict(answers))

        async def work(publish: Publish) -> RunResult:
            self._active_runs.check_inactive(run_id)
            stored = await self._store.load(run_id)
            check_answers(stored.state, given, self._validator)
            run, trace = self._active_run(stored.state, publish, deps, streams=streams, resumes=True)
            run.version = stored.version
            return await self._active_runs.run(run, Resumed(run_id=run_id, answers=given, traceparent=trace))

        return EventStream(work)

    def _current_telemetry(self) -> Telemetry:
        return self._telemetry if self._telemetry is not None else current_telemetry()

    def _active_run(
        self, state: RunState, publish: Publish, deps: Any, *, streams: bool, resumes: bool = False
    ) -> tuple[ActiveRun, str]:
        """A run under watch, and the trace that it is watched in."""
        scrub = self._executor_telemetry.scrub_for(deps)
        state = scrub_value(scrub, state)  # others may have left there what they did not know to be a secret
        watch = self._executor_telemetry.start_run(state, resumes=resumes)
        others = observers_for_run(self._observers, self.plan.crew, state, resumes=resumes)
        watching = Observers(state.run_id, (watch, *others), publish, scrub)
        run = ActiveRun(
            plan=self.plan,
            state=state,
            store=self._store,
            clock=self._clock,
            observers=watching,
            scrubber=scrub,
            providers=self._pool,
            meter=self._meter,
            deps=deps,
            wants_deltas=streams,
        )
        return run, watch.traceparent
