"""From a state to what the caller gets."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from crew.doors import Entry
from crew.execution.advance import spent, total
from crew.execution.plan import Plan
from crew.messages import AssistantMessage, weight
from crew.runs import Finished, Metrics, RunResult, RunState, StopReason, is_blocked, pauses


def result_of(plan: Plan, state: RunState) -> RunResult:
    """Everything so far; of a run that has not finished, what it waits for."""
    end = state.next if isinstance(state.next, Finished) else None
    stop: StopReason = end.stop_reason if end is not None else "paused" if is_blocked(state) else "failed"
    entries = at_rest(state.history.entries)
    tally = total(state)
    return RunResult(
        output=_output(plan, state, end),
        stop_reason=stop,
        run_id=state.run_id,
        conversation_id=state.conversation_id,
        agent=state.agent,
        history=tuple(entry.message for entry in entries),
        transcript=state.transcript,
        usage=spent(state),
        metrics=Metrics(
            messages=sum(weight(entry.message) for entry in entries),
            limit=plan.budget.limit,
            estimated_tokens=sum(entry.tokens for entry in entries),
            prunings=len(tally.prunings),
            messages_pruned=tally.messages_pruned,
            sizes=tally.prunings,
            by_agent=tally.by_agent,
            by_tool=tally.by_tool,
            by_policy=tally.by_policy,
            requests=tally.usage.requests,
            tokens_estimated=tally.estimated_tokens,
            tokens_billed=tally.usage.input_tokens,
            tokens_saved=tally.saved_tokens,
            cost_saved=tally.saved_cost,
            cached_predicted=tally.cached_tokens,
            cached_billed=tally.usage.cache_read_tokens,
            prefix_breaks=tally.prefix_breaks,
        ),
        pauses=pauses(state),
        branches=state.branches,
        trace_id=state.trace[3:35],  # of a W3C traceparent
        state=state,
    )


def at_rest(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The history without a reply whose calls are still open: nobody else could answer them."""
    last = entries[-1].message if entries else None
    return entries[:-1] if isinstance(last, AssistantMessage) and last.calls else entries


def _output(plan: Plan, state: RunState, end: Finished | None) -> Any:
    if end is None:
        return ""

    agent = plan.agents.get(state.agent)

    if end.stop_reason != "completed" or agent is None or agent.output is None:
        return end.output

    try:
        return agent.output.model_validate_json(end.output)
    except ValidationError:
        return end.output  # a route or a join ended the run, so that no reply had to fit the schema
