"""What every TokenCounter must do: derive a class, give it a `counter`, and these tests run against it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from crew.interfaces import TokenCounter


class TokenCounterContract:
    """Counting is pure, and about right for any text."""

    counter: TokenCounter

    @given(st.text(max_size=60))
    def test_a_count_is_a_number_that_depends_on_the_text_alone(self, text: str) -> None:
        """Never negative, nothing for nothing, the same each time, never more than a few for a character."""
        count = self.counter.count(text)
        assert isinstance(count, int)
        assert (count == 0) == (text == "")
        assert count <= 4 * len(text) + 8
        assert self.counter.count(text) == count

    @given(st.text(min_size=1, max_size=100), st.integers(2, 20))
    def test_more_text_never_has_fewer_tokens(self, text: str, times: int) -> None:
        """A text many times over never counts for less than once."""
        assert self.counter.count(text * times * 8) >= self.counter.count(text)
