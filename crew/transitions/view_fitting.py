"""What the agent whose turn it is gets to see: its view moves here, before its model is asked, and nowhere else.

In this order: the executor's and the agent's policies for views, the token budget, `max_history_size`. Each moves the
view by a block, so that it then holds still; a step in which nothing is near a limit only adds up numbers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from crew.errors import ContextOverflow
from crew.history.eviction import Unit, enforce_bounds, evict, group_entries
from crew.history.policies.view_policies import MaskToolResults
from crew.history.token_budget import WINDOW_THRESHOLD, Calibration, split_billed
from crew.history.view import (
    MARKER_TOKENS,
    View,
    entries_size,
    hide_positions,
    mask_messages,
    visible_entries,
    with_marker,
)
from crew.interfaces import HistoryBudget, HistoryEntry, MessageGroup, PruneDecision
from crew.messages import OMITTED, ToolMessage, message_size
from crew.runs.events import HistoryPruned
from crew.transitions.plan import ViewPolicy, overhead_parts, token_budget_for
from crew.transitions.step import Step, incremented

TARGET_SHARE = 0.5
# What was not billed yet is an estimate; against a limit that must hold, it counts for a little more.
ESTIMATE_MARGIN = 1.1


class ViewFitter:
    """One agent's view in the making: what it shows, and how large that is."""

    def __init__(self, step: Step) -> None:
        state, name = step.state, step.state.agent
        self.step, self.name = step, name
        self.agent = step.plan.agents[name]
        self.gauge = token_budget_for(step.plan, state, name)
        self.calibration = state.calibrations.get(self.gauge.model, Calibration())
        self.view = state.views.get(name, View())
        self._measure()
        self.tokens_before_fitting = self.tokens

    def _measure(self) -> None:
        history, known = self.step.state.history, self.step.state.billed_until
        self.entries = visible_entries(history, self.view)
        sent = with_marker(self.entries, self.view)
        self.size = entries_size(sent, history)
        old, new = split_billed(sent, known)
        fresh = new * self.calibration.estimate_ratio
        self.tokens = round(self.gauge.overhead_tokens + old * self.calibration.billed_scale + fresh)
        self.cautious_tokens = self.tokens + fresh * (ESTIMATE_MARGIN - 1.0)

    def groups(self) -> tuple[MessageGroup, ...]:
        """What is shown as groups, each with its tokens as this model counts them."""
        known, c = self.step.state.billed_until, self.calibration
        weighed = [
            replace(
                entry, tokens=round(entry.tokens * (c.billed_scale if entry.position < known else c.estimate_ratio))
            )
            for entry in self.entries
        ]
        return group_entries(weighed, self.step.state.history.goal)

    @property
    def extra(self) -> tuple[int, int]:
        """What a request holds beside the groups: the marker's size, and its tokens with the fixed part's."""
        old, new = split_billed(self.entries, self.step.state.billed_until)
        groups = old * self.calibration.billed_scale + new * self.calibration.estimate_ratio
        return (1 if self.view.truncated_count else 0), max(0, round(self.tokens - groups))

    # ------------------------------------------------------------------------------------------ its moves

    def hide(self, gone: Collection[HistoryEntry], rule: str, reason: str, *, marks: bool = False) -> None:
        """These entries are not shown any more."""
        truncated = self.view.truncated_count + (sum(message_size(entry.message) for entry in gone) if marks else 0)
        view = hide_positions(self.view, self.entries, {entry.position for entry in gone})
        self._accept(replace(view, truncated_count=truncated), rule, reason, evicted=tuple(e.message.id for e in gone))

    def mask(self, ids: Collection[str], rule: str, reason: str) -> None:
        """The results of these messages are masked."""
        self._accept(mask_messages(self.view, self.entries, ids), rule, reason, masked=tuple(ids))

    def _accept(
        self, view: View, rule: str, reason: str, evicted: tuple[str, ...] = (), masked: tuple[str, ...] = ()
    ) -> None:
        before, tokens = self.size, self.tokens
        self.view = replace(view, moved_by=rule)
        self._measure()
        step = self.step
        step.set(views={**step.state.views, self.name: self.view})
        step.count(by_policy=incremented(step.state.counters.by_policy, rule))
        step.emit(
            HistoryPruned,
            policy=rule,
            reason=reason,
            before=before,
            after=self.size,
            limit=step.plan.budget.limit or 0,
            evicted=evicted,
            masked=masked,
            tokens_before=tokens,
            tokens_after=self.tokens,
            where="view",
        )

    def evict_to(self, rule: str, reason: str, *, target: float, ceiling: float, by: Unit = "tokens") -> bool:
        """Cut to the target, and of what should stay only down to the ceiling; False where nothing could leave."""
        groups, (size, tokens) = self.groups(), self.extra
        extra = tokens if by == "tokens" else size
        gone = evict(groups, target=target - extra, limit=ceiling - extra, by=by)

        if gone:
            self.hide([entry for index in sorted(gone) for entry in groups[index].entries], rule, reason)

        if self.view.truncated_count and (self.tokens if by == "tokens" else self.size) > ceiling:
            # The marker gives way to what must be shown.
            self._accept(replace(self.view, truncated_count=0), rule, reason)
            return True

        return bool(gone)

    def overflow_error(self, text: str, limit: int, by: Unit = "tokens") -> ContextOverflow:
        """The error that says what the request is made of when nothing more can leave."""
        items: list[tuple[str, int]] = []

        if by == "tokens":
            items.extend(overhead_parts(self.agent, self.step.plan.toolkits[self.name]))

        items.extend(
            (f"{g.kind} {g.entries[0].message.id!r}", g.tokens if by == "tokens" else g.size)
            for g in self.groups()
            if g.mandatory
        )
        return ContextOverflow(text, limit=limit, items=items)


def fit_view(step: Step) -> ViewFitter:
    """Move the view of the agent whose turn it is as far as its policies and limits ask for."""
    seen = ViewFitter(step)
    policies = step.plan.view_policies.get(seen.name, ())

    for policy in policies:
        if _policy_may_act(policy, seen):
            _apply_policy(policy, seen)

    _fit_tokens(seen, by_policy=any(policy.options.threshold is not None for policy in policies))
    _fit_history_size(seen)
    _fit_bound(seen)
    return seen


# ---------------------------------------------------------------------------------------------------- policies


def _policy_may_act(policy: ViewPolicy, seen: ViewFitter) -> bool:
    """Whether a policy could have something to do; groups are made only then."""
    if isinstance(policy.policy, MaskToolResults):
        keep_recent = policy.policy.keep_recent
        return bool(keep_recent) and _readable_results(seen.entries, seen.view) >= 2 * keep_recent

    limit, threshold = policy.options.limit, policy.options.threshold

    if threshold is not None and seen.tokens > threshold * seen.gauge.window - 2 * MARKER_TOKENS:
        return True

    if limit == "default":
        return threshold is None

    return limit is not None and seen.size > limit


def _readable_results(entries: Collection[HistoryEntry], view: View) -> int:
    results = (
        entry.message
        for entry in entries
        if entry.position >= view.masked_before and isinstance(entry.message, ToolMessage)
    )
    return sum(message_size(message) for message in results if message.results[0].text != OMITTED)


def _apply_policy(view_policy: ViewPolicy, seen: ViewFitter) -> None:
    policy, options = view_policy.policy, view_policy.options
    groups = seen.groups()
    size, tokens = seen.extra
    limit = options.explicit_limit
    target = options.prune_to or max(1, (limit or 0) // 2)
    budget = HistoryBudget(limit=limit, prune_to=target, window=seen.gauge.window, overhead_tokens=tokens)
    bound = limit - size if limit is not None else sum(g.size for g in groups)
    verdict: PruneDecision = enforce_bounds(groups, policy.prune(groups, budget), bound)

    if verdict.evicted:
        gone = [entry for g in verdict.evicted for entry in g.entries]
        seen.hide(gone, policy.name, verdict.reason, marks=options.insert_marker)

    # The newest results are what the model was called for: they stay readable whatever a policy says.
    fixed = {entry.message.id for g in verdict.kept if g.mandatory for entry in g.entries}
    masked = tuple(id for id in verdict.masked if id not in fixed)

    if masked:
        seen.mask(masked, policy.name, verdict.reason)

    if limit is not None and seen.size > limit:
        seen.evict_to(policy.name, verdict.reason, target=limit, ceiling=limit, by="size")

    if limit is not None and seen.size > limit:
        text = f"What {seen.name!r} must see holds {seen.size} messages, more than its policy's limit of {limit}."
        raise seen.overflow_error(text, limit, "size")


# ---------------------------------------------------------------------------------------------------- limits


def _fit_tokens(seen: ViewFitter, *, by_policy: bool) -> None:
    asked, gauge = seen.step.state.parameters.max_tokens, seen.gauge

    if asked is not None and gauge.overhead_tokens >= asked:
        parts = overhead_parts(seen.agent, seen.step.plan.toolkits[seen.name])
        raise ContextOverflow(
            f"max_tokens must accommodate the system prompt: instructions and tools of {seen.name!r} hold about "
            f"{gauge.overhead_tokens} tokens, and max_tokens is {asked}.",
            limit=asked,
            items=parts,
        )

    if asked is not None and seen.cautious_tokens > asked:
        reason = f"about {seen.tokens} tokens, and max_tokens is {asked}"
        seen.evict_to("max_tokens", reason, target=asked * TARGET_SHARE, ceiling=asked / ESTIMATE_MARGIN)

        if seen.tokens > asked:
            text = f"What {seen.name!r} must see holds about {seen.tokens} tokens, more than max_tokens={asked}."
            raise seen.overflow_error(text, asked)

    ceiling = min(gauge.window - gauge.reply_reserve, gauge.window * (1.0 if by_policy else WINDOW_THRESHOLD))

    if seen.tokens > ceiling:
        reason = f"about {seen.tokens} tokens, and the window holds {gauge.window} ({gauge.window_source})"
        seen.evict_to("window", reason, target=min(ceiling, gauge.window * TARGET_SHARE), ceiling=ceiling)

    # A guessed window, or an estimate that no bill has confirmed, is no reason to give up: the model may take it.
    sure = gauge.window_source != "default" and not seen.view.overflow_count
    slack = 1.0 if seen.calibration.bill_count else 1.3

    if sure and seen.tokens > gauge.window * slack:
        text = f"What {seen.name!r} must see holds about {seen.tokens} tokens, more than its window of {gauge.window}."
        raise seen.overflow_error(text, gauge.window)


def _fit_history_size(seen: ViewFitter) -> None:
    limit = seen.step.state.parameters.max_history_size

    if limit is None or seen.size <= limit:
        return

    reason = f"{seen.size} messages, and max_history_size is {limit}"
    seen.evict_to("max_history_size", reason, target=max(1, limit // 2), ceiling=limit, by="size")

    if seen.size > limit:
        text = f"What {seen.name!r} must see holds {seen.size} messages, more than max_history_size={limit}."
        raise seen.overflow_error(text, limit, "size")


def _fit_bound(seen: ViewFitter) -> None:
    """The history keeps to its bound; with a marker for what is not in it any more, a view of it might not."""
    budget = seen.step.plan.budget

    if budget.limit is not None and seen.size > budget.limit:
        reason = f"{seen.size} messages with the marker, more than the limit of {budget.limit}"
        seen.evict_to("truncate", reason, target=budget.prune_to, ceiling=budget.limit, by="size")
