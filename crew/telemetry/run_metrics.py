"""The measurements of one run, made from its events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from crew.messages import Usage
from crew.runs.events import (
    AgentStarted,
    Asked,
    BranchFinished,
    BranchStarted,
    Event,
    HistoryPruned,
    Paused,
    Replied,
    Retried,
    RunFailed,
    RunFinished,
    Summarised,
    TextDelta,
    ToolReturned,
)
from crew.runs.state import Finished, RunBranches, RunState, total_counters
from crew.telemetry import names
from crew.telemetry.metrics import Labels, MetricRecorder, ModelCallMetrics

LIMITS = ("rounds", "tokens", "cost_usd", "seconds")


class RunMetrics:
    """Tells `record` of every measurement."""

    def __init__(self, record: MetricRecorder, crew: str, state: RunState, bound: int | None, *, resumes: bool) -> None:
        self._record = record
        self._state, self._bound, self._began = state, bound, 0.0
        self._crew: Labels = ((names.WORKFLOW_NAME, crew),)
        self._asked: dict[str, tuple[float, ModelCallMetrics]] = {}
        self._first: set[str] = set()
        self._summaries: dict[str, float] = {}
        self._failed_early: dict[str, tuple[str, float]] = {}
        self._agents: dict[str, tuple[str, float]] = {}
        self._lasts: dict[str, float] = {}
        self._at_work = dict(_active_agents(state)) if resumes else {}
        self._limits = [(name, limit) for name in LIMITS if (limit := getattr(state.limits, name))]
        counted = total_counters(state)
        # Plain numbers: they change with every reply, also where nobody watches.
        self._rounds, self._tokens = counted.rounds, counted.usage.total_tokens
        self._cost = counted.usage.cost or 0.0
        self._read = self._cached = self._largest_request = 0
        self._last = 0.0
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
            Summarised: self._summarised,
            Paused: self._paused,
            RunFailed: self._failed,
            RunFinished: self._finished,
        }
        record(names.RUNS_ACTIVE, 1, self._crew)

    def __call__(self, event: Event) -> None:
        act = self._on.get(type(event))

        if not self._began:
            self._began = event.at
            self._agents |= {run_id: (agent, event.at) for run_id, agent in self._at_work.items()}

        if act is not None:
            self._last = self._lasts[event.run_id] = event.at
            act(event)

    # ------------------------------------------------------------------------------------------ models

    def _on_asked(self, event: Asked) -> None:
        self._asked[event.run_id] = (event.at, self._record.calls(event.provider, event.model, event.agent))
        self._first.discard(event.run_id)

        if event.run_id in self._failed_early:
            self._chat_failed(event.run_id, *self._failed_early.pop(event.run_id))

        if event.messages > self._largest_request:
            self._largest_request = event.messages

    def _delta(self, event: TextDelta) -> None:
        if event.run_id not in self._first and event.run_id in self._asked:
            self._first.add(event.run_id)
            began, calls = self._asked[event.run_id]
            self._record(names.TIME_TO_FIRST_CHUNK, max(0.0, event.at - began), calls.labels)

    def _replied(self, event: Replied) -> None:
        began, calls = (
            self._asked.pop(event.run_id) if event.run_id in self._asked else (event.at, self._record.calls())
        )
        calls.add_duration(max(0.0, event.at - began))
        self._bill(event.usage, calls)
        self._rounds += 1

    def _bill(self, usage: Usage, calls: ModelCallMetrics) -> None:
        """What one model call cost."""
        calls.add_input_tokens(usage.input_tokens)
        calls.add_output_tokens(usage.output_tokens)

        if usage.cost:
            calls.add_cost(usage.cost)
            self._cost += usage.cost

        self._tokens += usage.input_tokens + usage.output_tokens
        self._read += usage.input_tokens
        self._cached += usage.cache_read_tokens

    def summary_requested(self, run_id: str, at: float) -> None:
        """A model is asked for a summary."""
        self._summaries[run_id] = at

    def _summarised(self, event: Summarised) -> None:
        began = self._summaries.pop(event.run_id, None)

        if began is None and not event.usage.requests:
            return  # a function's summary is nobody's bill

        calls = self._record.calls(event.provider, event.model, event.agent)

        if event.usage.requests:
            self._bill(event.usage, calls)

        if began is not None:
            failed: Labels = ((names.ERROR_TYPE, "summary_refused"),) if event.error else ()
            self._record(names.CLIENT_DURATION, max(0.0, event.at - began), (*calls.labels, *failed))

    def chat_failed(self, run_id: str, error: BaseException, at: float) -> None:
        """A question came to an error; that it was asked may be told only in a moment, while another branch commits."""
        if run_id in self._summaries:
            return  # what it came to is told in a moment

        if run_id in self._asked:
            self._chat_failed(run_id, type(error).__name__, at)
        else:
            self._failed_early[run_id] = (type(error).__name__, at)

    def _chat_failed(self, run_id: str, kind: str, at: float) -> None:
        began, calls = self._asked.pop(run_id)
        self._record(names.CLIENT_DURATION, max(0.0, at - began), (*calls.labels, (names.ERROR_TYPE, kind)))

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
        ended = event.outcome in ("completed", "limit")
        self._agent_ended(event.branch, self._lasts.pop(event.branch, event.at) if ended else event.at)

    def run_ended(self, state: RunState) -> None:
        """Branches that have ended did so with their last event."""
        for child in state.children.values():
            self.run_ended(child)

            if isinstance(child.next, Finished):
                self._agent_ended(child.run_id, self._lasts.get(child.run_id, self._last))

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
        if event.where != "history":
            return  # what one agent is not shown stays in the history

        policy = (*self._crew, (names.HISTORY_POLICY, event.policy))
        self._record(names.MESSAGES_PRUNED, event.before - event.after, policy)
        self._record(names.HISTORY_SIZE, event.before, (*policy, (names.STAGE, "before")))
        self._record(names.HISTORY_SIZE, event.after, (*policy, (names.STAGE, "after")))

    def _used(self, limit: str, at: float) -> float:
        match limit:
            case "rounds":
                return self._rounds
            case "tokens":
                return self._tokens
            case "cost_usd":
                return self._cost
            case _:
                return self._state.active_seconds + at - self._began

    # ------------------------------------------------------------------------------------------ the end

    def _paused(self, event: Paused) -> None:
        self._stop = "paused"

    def _failed(self, event: RunFailed) -> None:
        if event.run_id == self._state.run_id:
            self._stop = "failed"
        else:
            self._agent_ended(event.run_id, event.at)

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

        if self._read:
            self._record(names.CACHE_READ_RATIO, self._cached / self._read, self._crew)

        if self._bound and self._largest_request:
            self._record(names.HISTORY_UTILISATION, self._largest_request / self._bound, self._crew)

        for name, limit in self._limits:
            self._record(names.LIMIT_UTILISATION, self._used(name, at) / limit, (*self._crew, (names.LIMIT_NAME, name)))

        self._record.flush()


def _active_agents(state: RunState) -> Iterator[tuple[str, str]]:
    """Who goes on with the work when the run comes back."""
    if not isinstance(state.next, RunBranches | Finished):
        yield state.run_id, state.agent

    for child in state.children.values():
        yield from _active_agents(child)
