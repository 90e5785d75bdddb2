"""`changed` is `dataclasses.replace`, quicker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from crew.change import changed, put
from crew.runs.events import Asked
from tests.contracts.run_store import state

ASKED = Asked(run_id="r", provider="p", model="m", messages=1, tokens_estimated=2)


def test_a_changed_value_is_what_replace_makes() -> None:
    """The same value, and the old one is as it was; states, events and tallies alike."""
    for value, changes in (
        (state(), {"sequence": 7, "agent": "b"}),
        (ASKED, {"at": 1.0}),
        (state().counters, {"rounds": 3}),
        (ASKED, {}),
    ):
        before = repr(value)
        assert changed(value, **changes) == replace(value, **changes)
        assert repr(value) == before


def test_a_field_that_is_not_there_is_an_error() -> None:
    """A slip of the pen is not swallowed."""
    with pytest.raises(KeyError):
        changed(ASKED, nothing=1)


def test_a_value_of_ones_own_is_changed_in_place() -> None:
    """Only the value itself changes; a copy that was taken before stays as it was."""
    mine = changed(ASKED)
    put(mine, at=2.0, tokens_estimated=9)
    assert (mine.at, mine.tokens_estimated) == (2.0, 9)
    assert replace(mine, at=ASKED.at, tokens_estimated=ASKED.tokens_estimated) == ASKED
