"""Estimates depend on the script, count JSON higher than prose, and stay close to a tokenizer."""

from __future__ import annotations

import pytest

from crew.history import estimate_message_tokens, estimate_tokens
from crew.history.tokens import TOKENS_PER_IMAGE
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


def test_empty_text_has_no_tokens() -> None:
    """Any other text has at least one."""
    assert estimate_tokens("") == 0
    assert estimate_tokens("a") >= 1


def test_json_has_more_tokens_than_prose() -> None:
    """Punctuation and digits rarely share a token."""
    json = '{"id":17,"ok":true,"sizes":[1,2,3,4,5]},' * 45
    assert estimate_tokens(json[:1700]) > 1.3 * estimate_tokens(PROSE[:1700])


@pytest.mark.parametrize(("text", "low", "high"), [("漢字仮名" * 50, 0.5, 1.2), ("한국어로" * 50, 0.5, 1.2)])
def test_east_asian_scripts_have_about_one_token_a_character(text: str, low: float, high: float) -> None:
    """Four characters a token would be several times too low."""
    assert low * len(text) <= estimate_tokens(text) <= high * len(text)


def test_emoji_and_other_scripts_count() -> None:
    """Wide characters cost more than one token, other alphabets less."""
    assert estimate_tokens("🙂" * 10) >= 10
    assert estimate_tokens("привет" * 10) >= 10


def test_message_counts_what_the_model_reads() -> None:
    """Text, calls, results and images count; data that only a provider can read does not."""
    data = ProviderData(provider="p", model="m", items=({"signature": "x" * 10_000},))
    plain = AssistantMessage("hello")
    assert estimate_message_tokens(AssistantMessage("hello", provider_data=data)) == estimate_message_tokens(plain)
    asking = AssistantMessage("hello", calls=(ToolCall(id="a", name="look", arguments='{"n": 1}'),))
    assert estimate_message_tokens(asking) > estimate_message_tokens(plain)
    one = ToolResult(call_id="a", text="found")
    assert estimate_message_tokens(ToolMessage((one, one))) == 2 * estimate_message_tokens(ToolMessage((one,)))
    picture = UserMessage("hello", images=(Image(url="https://example.com/a.png"),))
    assert estimate_message_tokens(picture) == estimate_message_tokens(UserMessage("hello")) + TOKENS_PER_IMAGE
    assert estimate_message_tokens(SystemMessage("hello")) == estimate_message_tokens(SummaryMessage("hello"))
