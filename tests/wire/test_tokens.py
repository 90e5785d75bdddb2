"""Token counts are plausible for every script, and deterministic."""

import json
from collections.abc import Sequence

import pytest

from tests.wire import chat, messages, responses
from tests.wire.cache import Segment
from tests.wire.model import Model
from tests.wire.tokens import approximate, count, count_dense

SAMPLES = {
    "The quick brown fox jumps over the lazy dog.": (9, 12),
    "def add(a: int, b: int) -> int:\n    return a + b\n": (17, 26),
    json.dumps({"order_id": 17, "items": ["apple", "pear"], "paid": True}): (16, 30),
    "今天天气很好我们去公园散步吧": (8, 15),
    "きょうはとてもいいてんきですね": (8, 15),
    "오늘은 날씨가 아주 좋습니다": (8, 16),
    "🎉🚀👍": (3, 9),
    "Сегодня очень хорошая погода": (4, 14),
    "": (0, 0),
}


@pytest.mark.parametrize("text", SAMPLES)
def test_counts_are_plausible(text: str) -> None:
    """Within the range that real tokenizers give."""
    low, high = SAMPLES[text]
    assert low <= approximate(text) <= high
    assert low <= count(text) <= high


WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather in a given location",
    "input_schema": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"}},
        "required": ["location"],
    },
}
CURRENT_WEATHER = {
    "name": "get_current_weather",
    "description": "Get the current weather in a given location",
    "parameters": {
        "type": "object",
        "properties": {
            "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
            "unit": {
                "type": "string",
                "description": "The unit of temperature to return",
                "enum": ["celsius", "fahrenheit"],
            },
        },
        "required": ["location"],
    },
}
ASKED = {"role": "user", "content": "What's the weather like in San Francisco?"}


def total(segments: Sequence[Segment]) -> int:
    return sum(segment.tokens for segment in segments)


def test_anthropic_bills_the_documented_examples() -> None:
    """The pages on token counting state 14 tokens with a system text, and 403 with a tool."""
    plain = {"system": "You are a scientist", "messages": [{"role": "user", "content": "Hello, Claude"}]}
    with_tool = {"tools": [WEATHER], "messages": [ASKED]}
    assert total(messages.prompt(plain, Model())) == pytest.approx(14, abs=1)
    assert total(messages.prompt(with_tool, Model())) == pytest.approx(403, abs=1)
    forced = {**with_tool, "tool_choice": {"type": "any"}}
    assert total(messages.prompt(forced, Model())) == total(messages.prompt(with_tool, Model())) - 33


def test_openai_bills_the_documented_example() -> None:
    """The cookbook states 101 tokens for its example with a tool, counted by its formula and billed by the service."""
    system = {
        "role": "system",
        "content": "You are a helpful assistant that can answer to questions about the weather.",
    }
    body = {"messages": [system, ASKED], "tools": [{"type": "function", "function": CURRENT_WEATHER}]}
    assert total(chat.prompt(body, Model())) == pytest.approx(101, abs=4)
    items = {"instructions": system["content"], "input": [ASKED], "tools": [{"type": "function", **CURRENT_WEATHER}]}
    assert total(responses.prompt(items, Model())) == total(chat.prompt(body, Model()))


def test_dense_tokenizer_depends_on_the_kind_of_text() -> None:
    """Prose has as many tokens as with o200k, data up to 1.35 times as many, as the documentation states."""
    prose = "The order left the warehouse this morning and should arrive tomorrow afternoon."
    data = json.dumps([{"id": 48213 + n, "price": 17.25 + n, "at": "2026-11-17T10:20:30"} for n in range(9)])
    assert count_dense(prose) == count(prose)
    assert 1.2 <= count_dense(data) / count(data) <= 1.35
