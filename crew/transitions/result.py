"""From a state to the result for the caller, and from a result to the state of the next run."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

from crew.history.history import History
from crew.history.summaries import PendingSummary, has_text, pending_entries
from crew.interfaces import HistoryEntry
from crew.messages import AssistantMessage, Transcript, UserMessage, message_size
from crew.runs.counters import RunCounters
from crew.runs.result import Metrics, MissingOutput, ResultHistory, RunResult
from crew.runs.state import (
    Branch,
    Finished,
    RunState,
    StopReason,
    is_blocked,
    pending_pauses,
    total_counters,
    total_usage,
)
from crew.transitions.branches import branch_record, calls_in_doubt
from crew.transitions.choices import parsed_output
from crew.transitions.markdown import without_code_fence
from crew.transitions.plan import Plan


def build_result(plan: Plan, state: RunState) -> RunResult[Any]:
    """The result of a run; of an unfinished run, with its pauses."""
    end = state.next if isinstance(state.next, Finished) else None
    stop: StopReason = end.stop_reason if end is not None else "paused" if is_blocked(state) else "failed"
    entries = without_open_calls(state.history.entries)
    counters = total_counters(state)
    return RunResult(
        answer=_answer(plan, state, stop),
        text=end.output if end is not None else "",
        stop_reason=stop,
        finish_reason=end.finish_reason if end is not None and stop == "completed" else None,
        limit=None if end is None else end.limit,
        stop_text="" if end is None else end.stop_text,
        run_id=state.run_id,
        conversation_id=state.conversation_id,
        agent=state.agent,
        history=_result_history(state, entries),
        transcript=state.transcript.loaded(),
        usage=total_usage(state),
        metrics=Metrics(
            messages=sum(message_size(entry.message) for entry in entries),
            limit=plan.budget.limit,
            estimated_tokens=sum(entry.tokens for entry in entries),
            prunings=len(counters.prunings),
            messages_pruned=counters.messages_pruned,
            sizes=counters.prunings,
            by_agent=counters.by_agent,
            by_tool=counters.by_tool,
            by_policy=counters.by_policy,
            requests=counters.usage.requests,
            tokens_estimated=counters.tokens_estimated,
            tokens_billed=counters.usage.input_tokens,
            tokens_saved=counters.tokens_saved,
            cost_saved=counters.cost_saved,
            cached_predicted=counters.cached_predicted,
            cached_billed=counters.usage.cache_read_tokens,
            prefix_breaks=counters.prefix_breaks,
        ),
        metadata=deepcopy(state.metadata),
        pauses=pending_pauses(state),
        in_doubt=tuple(calls_in_doubt(plan, state)),
        branches=tuple(_with_parsed_output(plan, record) for record in _branch_records(state)),
        trace_id=state.traceparent[3:35],  # of a W3C traceparent
        state=state,
    )


def _result_history(state: RunState, entries: tuple[HistoryEntry, ...]) -> ResultHistory:
    pending, messages = state.pending_summary, [entry.message for entry in entries]

    if not pending.message_ids:
        return ResultHistory(messages)

    waiting = tuple(entry.message for entry in pending_entries(state.transcript, pending.message_ids, state.history))
    return ResultHistory(messages, waiting, pending.evicted_since_attempt)


def without_open_calls(entries: tuple[HistoryEntry, ...]) -> tuple[HistoryEntry, ...]:
    """The entries without a last reply whose calls have no results: another run can't answer them."""
    last = entries[-1].message if entries else None
    return entries[:-1] if isinstance(last, AssistantMessage) and last.calls else entries


_UNFINISHED: dict[StopReason, str] = {
    "paused": "it waits for an answer; resume it with an answer to each of result.pauses",
    "limit": "a limit ended it, see result.limit",
    "stopped": "a tool ended it, or a guardrail refused its input; see result.stop_text",
    "cancelled": "it was cancelled",
    "failed": "it failed; resume it",
}


def _answer(plan: Plan, state: RunState, stop: StopReason) -> Any:
    """The output as a value of the agent's output type, where it has one; or why there is none."""
    output = plan.output_type(state.agent)
    text = state.next.output if isinstance(state.next, Finished) else ""
    last = state.transcript[-1] if len(state.transcript) else None

    if output is None or (isinstance(last, UserMessage) and last.origin == "join"):
        return text

    if stop != "completed":
        return MissingOutput(reason=f"{_UNFINISHED[stop]}. result.text has the text so far.")

    try:
        return output.parse(without_code_fence(text))
    except Exception:  # validators are user code
        # A route that ends the run has a text as its output: no reply had to match the schema.
        return text or MissingOutput(reason="the model gave an empty reply twice.")


def _branch_records(state: RunState) -> tuple[Branch, ...]:
    """The records of all finished children; those of a group that failed, or still runs, are not archived yet."""
    finished = (child for child in state.children.values() if isinstance(child.next, Finished))
    return (*state.branches, *(branch_record(child) for child in finished))


def _with_parsed_output(plan: Plan, record: Branch) -> Branch:
    output = record.output if record.outcome != "completed" else parsed_output(plan, record.agent, record.output)
    return replace(record, output=output, branches=tuple(_with_parsed_output(plan, r) for r in record.branches))


def continue_from(state: RunState, before: RunState) -> RunState:
    """The state of a new run that continues the history, transcript and views of an earlier one."""
    entries = without_open_calls(before.history.entries)
    history = History(entries=entries, size=sum(message_size(entry.message) for entry in entries))
    return replace(
        state,
        conversation_id=before.conversation_id,
        history=history,
        transcript=before.transcript,
        inherited_messages=len(before.transcript),
        parent_run=before.run_id,
        views={name: view.for_next_run() for name, view in before.views.items()},
        payloads=before.payloads,
        token_budgets=before.token_budgets,
        calibrations=before.calibrations,
        billed_until=before.billed_until,
        pending_summary=before.pending_summary,
        counters=RunCounters(tokens_appended=before.counters.tokens_appended),
    )


def continue_messages(plan: Plan, state: RunState, before: ResultHistory) -> RunState:
    """The state of a new run that starts with the messages that wait for a summary; the input follows them."""
    pending = PendingSummary(message_ids=tuple(message.id for message in before.waiting))

    if plan.options.summarizes:
        text = any(has_text(message) for message in before.waiting)
        pending = replace(pending, evicted_since_attempt=before.evicted_since_attempt, has_text=text)

    return replace(
        state,
        transcript=Transcript(before.waiting),
        inherited_messages=len(before.waiting),
        pending_summary=pending,
    )
