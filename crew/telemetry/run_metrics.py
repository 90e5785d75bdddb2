"""Makes the measurements of one run from its events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from crew.messages import Usage
from crew.runs.events import (
    AgentStarted,
    Asked,
    BaseEvent,
    BranchFinished,
    BranchStarted,
    Event,
    HistoryPruned,
    Paused,
    Replied,
    RequestDelayed,
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
    """Handles the events of one run and records measurements."""

    def __init__(
        self, record: MetricRecorder, crew: str, state: RunState, max_messages: int | None, *, resumes: bool
    ) -> None:
        self._record = record
        self._state, self._max_messages, self._began = state, max_messages, 0.0
        self._crew: Labels = ((names.WORKFLOW_NAME, crew),)
        self._open_requests: dict[str, tuple[float, ModelCallMetrics]] = {}
        self._streaming: set[str] = set()
        self._open_summaries: dict[str, float] = {}
        self._failed_early: dict[str, tuple[str, float]] = {}
        self._agents: dict[str, tuple[str, float]] = {}
        self._last_event_at: dict[str, float] = {}
        self._resumed_agents = dict(_active_agents(state)) if resumes else {}
        limits = state.limits
        values = (limits.rounds, limits.tokens, limits.cost_usd, limits.seconds)
        self._limits = [(name, limit) for name, limit in zip(LIMITS, values, strict=True) if limit]
        counters = total_counters(state)
        # Plain numbers, because they change with every reply, with telemetry on or off.
        self._rounds, self._tokens = counters.rounds, counters.usage.total_tokens
        self._cost = counters.usage.cost or 0.0
        self._input_tokens = self._cached_tokens = self._largest_request = 0
        self._latest_event_at = 0.0
        self._stop_reason = ""
        record(names.RUNS_ACTIVE, 1, self._crew)

    def __call__(self, event: Event) -> None:
        handle = _HANDLERS.get(type(event))

        if not self._began:
            self._began = event.at
            self._agents |= {run_id: (agent, event.at) for run_id, agent in self._resumed_agents.items()}

        if handle is not None:
            self._latest_event_at = self._last_event_at[event.run_id] = event.at
            handle(self, event)

    # ------------------------------------------------------------------------------------------ models

    def _asked(self, event: Asked) -> None:
        self._open_requests[event.run_id] = (event.at, self._record.calls(event.provider, event.model, event.agent))
        self._streaming.discard(event.run_id)

        if event.run_id in self._failed_early:
            self._chat_failed(event.run_id, *self._failed_early.pop(event.run_id))

        if event.messages > self._largest_request:
            self._largest_request = event.messages

    def _delta(self, event: TextDelta) -> None:
        if event.run_id not in self._streaming and event.run_id in self._open_requests:
            self._streaming.add(event.run_id)
            began, calls = self._open_requests[event.run_id]
            self._record(names.TIME_TO_FIRST_CHUNK, max(0.0, event.at - began), calls.labels)

    def _replied(self, event: Replied) -> None:
        began, calls = (
            self._open_requests.pop(event.run_id)
            if event.run_id in self._open_requests
            else (event.at, self._record.calls())
        )
        calls.add_duration(max(0.0, event.at - began))
        self._record_usage(event.usage, calls)
        self._rounds += 1

    def _record_usage(self, usage: Usage, calls: ModelCallMetrics) -> None:
        """Record the tokens and cost of one model request."""
        calls.add_input_tokens(usage.input_tokens)
        calls.add_output_tokens(usage.output_tokens)

        if usage.cost:
            calls.add_cost(usage.cost)
            self._cost += usage.cost

        self._tokens += usage.input_tokens + usage.output_tokens
        self._input_tokens += usage.input_tokens
        self._cached_tokens += usage.cache_read_tokens

    def summary_requested(self, run_id: str, at: float) -> None:
        """A request for a summary starts."""
        self._open_summaries[run_id] = at

    def _summarised(self, event: Summarised) -> None:
        began = self._open_summaries.pop(event.run_id, None)

        if began is None and not event.usage.requests:
            return  # the summarizer is a function: there is no model request

        calls = self._record.calls(event.provider, event.model, event.agent)

        if event.usage.requests:
            self._record_usage(event.usage, calls)

        if began is not None:
            failed: Labels = ((names.ERROR_TYPE, "summary_refused"),) if event.error else ()
            self._record(names.CLIENT_DURATION, max(0.0, event.at - began), (*calls.labels, *failed))

    def chat_failed(self, run_id: str, error: BaseException, at: float) -> None:
        """A model request raised; its `Asked` event may follow later, while another branch commits."""
        if run_id in self._open_summaries:
            return  # the `Summarised` event follows

        if run_id in self._open_requests:
            self._chat_failed(run_id, type(error).__name__, at)
        else:
            self._failed_early[run_id] = (type(error).__name__, at)

    def _chat_failed(self, run_id: str, kind: str, at: float) -> None:
        began, calls = self._open_requests.pop(run_id)
        self._record(names.CLIENT_DURATION, max(0.0, at - began), (*calls.labels, (names.ERROR_TYPE, kind)))

    def _delayed(self, event: RequestDelayed) -> None:
        self._record(names.DELAYED, 1, ((names.PROVIDER, event.provider), (names.REQUEST_MODEL, event.model)))

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
        self._agent_ended(event.branch, self._last_event_at.pop(event.branch, event.at) if ended else event.at)

    def run_ended(self, state: RunState) -> None:
        """Branches that finished did so at their last event."""
        for child in state.children.values():
            self.run_ended(child)

            if isinstance(child.next, Finished):
                self._agent_ended(child.run_id, self._last_event_at.get(child.run_id, self._latest_event_at))

    def _tool_returned(self, event: ToolReturned) -> None:
        labels: Labels = ((names.TOOL_NAME, event.result.name),)

        if event.result.outcome not in ("ok", "retry"):
            # Names that the model invents would each add a series.
            labels = labels if event.seconds else ((names.TOOL_NAME, "[not run]"),)
            self._record(names.TOOL_ERRORS, 1, labels)

        if event.seconds:
            self._record(names.TOOL_DURATION, event.seconds, labels)

    # ------------------------------------------------------------------------------------------ history and limits

    def _pruned(self, event: HistoryPruned) -> None:
        if event.where != "history":
            return  # a view hides messages from one agent; the history keeps them

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
        self._stop_reason = "paused"

    def _failed(self, event: RunFailed) -> None:
        if event.run_id == self._state.run_id:
            self._stop_reason = "failed"
        else:
            self._agent_ended(event.run_id, event.at)

    def _finished(self, event: RunFinished) -> None:
        self._stop_reason = event.stop_reason

    def close(self, error: BaseException | None, at: float) -> None:
        """Record the totals of the run."""
        at = max(at, self._latest_event_at)
        stop_reason = self._stop_reason or ("interrupted" if error is not None else "completed")

        for run_id in [*self._agents]:
            self._agent_ended(run_id, at)

        self._record(
            names.WORKFLOW_DURATION, max(0.0, at - self._began), (*self._crew, (names.STOP_REASON, stop_reason))
        )
        self._record(names.RUNS_ACTIVE, -1, self._crew)

        if self._input_tokens:
            self._record(names.CACHE_READ_RATIO, self._cached_tokens / self._input_tokens, self._crew)

        if self._max_messages and self._largest_request:
            self._record(names.HISTORY_UTILISATION, self._largest_request / self._max_messages, self._crew)

        for name, limit in self._limits:
            self._record(names.LIMIT_UTILISATION, self._used(name, at) / limit, (*self._crew, (names.LIMIT_NAME, name)))

        self._record.flush()


_HANDLERS: dict[type[BaseEvent], Callable[[RunMetrics, Any], None]] = {
    AgentStarted: RunMetrics._agent_started,
    Asked: RunMetrics._asked,
    TextDelta: RunMetrics._delta,
    Replied: RunMetrics._replied,
    ToolReturned: RunMetrics._tool_returned,
    BranchStarted: RunMetrics._branch_started,
    BranchFinished: RunMetrics._branch_finished,
    HistoryPruned: RunMetrics._pruned,
    Retried: RunMetrics._retried,
    RequestDelayed: RunMetrics._delayed,
    Summarised: RunMetrics._summarised,
    Paused: RunMetrics._paused,
    RunFailed: RunMetrics._failed,
    RunFinished: RunMetrics._finished,
}
"""Not in each object: references to its own methods are a cycle, which only the garbage collector could free."""


def _active_agents(state: RunState) -> Iterator[tuple[str, str]]:
    """The active agent of the run and of each branch when a run resumes."""
    if not isinstance(state.next, RunBranches | Finished):
        yield state.run_id, state.agent

    for child in state.children.values():
        yield from _active_agents(child)
