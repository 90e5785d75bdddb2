"""Counting by the bill: what was billed is predicted as it was billed, and an eviction subtracts known numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from crew.history import Calibration, TokenBudget
from crew.history.token_budget import calibrate, predict_tokens
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
def test_a_request_is_predicted_as_it_was_billed(tokens: list[int], fixed: int, billed: int) -> None:
    """The first bill is shared out whole, within reason, and nothing becomes negative."""
    shown = entries(tokens)
    found = calibrate(Calibration(), fixed, shown, 0, billed)
    again = corrected(shown, dict(found.tokens_by_position))
    assert found.overhead_tokens >= 0
    assert all(entry.tokens >= 0 for entry in again)
    assert found.calibration.bill_count == 1
    assert abs(predict_tokens(found.calibration, found.overhead_tokens, again, len(tokens)) - billed) <= len(tokens) + 2


@given(counts, counts, st.floats(0.6, 1.8), st.integers(0, 4_000), st.sampled_from(["held", "moved", "first"]))
def test_what_is_new_costs_what_the_bill_grew_by(
    old: list[int], new: list[int], factor: float, fixed: int, held: str
) -> None:
    """Whatever moved in between, the same request again is predicted as billed."""
    first = entries(old)
    known = calibrate(Calibration(), fixed, first, 0, round(factor * (fixed + sum(old))))
    shown = [*corrected(first, dict(known.tokens_by_position)), *entries(new, len(old))]
    before = predict_tokens(known.calibration, known.overhead_tokens, shown[: len(old)], len(old))
    billed = before + round(factor * sum(new))
    found = calibrate(known.calibration, known.overhead_tokens, shown, len(old), billed, held=held)  # type: ignore[arg-type]
    again = corrected(shown, dict(found.tokens_by_position))
    assert abs(predict_tokens(found.calibration, found.overhead_tokens, again, len(shown)) - billed) <= len(shown) + 2


def test_while_the_view_held_still_the_new_messages_bear_the_difference() -> None:
    """An eviction later subtracts what they were billed with."""
    first = entries([100])
    start = calibrate(Calibration(), 0, first, 0, 100)
    shown = [*first, *entries([100], 1)]
    found = calibrate(start.calibration, start.overhead_tokens, shown, 1, 300)
    assert found.tokens_by_position == {1: 200}
    assert found.calibration.estimate_ratio > start.calibration.estimate_ratio


def test_a_bill_without_anything_new_corrects_what_was_known() -> None:
    """The same request, billed otherwise: the larger part of it bears most of the difference."""
    shown = entries([100, 100])
    start = calibrate(Calibration(), 100, shown, 0, 300)
    found = calibrate(start.calibration, start.overhead_tokens, shown, 2, 600)
    assert found.tokens_by_position == {0: 220, 1: 220}
    assert found.overhead_tokens == 160


def test_another_model_has_a_scale_of_its_own() -> None:
    """The counts stay in the unit of the first model that billed."""
    shown = entries([1_000, 1_000])
    first = calibrate(Calibration(), 0, shown, 0, 2_000)
    other = calibrate(Calibration(), 0, shown, 2, 3_000)
    assert not other.tokens_by_position
    assert first.calibration.billed_scale == 1.0
    assert abs(predict_tokens(other.calibration, other.overhead_tokens, shown, 2) - 3_000) <= 60


def test_only_a_smaller_window_of_the_same_model_is_learned() -> None:
    """An error names the window of the model that was asked."""
    gauge = TokenBudget(model="a:b", window=1_000)
    assert gauge.with_learned_window("a:c", 500) is gauge
    assert gauge.with_learned_window("a:b", 2_000) is gauge
    assert gauge.with_learned_window("a:b", 500) == TokenBudget(model="a:b", window=500, window_source="learned")
