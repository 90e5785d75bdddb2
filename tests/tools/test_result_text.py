"""What a tool returned, in words of bounded size."""

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
    """A string stays, anything else becomes JSON."""
    assert to_text(value) == text


@pytest.mark.parametrize("value", [object(), iter([1]), (n for n in (1, 2)), {"a": object()}])
def test_what_has_no_json_is_refused(value: object) -> None:
    """The error is told to the model by whoever called the tool."""
    with pytest.raises((TypeError, ValueError)):
        to_text(value)


@given(st.integers(0, 3_000), st.integers(1, 300))
def test_a_cut_text_is_never_longer_than_its_limit(length: int, limit: int) -> None:
    """Beginning and end stay; what fits is left alone."""
    text = "".join(chr(97 + i % 26) for i in range(length))
    short = truncate_middle(text, limit)
    assert len(short) <= limit
    assert (short == text) == (length <= limit)
    head, marker, tail = short.partition("\n[…")
    assert text.startswith(head)
    assert not marker or text.endswith(tail.rpartition("\n")[2])
