"""Token counts are plausible for every script, and deterministic."""

import json

import pytest

from tests.wire.tokens import approximate, count

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
