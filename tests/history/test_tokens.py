"""Estimates: script-aware, JSON denser than prose, and never far from what a tokenizer says."""

from __future__ import annotations

import pytest

from crew.history import estimate, estimate_message
from crew.history.tokens import PER_IMAGE
from crew.messages import (
    AssistantMessage,
    Image,
    ProviderData,
    SummaryMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)

PROSE = "The order left the warehouse in the morning and will be with you by the end of the week. " * 20


def test_nothing_is_nothing() -> None:
    """An empty text has no tokens, any other has one at least."""
    assert estimate("") == 0
    assert estimate("a") >= 1


def test_json_is_denser_than_prose() -> None:
    """Punctuation and digits rarely share a token."""
    json = '{"id":17,"ok":true,"sizes":[1,2,3,4,5]},' * 45
    assert estimate(json[:1700]) > 1.3 * estimate(PROSE[:1700])


@pytest.mark.parametrize(("text", "low", "high"), [("漢字仮名" * 50, 0.5, 1.2), ("한국어로" * 50, 0.5, 1.2)])
def test_east_asian_scripts_have_about_one_token_a_character(text: str, low: float, high: float) -> None:
    """Characters by four would be several times too low."""
    assert low * len(text) <= estimate(text) <= high * len(text)


def test_emoji_and_other_scripts_count() -> None:
    """Wide characters cost more than one token, other alphabets less."""
    assert estimate("🙂" * 10) >= 10
    assert estimate("привет" * 10) >= 10


def test_a_message_counts_what_the_model_reads() -> None:
    """Text, calls, results and pictures count; what only a provider can read does not."""
    data = ProviderData(provider="p", model="m", items=({"signature": "x" * 10_000},))
    plain = AssistantMessage("hello")
    assert estimate_message(AssistantMessage("hello", provider_data=data)) == estimate_message(plain)
    asking = AssistantMessage("hello", calls=(ToolCall(id="a", name="look", arguments='{"n": 1}'),))
    assert estimate_message(asking) > estimate_message(plain)
    one = ToolResult(call_id="a", text="found")
    assert estimate_message(ToolMessage((one, one))) == 2 * estimate_message(ToolMessage((one,)))
    picture = UserMessage("hello", images=(Image(url="https://example.com/a.png"),))
    assert estimate_message(picture) == estimate_message(UserMessage("hello")) + PER_IMAGE
    assert estimate_message(SystemMessage("hello")) == estimate_message(SummaryMessage("hello"))
