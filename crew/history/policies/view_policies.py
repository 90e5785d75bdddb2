"""`mask_tool_results` and `truncate`: policies that prune each agent's view and leave the shared history whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crew.errors import DefinitionError
from crew.history.eviction import evict, groups_size, protect, prune_decision
from crew.history.policies.summarizing import check_below_threshold
from crew.history.token_budget import DEFAULT_WINDOW
from crew.history.view import MARKER_TOKENS
from crew.interfaces import HistoryBudget, MessageGroup, PolicyOptions, PruneDecision
from crew.messages import OMITTED, ToolMessage, message_size
from crew.settings import LimitOrDefault, NonNegativeInt, PositiveInt, PositiveRatio, check_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskToolResults:
    """Replaces the text of all but the newest `keep_recent` tool results by `[Omitted]`; 0 keeps all.

    It masks a batch once more than `max_readable` results are readable, by default once there are twice `keep_recent`,
    so that consecutive requests share their prefix. With `max_readable=keep_recent`, exactly the newest `keep_recent`
    results are readable, and the prefix changes with every result. Results of one message are masked together.

    A cut of the history changes the prefix too, and results are masked with it. By default, a batch that is due waits
    for a cut if fewer than `keep_recent` messages may come before it.
    """

    keep_recent: NonNegativeInt = 10
    max_readable: PositiveInt | None = None
    name: str = "mask_tool_results"

    def __post_init__(self) -> None:
        check_settings(self, "History policy 'mask_tool_results'")
        most, least = self.max_readable, self.keep_recent

        if most is not None and not least:
            text = f"max_readable={most} contradicts keep_recent=0, which masks nothing; set keep_recent too"
            raise DefinitionError("History policy 'mask_tool_results'", text)

        if most is not None and most < least:
            text = f"max_readable={most} must be at least keep_recent={least}"
            raise DefinitionError("History policy 'mask_tool_results'", text)

    @property
    def most_readable(self) -> int | None:
        """The most results that stay readable; None: all of them."""
        if not self.keep_recent:
            return None

        return 2 * self.keep_recent - 1 if self.max_readable is None else self.max_readable

    @property
    def options(self) -> PolicyOptions:
        return PolicyOptions(stage="view")

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        """Mask the oldest readable results, down to `keep_recent`; evict nothing."""
        readable = [
            (entry.message, g.mandatory)
            for g in history
            for entry in g.entries
            if isinstance(entry.message, ToolMessage) and any(r.text != OMITTED for r in entry.message.results)
        ]
        count = sum(message_size(message) for message, _ in readable)

        if self.most_readable is None or count <= self.most_readable:
            return PruneDecision(kept=tuple(history))

        masked: list[ToolMessage] = []

        while not readable[0][1] and count - message_size(readable[0][0]) >= self.keep_recent:
            masked.append(readable.pop(0)[0])
            count -= message_size(masked[-1])

        reason = f"more than {self.most_readable} tool results are readable"
        return PruneDecision(kept=tuple(history), masked=tuple(message.id for message in masked), reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """At `threshold` of the model's window, hides the oldest messages, down to `target` of it.

    The first user message stays while it fits. A marker after it states how many messages are hidden. Beyond `limit`
    messages, it hides half of them; by default the history has at most 50. `limit=None`: no limit on messages.
    """

    threshold: PositiveRatio = 0.8
    target: PositiveRatio = 0.5
    limit: LimitOrDefault = "default"
    name: str = "truncate"

    def __post_init__(self) -> None:
        check_settings(self, "History policy 'truncate'")
        check_below_threshold(self.name, self.target, self.threshold)

    @property
    def options(self) -> PolicyOptions:
        return PolicyOptions(stage="view", limit=self.limit, threshold=self.threshold, insert_marker=True)

    def prune(self, history: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
        """Above the threshold, evict the oldest groups down to the target; above the limit, to `budget.prune_to`."""
        window = budget.window or DEFAULT_WINDOW
        overhead = budget.overhead_tokens + MARKER_TOKENS
        total, size = overhead + sum(g.tokens for g in history), groups_size(history)
        first = [i for i, g in enumerate(history) if g.opens_turn][:1]
        gone: set[int] = set()
        reason = ""

        if budget.limit is not None and size > budget.limit:
            # The marker counts one.
            most = budget.limit - 1
            gone = evict(protect(history, first), target=min(budget.prune_to, most), limit=most)
            reason = f"{size} messages are more than the limit of {budget.limit}"

        if total > self.threshold * window:
            target, limit = self.target * window - overhead, self.threshold * window - overhead
            gone = evict(protect(history, first), gone, target=target, limit=limit, by="tokens")
            reason = f"{total} tokens are more than {self.threshold:.0%} of the window of {window}"

            if sum(g.tokens for i, g in enumerate(history) if i not in gone) > limit:
                gone = evict(history, gone, target=target, limit=limit, by="tokens")

        return prune_decision(history, gone, reason)
