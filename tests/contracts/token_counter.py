"""The contract of every TokenCounter: derive a class and provide a `counter`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from crew.interfaces import TokenCounter


class TokenCounterContract:
    """Counting is pure, and plausible for any text."""

    counter: TokenCounter

    @given(st.text(max_size=60))
    def test_count_depends_only_on_the_text(self, text: str) -> None:
        """Never negative, zero for empty text, the same each time, at most a few tokens a character."""
        count = self.counter.count(text)
        assert isinstance(count, int)
        assert (count == 0) == (text == "")
        assert count <= 4 * len(text) + 8
        assert self.counter.count(text) == count

    @given(st.text(min_size=1, max_size=100), st.integers(2, 20))
    def test_repeated_text_never_counts_less(self, text: str, times: int) -> None:
        """A text many times over never counts less than once."""
        assert self.counter.count(text * times * 8) >= self.counter.count(text)
