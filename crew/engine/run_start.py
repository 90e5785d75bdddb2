"""From the arguments of `execute` to the state of a new run and its first event."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from types import FunctionType, MethodType
from typing import Any, Literal, TypedDict

from pydantic import JsonValue

from crew.agents.crew import Crew
from crew.engine.compile_crew import CheckModel
from crew.engine.concurrency import USER_CODE_ERRORS, is_failure
from crew.engine.conversations import OnBusy, OnPaused, Turn
from crew.engine.fairness import RunOrder, next_order
from crew.engine.run_overrides import apply_overrides, check_overrides
from crew.engine.token_meter import TokenMeter
from crew.errors import InvalidInput, RunError, Violation, describe, suggest
from crew.history.tokens import ESTIMATOR, count_message_tokens
from crew.interfaces import ModelSettings
from crew.message_rules.repair import rename_duplicate_ids, repair
from crew.messages import Message, UserMessage
from crew.runs.events import RunStarted
from crew.runs.interfaces import PRINCIPAL_KEY, DepsFactory, RunInfo
from crew.runs.parameters import Limits, RequestParameters, RunOverrides
from crew.runs.result import ResultHistory, RunResult
from crew.runs.state import RunState
from crew.secrets.registry import SecretRegistry
from crew.secrets.scrubbing import scrub_error, scrub_value
from crew.transitions.plan import Plan, check_system_messages_fit
from crew.transitions.result import continue_from, continue_messages
from crew.validation.executor_arguments import (
    check_conversation,
    check_deps,
    check_metadata,
    check_on_existing,
    check_parameters,
    read_overrides,
)
from crew.validation.validator import InputValidator

OnExisting = Literal["error", "return"]
HistoryInput = RunResult[Any] | Sequence[Message | Mapping[str, Any]] | None


class RunOptions(TypedDict, total=False):
    """The keyword arguments of `execute` that are rarely needed: overrides, and what is stored already."""

    model: str | None
    settings: ModelSettings | None

    on_existing: OnExisting
    conversation: str | None
    on_busy: OnBusy
    on_paused: OnPaused


class ResumeOptions(TypedDict, total=False):
    """The keyword arguments of `resume` that are rarely needed."""

    strict: bool
    take_over: bool


@dataclass(frozen=True, slots=True)
class RunArguments:
    """The arguments of one `execute`."""

    input: str | UserMessage
    history: HistoryInput
    agent: str | None
    parameters: RequestParameters | None
    run_id: str | None
    metadata: Mapping[str, object] | None
    model: str | None = None
    settings: ModelSettings | None = None
    on_existing: OnExisting = "error"
    conversation: str | None = None
    on_busy: OnBusy = "error"
    on_paused: OnPaused = "error"
    order: RunOrder = field(default_factory=next_order)


@dataclass(frozen=True, slots=True)
class ResumeArguments:
    """The arguments of one `resume`."""

    run_id: str
    answers: Mapping[str, object] | None
    strict: bool = False
    take_over: bool = False
    order: RunOrder = field(default_factory=next_order)


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """The checked arguments of one `execute`; `turn` if they name a conversation."""

    messages: tuple[Message, ...]
    history: HistoryInput
    agent: str
    parameters: RequestParameters
    run_id: str
    metadata: dict[str, JsonValue]
    turn: Turn | None
    overrides: RunOverrides = field(default_factory=RunOverrides)


@dataclass(frozen=True, slots=True)
class RunStarter:
    """Checks the arguments of a run and builds its first state."""

    plan: Plan
    limits: Limits
    parameters: RequestParameters
    validator: InputValidator
    meter: TokenMeter
    check_model: CheckModel = lambda *_: None

    def check(self, given: RunArguments, scrubber: SecretRegistry) -> CheckedRun:
        """The checked arguments. Raises `InvalidInput` before anything is stored."""
        check_on_existing(given.on_existing, given.run_id)
        parameters = self.parameters if given.parameters is None else check_parameters(given.parameters)
        goal = given.input if isinstance(given.input, UserMessage) else UserMessage(given.input)

        if not self.validator.is_too_long(goal.text):  # else it is refused: searching it would only take time
            goal = scrub_value(scrubber, goal)

        history = given.history
        outside = () if history is None or isinstance(history, RunResult) else scrub_value(scrubber, history)
        imported = self.validator.check(goal.text, history=outside, agent=given.agent, run_id=given.run_id)
        metadata = scrub_value(scrubber, check_metadata(given.metadata))
        overrides = read_overrides(given.model, given.settings)
        check_overrides(self.plan, overrides, self.check_model)
        run_id = given.run_id or uuid.uuid4().hex
        turn: Turn | None = None

        if given.conversation is not None:
            check_conversation(given.conversation, given.history, given.on_busy, given.on_paused)
            turn = Turn(
                conversation_id=given.conversation,
                run_id=run_id,
                principal=metadata.get(PRINCIPAL_KEY),
                on_busy=given.on_busy,
                on_paused=given.on_paused,
            )

        return CheckedRun(
            messages=(*imported, goal),
            history=history,
            agent=self._known_agent(given.agent) if given.agent else "",
            parameters=parameters,
            run_id=run_id,
            metadata=metadata,
            turn=turn,
            overrides=overrides,
        )

    def start(self, checked: CheckedRun, before: RunState | None = None) -> tuple[RunState, RunStarted]:
        """The state before the first event, and that event. `before` is the last state of the conversation."""
        agent, warnings = self._first_agent(checked, before)
        state = RunState(
            run_id=checked.run_id,
            conversation_id=checked.run_id if checked.turn is None else checked.turn.conversation_id,
            crew=self.plan.crew.name,
            agent=agent,
            limits=self.limits,
            parameters=checked.parameters,
            metadata=checked.metadata,
            overrides=checked.overrides,
            turn=0 if checked.turn is None else 1 if before is None else before.turn + 1,
        )

        if before is not None:
            state = continue_from(state, before)
        elif isinstance(checked.history, RunResult):
            state = continue_from(state, checked.history.state)
        elif isinstance(checked.history, ResultHistory):
            state = continue_messages(self.plan, state, checked.history)

        plan, meter = apply_overrides(self.plan, self.meter, checked.overrides)
        starter = self if plan is self.plan else replace(self, plan=plan, meter=meter)
        return state, starter._first_event(state, checked.messages, warnings)

    def _first_agent(self, checked: CheckedRun, before: RunState | None) -> tuple[str, tuple[str, ...]]:
        """The given agent, the one that answered last in the conversation, or the entry; and a warning."""
        if checked.agent or before is None:
            return checked.agent or self.plan.entry, ()

        if before.agent in self.plan.agents or before.agent in self.plan.groups:
            return before.agent, ()

        text = f"The crew no longer has the agent {before.agent!r}, which answered last in this conversation: "
        return self.plan.entry, (f"{text}the turn starts with {self.plan.entry!r}.",)

    def _first_event(self, state: RunState, messages: Sequence[Message], warnings: tuple[str, ...]) -> RunStarted:
        """The event that adds these messages to the history, repaired and counted."""
        before, parameters = state.history.messages, state.parameters
        repaired = repair(rename_duplicate_ids((*before, *messages))[len(before) :])
        check_system_messages_fit(self.plan, (*before, *repaired.messages))
        entry = self.plan.agents.get(state.agent)
        counter = ESTIMATOR if entry is None else self.meter.counter_for(entry, entry.model, parameters.max_tokens)
        keep = parameters.enable_token_caching
        return RunStarted(
            run_id=state.run_id,
            messages=repaired.messages,
            tokens=tuple([count_message_tokens(message, counter, keep=keep) for message in repaired.messages]),
            repairs=repaired.changes,
            warnings=warnings,
            token_budgets=self.meter.token_budgets(parameters.max_tokens),
            history_policy=self.plan.policy_spec,
            history_limit=self.plan.budget.limit,
            prune_to=None if self.plan.budget.limit is None else self.plan.budget.prune_to,
        )

    def _known_agent(self, name: str) -> str:
        if name not in self.plan.agents and name not in self.plan.groups:
            known = suggest(name, [*self.plan.agents, *self.plan.groups])
            text = f"The crew {self.plan.crew.name!r} has no agent {name!r}. {known}"
            raise InvalidInput([Violation(rule="agent", text=text, value=name)])

        return name


async def build_deps(
    factory: DepsFactory, crew: Crew, state: RunState, scrubber: SecretRegistry, so_far: RunResult | None = None
) -> object:
    """The deps of a run that starts in this state, or resumes: then `so_far` is its result until now."""
    info = RunInfo(run_id=state.run_id, conversation_id=state.conversation_id, metadata=deepcopy(state.metadata))

    try:
        made = factory(info)
        deps = await made if isawaitable(made) else made
        check_deps(crew, deps)
        return deps
    except USER_CODE_ERRORS as error:  # the deps factory is user code: the caller gets a RunError
        if not is_failure(error):
            raise

        scrub_error(scrubber, error)
        failure = error

    # Raised outside the except block, so that the caller's error is its cause and not also its context.
    done = "started, and nothing is stored" if so_far is None else "resumed, and it is unchanged"
    name = factory.__qualname__ if isinstance(factory, FunctionType | MethodType | type) else type(factory).__qualname__
    text = f"Run {state.run_id!r} was not {done}: its deps factory {name} failed: {describe(failure)}"
    raise RunError(scrub_value(scrubber, text), result=so_far) from failure
