"""What is known of the model behind an agent: its window, what every request to it holds, and how it counts.

Counts of messages are kept in the tokens of the first model that billed. Whoever bills says what the messages cost
that were new to it, so that an eviction subtracts known numbers; only what came later is estimated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from crew.interfaces import HistoryEntry

DEFAULT_WINDOW = 128_000

# How far, before the first bill, a model's way of counting tends to be off, the count of schemas, and that of messages;
# and how many tokens a service may wrap around all of it.
_MODEL_ERROR, _OVERHEAD_ERROR, _MESSAGE_ERROR, _WRAPPER_TOKENS = 0.25, 0.25, 0.12, 60.0

WindowSource = Literal["explicit", "registry", "default", "learned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBudget:
    """An agent's model: its window and where that number comes from, and the tokens of instructions and tools.

    `fixed` is what those were billed with, `counted` what they were counted as, exactly or not. `reserve` is the part
    of the window that is kept free for the reply.
    """

    model: str = ""
    window: int = DEFAULT_WINDOW
    window_source: WindowSource = "default"
    overhead_tokens: int = 0
    overhead_counted: int = 0
    reply_reserve: int = 0
    counts_exactly: bool = False

    def with_learned_window(self, model: str, maximum: int) -> TokenBudget:
        """What an error said of this model's window is believed for the rest of the run."""
        if self.model != model or maximum >= self.window:
            return self

        return replace(
            self, window=maximum, window_source="learned", reply_reserve=min(self.reply_reserve, maximum // 2)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How one model counts: `ratio` turns estimates into its tokens, `scale` the counts that are known."""

    estimate_ratio: float = 1.0
    billed_scale: float = 1.0
    bill_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledTokens:
    """What a bill taught: the model's calibration, the fixed part, and what each message costs, by position."""

    calibration: Calibration
    overhead_tokens: int
    tokens_by_position: Mapping[int, int]


def predict_tokens(calibration: Calibration, fixed: int, entries: Sequence[HistoryEntry], known: int) -> int:
    """The tokens that a request of these messages will be billed with; those before the position `known` were."""
    old, new = split_billed(entries, known)
    return round(fixed + old * calibration.billed_scale + new * calibration.estimate_ratio)


def split_billed(entries: Sequence[HistoryEntry], known: int) -> tuple[int, int]:
    """The tokens of messages that were billed before, and of those that were not."""
    old = new = 0

    for entry in entries:
        if entry.position < known:
            old += entry.tokens
        else:
            new += entry.tokens

    return old, new


def calibrate(
    calibration: Calibration,
    fixed: int,
    entries: Sequence[HistoryEntry],
    known: int,
    billed: int,
    *,
    held: Literal["held", "moved", "first"] = "held",
) -> BilledTokens:
    """Spread a bill over what caused it, so that the same request is predicted as it was billed.

    While the view held still, the difference from the agent's bill before is what its new messages cost. After a
    move, or in an agent's first request, an old error may be in it too, and less of it is theirs.
    """
    old, new = split_billed(entries, known)

    if not calibration.bill_count:
        return _calibrate_first_bill(calibration, fixed, entries, known, billed, old + new)

    room = 4.0 if held == "held" else 1.25
    expected = new * calibration.estimate_ratio
    rest = billed - fixed - old * calibration.billed_scale
    actual = min(max(rest, expected / room), expected * room)
    tokens = {}

    if new:
        share = actual / new / calibration.billed_scale
        tokens = {e.position: round(e.tokens * share) for e in entries if e.position >= known}
        weight = min(0.6, actual / (actual + 300.0))
        ratio = calibration.estimate_ratio + weight * (actual / new - calibration.estimate_ratio)
        calibration = replace(calibration, estimate_ratio=ratio)

    calibration = replace(calibration, bill_count=calibration.bill_count + 1)
    left = rest - actual

    if abs(left) < 1:
        return BilledTokens(calibration=calibration, overhead_tokens=fixed, tokens_by_position=tokens)

    if held == "first" or not old:
        return BilledTokens(
            calibration=calibration, overhead_tokens=max(0, round(fixed + left)), tokens_by_position=tokens
        )

    # Most of it is in what is larger; the fixed part, which is in every bill, was right more often.
    base = old * calibration.billed_scale
    inside = left * fixed**2 / (fixed**2 + base**2)
    factor = max(0.0, (base + left - inside) / base)
    older = {e.position: round(e.tokens * factor) for e in entries if e.position < known}
    return BilledTokens(
        calibration=calibration, overhead_tokens=max(0, round(fixed + inside)), tokens_by_position=older | tokens
    )


def _calibrate_first_bill(
    calibration: Calibration, fixed: int, entries: Sequence[HistoryEntry], known: int, billed: int, estimated: int
) -> BilledTokens:
    """The model's first bill: partly this model counts otherwise, partly the estimates were wrong.

    Which of it is which can't be seen yet, so that it is shared out by how far each tends to be off.
    """
    total = fixed + estimated
    spread = (
        (_MODEL_ERROR * total) ** 2
        + (_OVERHEAD_ERROR * fixed) ** 2
        + (_MESSAGE_ERROR * estimated) ** 2
        + _WRAPPER_TOKENS**2
    )
    off = (billed - total) / spread
    model = _MODEL_ERROR**2 * total * off
    ratio = min(max(1.0 + model + _MESSAGE_ERROR**2 * estimated * off, 0.25), 4.0)
    inside = fixed * (1.0 + model + _OVERHEAD_ERROR**2 * fixed * off) + _WRAPPER_TOKENS**2 * off
    inside = min(max(0.0, inside), billed)
    factor = (billed - inside) / max(1, estimated)
    made = replace(calibration, estimate_ratio=ratio, billed_scale=max(0.1, factor) if known else 1.0, bill_count=1)
    tokens = {} if known else {entry.position: round(entry.tokens * factor) for entry in entries}
    return BilledTokens(calibration=made, overhead_tokens=round(inside), tokens_by_position=tokens)


WINDOW_THRESHOLD = 0.8


def carry_over_budgets(
    gauges: Mapping[str, tuple[TokenBudget, ...]], before: Mapping[str, tuple[TokenBudget, ...]]
) -> dict[str, tuple[TokenBudget, ...]]:
    """These gauges with the windows that were learned before, and with what was billed for the same fixed part."""
    learned = [g for ranks in before.values() for g in ranks if g.window_source == "learned"]

    def remember(name: str, rank: int, gauge: TokenBudget) -> TokenBudget:
        for other in learned:
            gauge = gauge.with_learned_window(other.model, other.window)

        same = before.get(name, ())[rank : rank + 1]

        if same and (same[0].model, same[0].overhead_counted) == (gauge.model, gauge.overhead_counted):
            return replace(gauge, overhead_tokens=same[0].overhead_tokens)

        return gauge

    return {name: tuple(remember(name, i, g) for i, g in enumerate(ranks)) for name, ranks in gauges.items()}
