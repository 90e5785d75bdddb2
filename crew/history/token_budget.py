"""Token budgets of models, and the calibration of token estimates by the usage that providers bill.

The history stores token counts in the units of the first model that billed. Each bill replaces the estimates of the
messages that were new in its request, so that only messages after the last bill are estimated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from crew.interfaces import HistoryEntry

DEFAULT_WINDOW = 128_000

# Typical relative errors before the first bill: of a model's tokenizer, of instructions and schemas, of messages; and
# the number of tokens that a service adds to a request.
_MODEL_ERROR, _OVERHEAD_ERROR, _MESSAGE_ERROR, _WRAPPER_TOKENS = 0.25, 0.25, 0.12, 60.0

WindowSource = Literal["explicit", "registry", "default", "learned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBudget:
    """The token limits of one agent's model.

    model             the model's name.
    window            its context window, in tokens.
    window_source     where the window comes from: set by the user, the registry of models, a default, or an error.
    overhead_tokens   the tokens of instructions and tools, corrected by bills.
    overhead_counted  the same as counted before the first bill.
    reply_reserve     the part of the window that is reserved for the reply.
    counts_exactly    whether a tokenizer counts all texts; else all, or the short ones, are estimated.
    """

    model: str = ""
    window: int = DEFAULT_WINDOW
    window_source: WindowSource = "default"
    overhead_tokens: int = 0
    overhead_counted: int = 0
    reply_reserve: int = 0
    counts_exactly: bool = False

    def with_learned_window(self, model: str, maximum: int) -> TokenBudget:
        """Use the smaller window that an error of this model reported."""
        if self.model != model or maximum >= self.window:
            return self

        return replace(
            self, window=maximum, window_source="learned", reply_reserve=min(self.reply_reserve, maximum // 2)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How one model counts tokens.

    estimate_ratio  its tokens for each estimated token, for messages that were not billed yet.
    billed_scale    its tokens for each token of the first model that billed, for messages that were billed.
    bill_count      the number of bills so far.
    """

    estimate_ratio: float = 1.0
    billed_scale: float = 1.0
    bill_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledTokens:
    """The results of a bill: the new calibration, the tokens of instructions and tools, and those of each message."""

    calibration: Calibration
    overhead_tokens: int
    tokens_by_position: Mapping[int, int]


def predict_tokens(calibration: Calibration, overhead: int, entries: Sequence[HistoryEntry], billed_until: int) -> int:
    """The expected input tokens of a request. Messages before the position `billed_until` were billed before."""
    old, new = split_billed(entries, billed_until)
    return round(overhead + old * calibration.billed_scale + new * calibration.estimate_ratio)


def split_billed(entries: Sequence[HistoryEntry], billed_until: int) -> tuple[int, int]:
    """The tokens of messages that were billed before, and of those that were not."""
    old = new = 0

    for entry in entries:
        if entry.position < billed_until:
            old += entry.tokens
        else:
            new += entry.tokens

    return old, new


def calibrate(
    calibration: Calibration,
    overhead: int,
    entries: Sequence[HistoryEntry],
    billed_until: int,
    billed: int,
    *,
    held: Literal["held", "moved", "first"] = "held",
) -> BilledTokens:
    """Distribute a bill over overhead and messages, so that the same request is predicted as it was billed.

    If the view kept its prefix (`held`), the difference from the agent's previous bill is due to the new messages. If
    the prefix moved, or in an agent's first request, part of the difference may be an earlier error.
    """
    old, new = split_billed(entries, billed_until)

    if not calibration.bill_count:
        return _calibrate_first_bill(overhead, entries, billed_until, billed, old + new)

    tolerance = 4.0 if held == "held" else 1.25
    ratio, scale = calibration.estimate_ratio, calibration.billed_scale
    expected = new * ratio
    rest = billed - overhead - old * scale
    actual = min(max(rest, expected / tolerance), expected * tolerance)
    tokens = {}

    if new:
        factor = actual / new / scale
        tokens = {e.position: round(e.tokens * factor) for e in entries if e.position >= billed_until}
        weight = min(0.6, actual / (actual + 300.0))
        ratio += weight * (actual / new - ratio)

    calibration = Calibration(estimate_ratio=ratio, billed_scale=scale, bill_count=calibration.bill_count + 1)
    unexplained = rest - actual

    if abs(unexplained) < 1:
        return BilledTokens(calibration=calibration, overhead_tokens=overhead, tokens_by_position=tokens)

    if held == "first" or not old:
        corrected = max(0, round(overhead + unexplained))
        return BilledTokens(calibration=calibration, overhead_tokens=corrected, tokens_by_position=tokens)

    # The larger part gets most of the difference; the overhead, which is in every bill, is more often right.
    base = old * scale
    of_overhead = unexplained * overhead**2 / (overhead**2 + base**2)
    factor = max(0.0, (base + unexplained - of_overhead) / base)
    older = {e.position: round(e.tokens * factor) for e in entries if e.position < billed_until}
    corrected = max(0, round(overhead + of_overhead))
    return BilledTokens(calibration=calibration, overhead_tokens=corrected, tokens_by_position=older | tokens)


def _calibrate_first_bill(
    overhead: int, entries: Sequence[HistoryEntry], billed_until: int, billed: int, estimated: int
) -> BilledTokens:
    """Calibrate by a model's first bill.

    The difference from the estimate is due to the model's tokenizer, to the overhead or to the messages. One bill
    cannot separate them, so each gets a share by its typical error.
    """
    total = overhead + estimated
    variance = (
        (_MODEL_ERROR * total) ** 2
        + (_OVERHEAD_ERROR * overhead) ** 2
        + (_MESSAGE_ERROR * estimated) ** 2
        + _WRAPPER_TOKENS**2
    )
    error = (billed - total) / variance
    of_model = _MODEL_ERROR**2 * total * error
    ratio = min(max(1.0 + of_model + _MESSAGE_ERROR**2 * estimated * error, 0.25), 4.0)
    corrected = overhead * (1.0 + of_model + _OVERHEAD_ERROR**2 * overhead * error) + _WRAPPER_TOKENS**2 * error
    corrected = min(max(0.0, corrected), billed)
    factor = (billed - corrected) / max(1, estimated)
    # Messages that another model billed keep its counts; a scale converts them.
    scale = max(0.1, factor) if billed_until else 1.0
    tokens = {} if billed_until else {entry.position: round(entry.tokens * factor) for entry in entries}
    calibration = Calibration(estimate_ratio=ratio, billed_scale=scale, bill_count=1)
    return BilledTokens(calibration=calibration, overhead_tokens=round(corrected), tokens_by_position=tokens)


def scale_overheads(
    budgets: Mapping[str, tuple[TokenBudget, ...]], model: str, ratio: float
) -> dict[str, tuple[TokenBudget, ...]]:
    """Expect other instructions and tools to differ from their count as this model's first bill did."""
    ratio = min(max(ratio, 0.5), 2.0)

    def scale(budget: TokenBudget) -> TokenBudget:
        unbilled = budget.model == model and budget.overhead_tokens == budget.overhead_counted
        return replace(budget, overhead_tokens=round(budget.overhead_counted * ratio)) if unbilled else budget

    return {name: tuple(map(scale, ranks)) for name, ranks in budgets.items()}


WINDOW_THRESHOLD = 0.8


def carry_over_budgets(
    budgets: Mapping[str, tuple[TokenBudget, ...]],
    previous: Mapping[str, tuple[TokenBudget, ...]],
    prepared: Collection[str] = (),
) -> dict[str, tuple[TokenBudget, ...]]:
    """Take learned windows, and the billed overhead of unchanged instructions and tools, from previous budgets.

    Each agent has a budget for its model and one for its backup model. The overhead of `prepared` agents is counted
    when they become active, and compared with the previous one then.
    """
    learned = [budget for budgets in previous.values() for budget in budgets if budget.window_source == "learned"]

    def carry_over(name: str, rank: int, budget: TokenBudget) -> TokenBudget:
        for other in learned:
            budget = budget.with_learned_window(other.model, other.window)

        same = previous.get(name, ())[rank : rank + 1]

        if same and same[0].model == budget.model:
            if same[0].overhead_counted == budget.overhead_counted:
                return replace(budget, overhead_tokens=same[0].overhead_tokens)

            if name in prepared:
                overhead = same[0].overhead_tokens
                return replace(budget, overhead_tokens=overhead, overhead_counted=same[0].overhead_counted)

        return budget

    return {name: tuple(carry_over(name, i, b) for i, b in enumerate(ranks)) for name, ranks in budgets.items()}
