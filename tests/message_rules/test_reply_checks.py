"""A reply that enters a run can be stored: types, sizes and usage figures."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crew.errors import MalformedReply
from crew.interfaces import ModelReply
from crew.message_rules.reply_checks import MAX_COST, MAX_TOKENS, check_reply
from crew.messages import ProviderData, ToolCall, Usage


def check(reply: object) -> ModelReply:
    return check_reply(reply, provider="p", model="m")


def test_sound_reply_is_returned_as_it_is() -> None:
    """Without a copy, and without warnings."""
    reply = ModelReply(
        text="Hi.",
        calls=(ToolCall(id="a", name="step"),),
        usage=Usage(requests=1, input_tokens=9, cache_read_tokens=4, cache_write_tokens=5, cost=None),
        provider_data=ProviderData(provider="p", model="m", items=()),
    )
    assert check(reply) is reply
    assert check(ModelReply(usage=Usage(cost=0))).usage.cost == 0


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (1.2, 2),
        (-3, 0),
        ("12", 12),
        ("twelve", 0),
        (None, 0),
        (True, 0),
        (math.nan, 0),
        (math.inf, MAX_TOKENS),
        (2**80, MAX_TOKENS),
        (10**400, MAX_TOKENS),
        (-(10**400), 0),
        ([1], 0),
    ],
)
def test_odd_count_is_rounded_up_or_clamped_and_named(value: Any, count: int) -> None:
    """Never negative, never beyond what can be stored and added; not a number: not reported."""
    reply = check(ModelReply(usage=Usage(output_tokens=value)))
    assert reply.usage.output_tokens == count
    assert len(reply.warnings) == 1
    assert reply.warnings[0].startswith("output_tokens is ")
    assert reply.warnings[0].endswith(f", counted as {count}")


@pytest.mark.parametrize(
    ("value", "cost"), [(-1.0, None), (math.nan, None), ("free", None), (True, None), (1e300, MAX_COST), ("0.5", 0.5)]
)
def test_odd_cost_is_unknown_or_clamped_and_named(value: Any, cost: float | None) -> None:
    """A negative cost is unknown: it can't lower the sum."""
    reply = check(ModelReply(usage=Usage(cost=value)))
    assert reply.usage.cost == cost
    assert reply.warnings[0].startswith("cost is ")


def test_no_more_tokens_are_cached_than_were_sent() -> None:
    """Reads count first."""
    reply = check(ModelReply(usage=Usage(input_tokens=10, cache_read_tokens=8, cache_write_tokens=7)))
    assert (reply.usage.cache_read_tokens, reply.usage.cache_write_tokens) == (8, 2)
    assert reply.warnings == ("15 of 10 input tokens are cached, counted as 10",)


def test_unknown_finish_reason_is_read_by_the_calls() -> None:
    """Another one could not be loaded from a store."""
    called = ModelReply(calls=[ToolCall(id="a", name="step")], finish_reason="tool_use")  # type: ignore[arg-type]
    assert (check(called).finish_reason, check(called).calls) == ("calls", tuple(called.calls))
    ended = check(ModelReply(finish_reason="end_turn", warnings=("earlier",)))  # type: ignore[arg-type]
    assert ended.finish_reason == "stop"
    assert ended.warnings == ("earlier", "finish_reason is 'end_turn', read as 'stop'")


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (None, "expected a ModelReply, not None"),
        (ModelReply(response_id="r" * 4097), "response_id has 4,097 characters, more than 4,096"),
        (ModelReply(model=None), "model must be a string, not None"),  # type: ignore[arg-type]
        (ModelReply(calls=7), "calls must be a tuple of ToolCall, not 7"),  # type: ignore[arg-type]
        (ModelReply(calls=({},)), "calls must be a tuple of ToolCall, not of {}"),  # type: ignore[arg-type]
        (ModelReply(calls=(ToolCall(id="a", name="b"),) * 257), "it has more than 256 tool calls"),
        (ModelReply(provider_data={}), "provider_data must be a ProviderData or None, not {}"),  # type: ignore[arg-type]
        (ModelReply(usage=None), "usage must be a Usage, not None"),  # type: ignore[arg-type]
    ],
)
def test_reply_without_a_clear_meaning_is_malformed(reply: object, words: str) -> None:
    """The error names provider, model, field and value."""
    with pytest.raises(MalformedReply) as caught:
        check(reply)

    assert str(caught.value).startswith(f"p (m) returned an unusable reply: {words}")
    assert (caught.value.provider, caught.value.model) == ("p", "m")


FIGURES: Any = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.decimals())


@given(figures=st.fixed_dictionaries({field.name: FIGURES for field in fields(Usage)}))
def test_any_figures_become_sound_and_stay_so(figures: dict[str, Any]) -> None:
    """A second check finds nothing."""
    once = check(ModelReply(usage=Usage(**figures)))
    assert check(once) is once
    assert once.usage.cache_read_tokens + once.usage.cache_write_tokens <= once.usage.input_tokens
