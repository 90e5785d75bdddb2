"""Counts calibrated by bills: a billed request is predicted exactly, and an eviction subtracts known numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from crew.history import Calibration, TokenBudget
from crew.history.token_budget import calibrate, predict_tokens, scale_overheads
from crew.interfaces import HistoryEntry
from crew.messages import UserMessage

counts = st.lists(st.integers(1, 5_000), min_size=1, max_size=12)


def entries(tokens: list[int], start: int = 0) -> list[HistoryEntry]:
    return [HistoryEntry(message=UserMessage(str(n)), position=start + i, tokens=n) for i, n in enumerate(tokens)]


def corrected(before: list[HistoryEntry], tokens: dict[int, int]) -> list[HistoryEntry]:
    return [
        HistoryEntry(message=e.message, position=e.position, tokens=tokens.get(e.position, e.tokens)) for e in before
    ]


@given(counts, st.integers(0, 4_000), st.integers(1, 60_000))
def test_billed_request_is_predicted_exactly(tokens: list[int], fixed: int, billed: int) -> None:
    """The first bill is distributed over the messages, and no count becomes negative."""
    shown = entries(tokens)
    found = calibrate(Calibration(), fixed, shown, 0, billed)
    again = corrected(shown, dict(found.tokens_by_position))
    assert found.overhead_tokens >= 0
    assert all(entry.tokens >= 0 for entry in again)
    assert found.calibration.bill_count == 1
    assert abs(predict_tokens(found.calibration, found.overhead_tokens, again, len(tokens)) - billed) <= len(tokens) + 2


@given(counts, counts, st.floats(0.6, 1.8), st.integers(0, 4_000), st.sampled_from(["held", "moved", "first"]))
def test_new_messages_cost_the_growth_of_the_bill(
    old: list[int], new: list[int], factor: float, fixed: int, held: str
) -> None:
    """The same request is then predicted exactly."""
    first = entries(old)
    known = calibrate(Calibration(), fixed, first, 0, round(factor * (fixed + sum(old))))
    shown = [*corrected(first, dict(known.tokens_by_position)), *entries(new, len(old))]
    before = predict_tokens(known.calibration, known.overhead_tokens, shown[: len(old)], len(old))
    billed = before + round(factor * sum(new))
    found = calibrate(known.calibration, known.overhead_tokens, shown, len(old), billed, held=held)  # type: ignore[arg-type]
    again = corrected(shown, dict(found.tokens_by_position))
    assert abs(predict_tokens(found.calibration, found.overhead_tokens, again, len(shown)) - billed) <= len(shown) + 2


def test_new_messages_get_the_whole_difference() -> None:
    """A later eviction subtracts what they were billed with."""
    first = entries([100])
    start = calibrate(Calibration(), 0, first, 0, 100)
    shown = [*first, *entries([100], 1)]
    found = calibrate(start.calibration, start.overhead_tokens, shown, 1, 300)
    assert found.tokens_by_position == {1: 200}
    assert found.calibration.estimate_ratio > start.calibration.estimate_ratio


def test_bill_of_the_same_request_corrects_the_counts() -> None:
    """Larger messages get most of the difference."""
    shown = entries([100, 100])
    start = calibrate(Calibration(), 100, shown, 0, 300)
    found = calibrate(start.calibration, start.overhead_tokens, shown, 2, 600)
    assert found.tokens_by_position == {0: 220, 1: 220}
    assert found.overhead_tokens == 160


def test_each_model_has_a_separate_scale() -> None:
    """Counts stay in the unit of the first model that billed."""
    shown = entries([1_000, 1_000])
    first = calibrate(Calibration(), 0, shown, 0, 2_000)
    other = calibrate(Calibration(), 0, shown, 2, 3_000)
    assert not other.tokens_by_position
    assert first.calibration.billed_scale == 1.0
    assert abs(predict_tokens(other.calibration, other.overhead_tokens, shown, 2) - 3_000) <= 60


def test_only_a_smaller_window_of_the_same_model_is_learned() -> None:
    """An error names the window of the model of the request."""
    budget = TokenBudget(model="a:b", window=1_000)
    assert budget.with_learned_window("a:c", 500) is budget
    assert budget.with_learned_window("a:b", 2_000) is budget
    assert budget.with_learned_window("a:b", 500) == TokenBudget(model="a:b", window=500, window_source="learned")


def test_first_bill_scales_overheads_of_the_same_model_only() -> None:
    """Billed overheads and those of other models stay; no overhead changes by more than a factor of two."""
    unbilled = TokenBudget(model="m", overhead_tokens=200, overhead_counted=200)
    billed = TokenBudget(model="m", overhead_tokens=260, overhead_counted=200)
    other = TokenBudget(model="n", overhead_tokens=200, overhead_counted=200)
    budgets = {"a": (unbilled, other), "b": (billed,)}
    scaled = scale_overheads(budgets, "m", 1.25)
    assert [[budget.overhead_tokens for budget in ranks] for ranks in scaled.values()] == [[250, 200], [260]]
    assert scale_overheads(budgets, "m", 9.0)["a"][0].overhead_tokens == 400
    assert scale_overheads(budgets, "m", 0.1)["a"][0].overhead_tokens == 100
