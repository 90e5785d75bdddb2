"""The result of a tool becomes a text of limited length."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from crew.tools import to_text, truncate_middle


class Model(BaseModel):
    n: int = 1


@dataclass
class Plain:
    n: int = 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("words", "words"),
        (None, "null"),
        (17, "17"),
        ([1, "a"], '[1,"a"]'),
        (Model(), '{"n":1}'),
        (Plain(), '{"n":1}'),
        ({"ü": "漢"}, '{"ü":"漢"}'),
        ("lone \ud800", "lone \ufffd"),
    ],
)
def test_a_value_becomes_text(value: object, text: str) -> None:
    """A string stays unchanged; anything else becomes JSON."""
    assert to_text(value) == text


@pytest.mark.parametrize("value", [object(), iter([1]), (n for n in (1, 2)), {"a": object()}])
def test_a_value_without_json_is_refused(value: object) -> None:
    """The engine reports the error to the model."""
    with pytest.raises((TypeError, ValueError)):
        to_text(value)


@given(st.integers(0, 3_000), st.integers(1, 300))
def test_a_truncated_text_is_at_most_as_long_as_its_limit(length: int, limit: int) -> None:
    """The beginning and the end stay; a text within the limit is unchanged."""
    text = "".join(chr(97 + i % 26) for i in range(length))
    short = truncate_middle(text, limit)
    assert len(short) <= limit
    assert (short == text) == (length <= limit)
    head, marker, tail = short.partition("\n[…")
    assert text.startswith(head)
    assert not marker or text.endswith(tail.rpartition("\n")[2])
