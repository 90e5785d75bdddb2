"""What comes before a model request: limits, summaries that are due, and the fitted view of the current agent."""

from __future__ import annotations

from collections.abc import Sequence

from crew.fast_replace import fast_replace
from crew.history.compression import spans_to_compress
from crew.history.eviction import group_entries
from crew.history.summaries import pending_entries
from crew.history.token_budget import Calibration
from crew.history.view_fitting import ViewFitter
from crew.history.view_summaries import messages_to_summarize
from crew.interfaces import Chunked, CompressionStrategy, HistoryEntry, WholeHistoryMultipleSystemMessages
from crew.messages import SummaryMessage
from crew.runs.events import Warned
from crew.runs.state import AskModel, Compact, RepeatReason
from crew.transitions.prepared_agents import current_overhead_parts, with_listed_touches
from crew.transitions.step import USER_ERRORS, Step

MIN_EVICTED = 10
"""A summary is made only after so many messages were evicted."""


def start_compaction_if_due(step: Step, repeat_reason: RepeatReason = "") -> bool:
    """Make a summary next where one is due; otherwise note what the coming request covers."""
    pending = step.pending_summary
    strategy = step.parameters.compression_strategy

    if strategy is not None:
        parts = _parts_to_compress(step, strategy)

        if parts:
            step.next = Compact(spans=parts, strategy=strategy.kind, repeat_reason=repeat_reason)
            return True

    if pending.message_ids and pending.evicted_since_attempt >= MIN_EVICTED and pending.has_text:
        step.next = Compact(spans=(pending.message_ids,), repeat_reason=repeat_reason)
        return True

    if step.plan.options.summarizes or pending.message_ids or pending.evicted_since_request:
        step.pending_summary = fast_replace(
            pending,
            evicted_since_request=(),
            last_request_agent=step.agent,
            last_request_end=len(step.transcript) - 1,
        )

    return False


def _parts_to_compress(step: Step, strategy: CompressionStrategy) -> tuple[tuple[str, ...], ...]:
    """The message ids that each TL;DR covers: of the history, and of the messages that the bound evicted before."""
    pending, history = step.pending_summary, step.history
    entries: Sequence[HistoryEntry] = history.entries
    evicted = pending_entries(step.transcript, pending.message_ids, history) if pending.message_ids else ()

    if evicted:
        entries = sorted((*evicted, *entries), key=lambda entry: entry.position)

    return spans_to_compress(
        group_entries(entries, history.goal),
        strategy,
        pending.incompressible_ids if isinstance(strategy, Chunked | WholeHistoryMultipleSystemMessages) else (),
        evicted={entry.message.id for entry in evicted},
        limit=step.plan.budget.limit,
    )


WARN_AT = 0.8


def ask_model_next(step: Step, repeat_reason: RepeatReason = "") -> None:
    """Make the model of the current agent next, with its view fitted, unless a limit or a summary comes first."""
    if stop_if_limit_reached(step):
        return

    if step.failure is None:
        try:
            _prepare_request(step, repeat_reason)
            return
        except USER_ERRORS as error:  # view policies are user code; an overflow is an error of the run
            step.fail(error)

    step.next = AskModel(repeat_reason=repeat_reason)


def _prepare_request(step: Step, repeat_reason: RepeatReason) -> None:
    if start_compaction_if_due(step, repeat_reason):
        return

    fitter = _fit_view(step)

    if fitter.view.summaries is not None and _start_view_summary_if_due(step, fitter, repeat_reason):
        return

    _warn(step, fitter)
    step.next = AskModel(repeat_reason=repeat_reason, view=fitter.content)


def view_fitter(step: Step) -> ViewFitter:
    """A fitter for the view of the current agent, as it stands."""
    name, token_budget = step.agent, step.token_budget
    return ViewFitter(
        name,
        step.history,
        step.view_of(name),
        token_budget,
        step.calibrations.get(token_budget.model, Calibration()),
        step.billed_until,
        lambda: current_overhead_parts(step.plan, step),
    )


def _fit_view(step: Step) -> ViewFitter:
    """Fit the view of the current agent to its policies and limits."""
    fitter, parameters = view_fitter(step), step.parameters
    fitter.fit(
        step.plan.view_policies.get(step.agent, ()),
        with_listed_touches(step.plan.budget, step) if step.prepared else step.plan.budget,
        max_tokens=parameters.max_tokens,
        tokens_prune_to=parameters.tokens_prune_to,
        max_history_size=parameters.max_history_size,
        history_prune_to=parameters.history_prune_to,
    )

    if fitter.prunings:
        accept_view(step, fitter)

    return fitter


def _start_view_summary_if_due(step: Step, fitter: ViewFitter, repeat_reason: RepeatReason) -> bool:
    """Make a summary of what left the view of the current agent next, where it is due and there is space for it."""
    summarizer, summaries = step.plan.view_summarizers.get(step.agent), fitter.view.summaries
    assert summaries is not None

    if summarizer is not None and summaries.left_since_attempt >= MIN_EVICTED and summaries.has_text:
        replaces = not summarizer.options.keeps_summaries
        ids = messages_to_summarize(fitter.view, fitter.content.entries, replaces=replaces)
        limits = (step.plan.view_limit(step.agent), step.parameters.max_history_size)
        mandatory = sum(g.size for g in fitter.groups() if g.mandatory) + fitter.beside_groups()[0]

        if ids and all(limit is None or mandatory < limit for limit in limits):
            step.next = Compact(spans=(ids,), where="view", repeat_reason=repeat_reason)
            return True

    if summaries.evicted_since_request:
        view = fast_replace(fitter.view, summaries=fast_replace(summaries, evicted_since_request=()))
        step.views = {**step.views, step.agent: view}

    return False


def accept_view(step: Step, fitter: ViewFitter) -> None:
    """Store the fitted view and report its prunings."""
    step.views = {**step.views, fitter.agent: fitter.view}

    for pruning in fitter.prunings:
        step.emit_pruned(pruning, where="view")


def stop_if_limit_reached(step: Step) -> bool:
    """End the run where a limit is used up; whether one was."""
    for name, value, limit in _limit_usage(step):
        if limit is not None and value >= limit:
            step.stop_at_limit(name, limit)
            return True

    return False


def _limit_usage(step: Step) -> tuple[tuple[str, float, float | None], ...]:
    limits, counters = step.limits, step.counters
    return (
        ("rounds", counters.rounds, limits.rounds),
        ("tokens", counters.usage.total_tokens, limits.tokens),
        ("cost_usd", counters.known_cost, limits.cost_usd),
        ("seconds", step.active_seconds, limits.seconds),
    )


def _warn(step: Step, fitter: ViewFitter) -> None:
    """Warn of limits that are nearly reached, each once a run: a history that is pruned in blocks fills up again.

    The limits of a view are those of one agent: after a handoff, the view of the receiving agent may be nearly full.
    """
    parameters, agent = step.parameters, fitter.agent
    sizes = (
        *((f"limits.{name}", value, limit) for name, value, limit in _limit_usage(step)),
        ("limits.handoffs", step.counters.handoffs, step.limits.handoffs),
        ("max_messages_per_request", step.history.size, step.plan.budget.limit),
        (f"max_history_size of {agent}", fitter.size_before_fitting, parameters.max_history_size),
        (f"max_tokens of {agent}", fitter.tokens_before_fitting, parameters.max_tokens),
        (f"window of {agent}", fitter.tokens_before_fitting, fitter.token_budget.window),
        *(
            (f"policy {policy.policy.name} of {agent}", fitter.size_before_fitting, policy.options.explicit_limit)
            for policy in step.plan.view_policies.get(agent, ())
        ),
    )

    for name, value, limit in sizes:
        if limit and value >= WARN_AT * limit and step.warn_once(name):
            step.emit(Warned, text=f"{name}: {value:g} of {limit:g} used ({value / limit:.0%}).")

    usage, strategy = step.counters.usage, parameters.compression_strategy

    if step.limits.cost_usd is not None and usage.requests and usage.cost is None and step.warn_once("unknown cost"):
        step.emit(Warned, text="limits.cost_usd covers only models with a known price: one model of this run has none.")

    if strategy is not None and fitter.size < 2:
        has_summary = any(isinstance(entry.message, SummaryMessage) for entry in step.history.entries)

        if has_summary and step.warn_once(strategy.kind):
            step.emit(Warned, text=f"{strategy.kind} and the limits leave {fitter.size} message in the request.")
