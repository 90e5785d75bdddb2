"""Fits one agent's view to its policies and limits before its model is asked.

The order: the view policies of executor and agent, the token budget, `max_history_size`, the bound of the history.
Each removes a block from the front and then leaves the view alone, so that consecutive requests share their prefix; a
step in which no limit is near only adds up numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from crew.errors import ContextOverflow
from crew.history.cuts import cuts
from crew.history.eviction import Unit, call_policy, enforce_bounds, evict, group_entries
from crew.history.history import History
from crew.history.policies.view_policies import MaskToolResults
from crew.history.pruning import Pruning, ViewPolicy, view_limit
from crew.history.token_budget import WINDOW_THRESHOLD, Calibration, TokenBudget, split_billed
from crew.history.view import (
    MARKER_TOKENS,
    RequestView,
    View,
    cut_messages,
    hide_positions,
    mask_messages,
)
from crew.history.view_summaries import note_hidden
from crew.interfaces import HistoryBudget, HistoryEntry, MessageGroup
from crew.messages import OMITTED, ToolMessage, message_size

TARGET_SHARE = 0.5
# Messages that were not billed yet are estimated; against a limit that must hold, the estimate counts a little more.
ESTIMATE_MARGIN = 1.1


class ViewFitter:
    """One agent's view while it is fitted: its content, its size in messages, its tokens, and the prunings so far.

    `overhead_parts` lists what a request holds beside messages, for the error of a request that can't fit.
    """

    def __init__(
        self,
        agent: str,
        history: History,
        view: View,
        token_budget: TokenBudget,
        calibration: Calibration,
        billed_until: int,
        overhead_parts: Callable[[], list[tuple[str, int]]],
    ) -> None:
        self.agent, self.history, self.view = agent, history, view
        self.token_budget, self.calibration, self.billed_until = token_budget, calibration, billed_until
        self.prunings: list[Pruning] = []
        self._overhead_parts = overhead_parts
        self._measure()
        self.size_before_fitting, self.tokens_before_fitting = self.size, self.tokens

    def _measure(self) -> None:
        self.content = RequestView.of(self.history, self.view)
        self.size = self.content.size
        old, new = split_billed(self.content.sent, self.billed_until)
        estimated = new * self.calibration.estimate_ratio
        self.tokens = round(self.token_budget.overhead_tokens + old * self.calibration.billed_scale + estimated)
        self.cautious_tokens = self.tokens + estimated * (ESTIMATE_MARGIN - 1.0)

    def groups(self) -> tuple[MessageGroup, ...]:
        """The visible messages in groups, each with its tokens as this model counts them."""
        c = self.calibration
        weighed = [
            replace(
                entry,
                tokens=round(
                    entry.tokens * (c.billed_scale if entry.position < self.billed_until else c.estimate_ratio)
                ),
            )
            for entry in self.content.entries
        ]
        return group_entries(weighed, self.history.goal)

    def beside_groups(self) -> tuple[int, int]:
        """What a request holds beside the groups: the size of the marker, and its tokens with the overhead."""
        old, new = split_billed(self.content.entries, self.billed_until)
        groups = old * self.calibration.billed_scale + new * self.calibration.estimate_ratio
        return (1 if self.view.truncated_count else 0), max(0, round(self.tokens - groups))

    # ------------------------------------------------------------------------------------------ changes of the view

    def hide(
        self, gone: Collection[HistoryEntry], rule: str, reason: str, limit: int, *, insert_marker: bool = False
    ) -> None:
        """Hide these entries; with `insert_marker`, a marker states how many messages are missing."""
        truncated = self.view.truncated_count + (
            sum(message_size(entry.message) for entry in gone) if insert_marker else 0
        )
        view = note_hidden(self.view, gone)
        view = hide_positions(view, self.content.entries, {entry.position for entry in gone})
        evicted = tuple(entry.message.id for entry in gone)
        self._accept(replace(view, truncated_count=truncated), rule, reason, limit, evicted=evicted)

    def mask(self, ids: Collection[str], rule: str, reason: str, limit: int) -> None:
        """Mask the tool results of these messages."""
        self._accept(mask_messages(self.view, self.content.entries, ids), rule, reason, limit, masked=tuple(ids))

    def _accept(
        self,
        view: View,
        rule: str,
        reason: str,
        limit: int,
        evicted: tuple[str, ...] = (),
        masked: tuple[str, ...] = (),
        cut: tuple[str, ...] = (),
    ) -> None:
        before, tokens = self.size, self.tokens
        self.view = replace(view, moved_by=rule)
        self._measure()
        self.prunings.append(
            Pruning(
                policy=rule,
                reason=reason,
                limit=limit,
                before=before,
                after=self.size,
                tokens_before=tokens,
                tokens_after=self.tokens,
                evicted=evicted,
                masked=masked,
                cut=cut,
            )
        )

    def evict_to(
        self, rule: str, reason: str, *, target: float, ceiling: float, limit: int | None = None, by: Unit = "tokens"
    ) -> bool:
        """Evict down to the target, and protected groups only down to the ceiling; False where nothing could leave.

        `limit` is reported as the number that was exceeded; None: the ceiling.
        """
        groups, (size, tokens) = self.groups(), self.beside_groups()
        extra = tokens if by == "tokens" else size
        limit = int(ceiling) if limit is None else limit
        gone = evict(groups, target=target - extra, limit=ceiling - extra, by=by)

        if gone:
            self.hide([entry for index in sorted(gone) for entry in groups[index].entries], rule, reason, limit)

        if self.view.truncated_count and (self.tokens if by == "tokens" else self.size) > ceiling:
            # The mandatory part goes before the marker.
            self._accept(replace(self.view, truncated_count=0), rule, reason, limit)
            return True

        return bool(gone)

    def cut_newest(self, rule: str, reason: str, *, target: float, limit: int) -> bool:
        """Cut long texts of the newest messages until the target is met, or 2,000 characters are left; whether any was.

        The goal stays whole, and so do calls and their arguments. The transcript keeps everything.
        """
        newest = [entry for g in self.groups() if g.mandatory for entry in g.entries]
        before = self.view
        ids: tuple[str, ...] = ()

        for level, entries in cuts([entry for entry in newest if entry.message.id != self.history.goal]):
            self.view = cut_messages(before, entries, level)
            ids = tuple(entry.message.id for entry in entries)
            self._measure()

            if self.tokens <= target:
                break

        view, self.view = self.view, before
        self._measure()

        if ids:
            self._accept(view, rule, reason, limit, cut=ids)

        return bool(ids)

    def overflow_error(self, text: str, limit: int, by: Unit = "tokens") -> ContextOverflow:
        """The error for a request that can't be made smaller, with a list of what it holds."""
        items = self._overhead_parts() if by == "tokens" else []
        items.extend(
            (f"{g.kind} {g.entries[0].message.id!r}", g.tokens if by == "tokens" else g.size)
            for g in self.groups()
            if g.mandatory
        )
        return ContextOverflow(text, limit=limit, items=items)

    # ------------------------------------------------------------------------------------------ the rules, in order

    def fit(
        self,
        policies: Sequence[ViewPolicy],
        budget: HistoryBudget,
        *,
        max_tokens: int | None = None,
        tokens_prune_to: int | None = None,
        max_history_size: int | None = None,
        history_prune_to: int | None = None,
    ) -> None:
        """Apply all rules. A policy with a threshold replaces the framework's threshold of the window."""
        for policy in policies:
            if _policy_may_act(policy, self) and not self._waits_for_cut(policy, policies, budget, max_history_size):
                _apply_policy(policy, self, budget)

        if max_tokens is not None:
            self._fit_max_tokens(max_tokens, tokens_prune_to)

        self._fit_window(policy_decides=any(policy.options.threshold is not None for policy in policies))

        if max_history_size is not None and self.size > max_history_size:
            self._fit_history_size(max_history_size, history_prune_to)

        if budget.limit is not None and self.size > budget.limit:
            # The marker and the summaries of the view are more than the history holds.
            rule, extra = ("truncate", "the marker") if self.view.truncated_count else ("summarize", "summaries")
            reason = f"{self.size} messages with {extra}, more than the limit of {budget.limit}"
            self.evict_to(rule, reason, target=budget.prune_to, ceiling=budget.limit, by="size")

        self._mask_with_cut(policies, budget)

    def _waits_for_cut(
        self,
        view_policy: ViewPolicy,
        policies: Sequence[ViewPolicy],
        budget: HistoryBudget,
        max_history_size: int | None,
    ) -> bool:
        """Whether a batch of masks waits, because a limit on messages will soon change the start of the request."""
        policy = view_policy.policy

        if not isinstance(policy, MaskToolResults) or policy.max_readable is not None:
            return False

        limits = [(budget.limit, self.history.size), (max_history_size, self.size)]
        limits.extend((other.options.explicit_limit, self.size) for other in policies)
        return any(limit is not None and limit - size < policy.keep_recent for limit, size in limits)

    def _mask_with_cut(self, policies: Sequence[ViewPolicy], budget: HistoryBudget) -> None:
        """If the start of the request changes anyway, mask all but the newest results: that breaks no prefix more."""
        last = self.view.last_request

        for view_policy in policies:
            policy = view_policy.policy

            if not isinstance(policy, MaskToolResults) or not last or self.content.codes[: len(last)] == last:
                continue

            if _readable_results(self) > policy.keep_recent > 0:
                at_once = replace(policy, max_readable=policy.keep_recent)
                _apply_policy(replace(view_policy, policy=at_once), self, budget)

    def _fit_max_tokens(self, max_tokens: int, prune_to: int | None) -> None:
        """Keep the request within the caller's `max_tokens`."""
        overhead = self.token_budget.overhead_tokens

        if overhead >= max_tokens:
            raise ContextOverflow(
                f"max_tokens must accommodate the system prompt: instructions and tools of {self.agent!r} hold about "
                f"{overhead} tokens, and max_tokens is {max_tokens}.",
                limit=max_tokens,
                items=self._overhead_parts(),
            )

        if self.cautious_tokens <= max_tokens:
            return

        # The margin of the messages that stay is at most that of all messages, and at most that of a full request.
        ceiling = max(max_tokens / ESTIMATE_MARGIN, max_tokens - (self.cautious_tokens - self.tokens))
        target = max_tokens * TARGET_SHARE if prune_to is None else min(prune_to, ceiling)
        reason = f"about {self.tokens} tokens, and max_tokens is {max_tokens}"
        self.evict_to("max_tokens", reason, target=target, ceiling=ceiling, limit=max_tokens)

        if self.tokens > max_tokens:
            self.cut_newest("max_tokens", reason, target=ceiling, limit=max_tokens)

        if self.tokens > max_tokens:
            text = f"The mandatory part of a request of {self.agent!r} holds about {self.tokens} tokens, more than "
            raise self.overflow_error(f"{text}max_tokens={max_tokens}.", max_tokens)

    def _fit_window(self, *, policy_decides: bool) -> None:
        """Keep the request within the model's context window; a policy with a threshold may use all of it."""
        budget = self.token_budget
        share = 1.0 if policy_decides else WINDOW_THRESHOLD
        ceiling = min(budget.window - budget.reply_reserve, budget.window * share)

        if self.tokens > ceiling:
            reason = f"about {self.tokens} tokens, and the window holds {budget.window} ({budget.window_source})"
            self.evict_to("window", reason, target=min(ceiling, budget.window * TARGET_SHARE), ceiling=ceiling)

        # A default window, or an estimate that no bill has confirmed, does not justify an error: the model may accept.
        sure = budget.window_source != "default" and not self.view.overflow_count
        slack = 1.0 if self.calibration.bill_count else 1.3

        if sure and self.tokens > budget.window * slack:
            reason = f"the newest messages hold more tokens than the window of {budget.window} ({budget.window_source})"
            self.cut_newest("window", reason, target=ceiling, limit=budget.window)

        if sure and self.tokens > budget.window * slack:
            text = f"The mandatory part of a request of {self.agent!r} holds about {self.tokens} tokens, more than "
            raise self.overflow_error(f"{text}its window of {budget.window}.", budget.window)

    def _fit_history_size(self, limit: int, prune_to: int | None) -> None:
        """Keep the request within the caller's `max_history_size`."""
        reason = f"{self.size} messages, and max_history_size is {limit}"
        target = max(1, limit // 2) if prune_to is None else prune_to
        self.evict_to("max_history_size", reason, target=target, ceiling=limit, by="size")

        if self.size > limit:
            text = f"The mandatory part of a request of {self.agent!r} holds {self.size} messages, more than "
            raise self.overflow_error(f"{text}max_history_size={limit}.", limit, "size")


def _policy_may_act(view_policy: ViewPolicy, fitter: ViewFitter) -> bool:
    """Whether a policy could have something to do; groups are built only then."""
    if isinstance(view_policy.policy, MaskToolResults):
        most = view_policy.policy.most_readable
        return most is not None and _readable_results(fitter) > most

    limit, threshold = view_policy.options.limit, view_policy.options.threshold

    if view_policy.options.summarizes and view_policy.options.eager:
        return True

    if threshold is not None and fitter.tokens > threshold * fitter.token_budget.window - 2 * MARKER_TOKENS:
        return True

    if limit == "default":
        return threshold is None

    return limit is not None and fitter.size > limit


def _readable_results(fitter: ViewFitter) -> int:
    results = (
        entry.message
        for entry in fitter.content.entries
        if entry.position >= fitter.view.masked_before and isinstance(entry.message, ToolMessage)
    )
    return sum(message_size(message) for message in results if message.results[0].text != OMITTED)


def _exceeded_limit(view_policy: ViewPolicy, fitter: ViewFitter, limit: int | None) -> int:
    """The number that makes a policy act: readable results, messages, or tokens; 0 where it has none."""
    if isinstance(view_policy.policy, MaskToolResults):
        return view_policy.policy.most_readable or 0

    threshold = view_policy.options.threshold

    if limit is not None and (threshold is None or fitter.size > limit):
        return limit

    return 0 if threshold is None else int(threshold * fitter.token_budget.window)


def _apply_policy(view_policy: ViewPolicy, fitter: ViewFitter, shared: HistoryBudget) -> None:
    policy, options = view_policy.policy, view_policy.options
    groups = fitter.groups()
    size, tokens = fitter.beside_groups()
    limit = view_limit(options, shared.limit)
    exceeded = _exceeded_limit(view_policy, fitter, limit)
    target = options.prune_to or max(1, (limit or 0) // 2)
    # A marker counts in the limit, and is not among the groups.
    bound = None if limit is None else limit - size
    budget = HistoryBudget(
        limit=bound,
        prune_to=target if bound is None else min(target, bound),
        window=fitter.token_budget.window,
        overhead_tokens=tokens,
        touches=shared.touches,
    )
    decision = enforce_bounds(groups, call_policy(policy, groups, budget), bound)

    if decision.evicted:
        gone = [entry for g in decision.evicted for entry in g.entries]
        fitter.hide(gone, policy.name, decision.reason, exceeded, insert_marker=options.insert_marker)

    # The newest results stay readable whatever a policy decides: the model called the tools for them.
    mandatory = {entry.message.id for g in decision.kept if g.mandatory for entry in g.entries}
    masked = tuple(id for id in decision.masked if id not in mandatory)

    if masked:
        fitter.mask(masked, policy.name, decision.reason, exceeded)

    if limit is not None and fitter.size > limit:
        fitter.evict_to(policy.name, decision.reason, target=limit, ceiling=limit, by="size")

    if limit is not None and fitter.size > limit:
        text = f"The mandatory part of a request of {fitter.agent!r} holds {fitter.size} messages, more than "
        raise fitter.overflow_error(f"{text}the limit of {limit} of the policy {policy.name!r}.", limit, "size")
