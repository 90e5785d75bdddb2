"""The measurements of one run, made from its events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crew.messages import Usage
from crew.runs import Event, Limits, RunState
from crew.runs.events import (
    AgentStarted,
    Asked,
    BranchFinished,
    BranchStarted,
    HistoryPruned,
    Paused,
    Replied,
    Retried,
    RunFailed,
    RunFinished,
    TextDelta,
    ToolReturned,
)
from crew.telemetry import names
from crew.telemetry.figures import Labels

NEAR = 0.8
SUMMARISED = frozenset({"summarised"})

Record = Callable[[str, float, Labels], None]
Near = Callable[[str, float, float], None]


class Measures:
    """Tells `record` of every measurement, and `near` when 80 % of a limit is used, once for each limit."""

    def __init__(self, record: Record, near: Near, crew: str, state: RunState, bound: int | None, began: float) -> None:
        self._record, self._near = record, near
        self._state, self._bound, self._began = state, bound, began
        self._crew: Labels = ((names.WORKFLOW_NAME, crew),)
        self._asked: dict[str, tuple[float, Labels]] = {}
        self._first: set[str] = set()
        self._agents: dict[str, tuple[str, float]] = {}
        self._said: set[str] = set()
        self._usage, self._rounds, self._last = spent(state)[0], spent(state)[1], began
        self._stop = ""
        self._on: dict[type[Any], Callable[[Any], None]] = {
            AgentStarted: self._agent_started,
            Asked: self._on_asked,
            TextDelta: self._delta,
            Replied: self._replied,
            ToolReturned: self._tool_returned,
            BranchStarted: self._branch_started,
            BranchFinished: self._branch_finished,
            HistoryPruned: self._pruned,
            Retried: self._retried,
            Paused: self._paused,
            RunFailed: self._failed,
            RunFinished: self._finished,
        }
        record(names.RUNS_ACTIVE, 1, self._crew)

    def __call__(self, event: Event) -> None:
        act = self._on.get(type(event)) or (self._summarised if event.kind in SUMMARISED else None)

        if act is not None:
            self._last = event.at
            act(event)

    # ------------------------------------------------------------------------------------------ models

    def _on_asked(self, event: Asked) -> None:
        labels = (
            (names.OPERATION, names.CHAT),
            (names.PROVIDER, event.provider),
            (names.REQUEST_MODEL, event.model),
            (names.AGENT_NAME, event.agent),
        )
        self._asked[event.run_id] = (event.at, labels)
        self._first.discard(event.run_id)

        if self._bound:
            self._record(names.HISTORY_UTILISATION, event.messages / self._bound, self._crew)
            self._check("messages", event.messages, self._bound)

    def _delta(self, event: TextDelta) -> None:
        if event.run_id not in self._first and event.run_id in self._asked:
            self._first.add(event.run_id)
            began, labels = self._asked[event.run_id]
            self._record(names.FIRST_CHUNK, max(0.0, event.at - began), labels)

    def _replied(self, event: Replied) -> None:
        began, labels = self._asked.pop(event.run_id, (event.at, ()))
        self._record(names.CLIENT_DURATION, max(0.0, event.at - began), labels)
        self.bill(event.usage, labels)
        self._rounds += 1
        self._usage += event.usage
        self._check_limits(event.at)

    def bill(self, usage: Usage, labels: Labels) -> None:
        """What one model call cost."""
        record = self._record
        record(names.TOKEN_USAGE, usage.input_tokens, (*labels, (names.TOKEN_TYPE, "input")))
        record(names.TOKEN_USAGE, usage.output_tokens, (*labels, (names.TOKEN_TYPE, "output")))

        if usage.input_tokens:
            record(names.READ_RATIO, usage.cache_read_tokens / usage.input_tokens, labels)

        if usage.cost:
            record(names.COST_USD, usage.cost, labels)

    def _summarised(self, event: Any) -> None:
        self.bill(event.usage, ((names.OPERATION, names.CHAT), (names.REQUEST_MODEL, event.model)))
        self._usage += event.usage

    def chat_failed(self, run_id: str, error: BaseException, at: float) -> None:
        """A question came to an error."""
        if run_id in self._asked:
            began, labels = self._asked.pop(run_id)
            self._record(
                names.CLIENT_DURATION, max(0.0, at - began), (*labels, (names.ERROR_TYPE, type(error).__name__))
            )

    def _retried(self, event: Retried) -> None:
        self._record(names.RETRIES, 1, ((names.PROVIDER, event.provider), (names.REQUEST_MODEL, event.model)))

    # ------------------------------------------------------------------------------------------ agents and tools

    def _agent_started(self, event: AgentStarted) -> None:
        self._agent_ended(event.run_id, event.at)
        self._agents[event.run_id] = (event.agent, event.at)

    def _agent_ended(self, run_id: str, at: float) -> None:
        if run_id in self._agents:
            agent, began = self._agents.pop(run_id)
            self._record(names.AGENT_DURATION, max(0.0, at - began), ((names.AGENT_NAME, agent),))

    def _branch_started(self, event: BranchStarted) -> None:
        if event.group:
            self._agent_ended(event.run_id, event.at)

    def _branch_finished(self, event: BranchFinished) -> None:
        self._agent_ended(event.branch, event.at)

    def _tool_returned(self, event: ToolReturned) -> None:
        labels: Labels = ((names.TOOL_NAME, event.result.name),)

        if event.result.outcome == "error":
            # A name that the model made up would be one more series each time.
            labels = labels if event.seconds else ((names.TOOL_NAME, "[not run]"),)
            self._record(names.TOOL_ERRORS, 1, labels)

        if event.seconds:
            self._record(names.TOOL_DURATION, event.seconds, labels)

    # ------------------------------------------------------------------------------------------ history and limits

    def _pruned(self, event: HistoryPruned) -> None:
        policy = (*self._crew, (names.HISTORY_POLICY, event.policy))
        self._record(names.MESSAGES_PRUNED, event.before - event.after, policy)
        self._record(names.HISTORY_SIZE, event.before, (*policy, (names.STAGE, "before")))
        self._record(names.HISTORY_SIZE, event.after, (*policy, (names.STAGE, "after")))

    def _used(self, at: float) -> list[tuple[str, float, float | None]]:
        limits: Limits = self._state.limits
        return [
            ("rounds", self._rounds, limits.rounds),
            ("tokens", self._usage.total_tokens, limits.tokens),
            ("cost_usd", self._usage.cost or 0.0, limits.cost_usd),
            ("seconds", self._state.active_seconds + at - self._began, limits.seconds),
        ]

    def _check_limits(self, at: float) -> None:
        for name, value, limit in self._used(at):
            if limit:
                self._check(name, value, limit)

    def _check(self, name: str, value: float, limit: float) -> None:
        if value >= NEAR * limit and name not in self._said:
            self._said.add(name)
            self._near(name, value, limit)

    # ------------------------------------------------------------------------------------------ the end

    def _paused(self, event: Paused) -> None:
        self._stop = "paused"

    def _failed(self, event: RunFailed) -> None:
        if event.run_id == self._state.run_id:
            self._stop = "failed"

    def _finished(self, event: RunFinished) -> None:
        self._stop = event.stop_reason

    def close(self, error: BaseException | None, at: float) -> None:
        """The run is over here."""
        at = max(at, self._last)
        stop = self._stop or ("interrupted" if error is not None else "completed")

        for run_id in [*self._agents]:
            self._agent_ended(run_id, at)

        self._record(names.WORKFLOW_DURATION, max(0.0, at - self._began), (*self._crew, (names.STOP_REASON, stop)))
        self._record(names.RUNS_ACTIVE, -1, self._crew)

        for name, value, limit in self._used(at):
            if limit:
                self._record(names.UTILISATION, value / limit, (*self._crew, (names.LIMIT_NAME, name)))


def spent(state: RunState) -> tuple[Usage, int]:
    """What this run and everything below it have used, and in how many model calls."""
    usage, rounds = state.tally.usage, state.tally.rounds

    for child in state.children.values():
        more, asked = spent(child)
        usage, rounds = usage + more, rounds + asked

    return usage, rounds
