"""Estimates before the first bill are close to a real tokenizer, for the scripts and formats of conversations."""

from __future__ import annotations

import json

import pytest

from crew.history import ESTIMATOR, count_message_tokens, estimate_message_tokens, estimate_tokens, exact_counter
from crew.messages import (
    AssistantMessage,
    Image,
    SummaryMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)

ENGLISH = (
    "The order left the warehouse this morning and should arrive tomorrow afternoon. If nobody is at home, the driver "
    "leaves it with a neighbour and puts a card into the letter box. Please let us know whether you would like another "
    "address, because after tonight it can't be changed any more. "
)
CODE = '''def total(orders: list[Order], *, discount: float = 0.0) -> Decimal:
    """The sum of all orders that were paid."""
    paid = [order for order in orders if order.status == "paid" and not order.cancelled_at]
    for index, order in enumerate(paid):
        if order.lines is None:
            raise ValueError(f"order {index} has no lines")
    return sum((line.price * line.count for order in paid for line in order.lines), Decimal(0)) * (1 - discount)
'''
JSON = json.dumps(
    [
        {"id": 48213 + n, "order_id": f"A-{n * 917}", "price": 17.5 + n, "tags": ["new", "sale"], "active": n % 2 == 0}
        for n in range(8)
    ]
)
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "order_id": {"type": "string", "description": "The order's number."},
            "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        },
        "required": ["order_id"],
        "additionalProperties": False,
    }
)
CHINESE = (
    "订单号为一七的包裹已经从仓库发出，预计明天下午到达。如果您有任何问题，请随时与我们的客服联系。我们会尽快回复您。"
)
JAPANESE = (
    "ご注文の商品は倉庫から発送されました。明日の午後にお届けする予定です。サーバーのエラーをチェックしてください。"
)
KOREAN = "주문하신 상품이 창고에서 출고되었습니다. 내일 오후에 도착할 예정입니다. 궁금한 점이 있으시면 문의해 주세요."
EMOJI = "Great 🎉 job, team 🔥! Shipped 🚀 and tested ✅, thanks 🙏 to all 😀. "
GERMAN = "Die Bestellung wurde gestern über das Lager verschickt und müsste morgen nachmittag eintreffen. "

SAMPLES = {
    "english": ENGLISH,
    "code": CODE,
    "json": JSON,
    "schema": SCHEMA,
    "chinese": CHINESE,
    "japanese": JAPANESE,
    "korean": KOREAN,
    "emoji": EMOJI,
    "german": GERMAN,
}


@pytest.mark.parametrize("name", SAMPLES)
def test_estimate_is_close_to_a_real_tokenizer(name: str) -> None:
    """Within a quarter, before the first bill; four characters a token would be wrong by factors."""
    pytest.importorskip("rs_bpe")
    counter = exact_counter("openai", "gpt-5-mini")
    assert counter is not None
    real = counter.count(SAMPLES[name])
    assert real * 0.75 <= estimate_tokens(SAMPLES[name]) <= real * 1.25


def test_exact_tokenizer_is_only_for_openai_models() -> None:
    """Other providers publish no tokenizer."""
    assert exact_counter("anthropic", "claude-opus-4-5") is None
    pytest.importorskip("rs_bpe")
    modern, older = exact_counter("openai-responses", "gpt-5"), exact_counter("openai", "gpt-4")
    assert modern is not None
    assert older is not None
    assert modern.count(KOREAN) < older.count(KOREAN)


def test_long_text_is_estimated_from_samples() -> None:
    """A sample of a uniform text is representative."""
    assert 0.9 < estimate_tokens(ENGLISH * 400) / (400 * estimate_tokens(ENGLISH)) < 1.1


def test_keys_and_base64_have_more_tokens() -> None:
    """They have about three characters a token."""
    assert 0.3 < estimate_tokens("3f9a27c81b" * 40) / 400 < 0.5


def test_only_empty_text_has_no_tokens() -> None:
    """Also for characters of no known class."""
    assert estimate_tokens("") == 0
    assert ESTIMATOR.count("\x00") == 1
    assert estimate_tokens("\x00" * 800) == 100


def test_every_kind_of_message_is_counted() -> None:
    """Text, calls, results and images; data that only the provider can read is left out."""
    text = estimate_tokens(ENGLISH)
    assert (
        estimate_message_tokens(SystemMessage(ENGLISH)) == estimate_message_tokens(SummaryMessage(ENGLISH)) == text + 4
    )
    assert estimate_message_tokens(UserMessage(ENGLISH, images=(Image(data="x" * 9_000),))) == text + 804
    call = ToolCall(id="1", name="read", arguments=JSON)
    assert estimate_message_tokens(AssistantMessage(ENGLISH, calls=(call,))) > text + estimate_tokens(JSON)
    results = (ToolResult(call_id="1", text=ENGLISH), ToolResult(call_id="2", text=ENGLISH))
    assert estimate_message_tokens(ToolMessage(results)) == 2 * (text + 4)


def test_counts_are_cached_by_counter() -> None:
    """A message is counted once by each counter; without caching, every time."""

    class Ones:
        def __init__(self) -> None:
            self.times = 0

        def count(self, text: str) -> int:
            self.times += 1
            return 1

    message, first, second = UserMessage("hello"), Ones(), Ones()
    assert (
        count_message_tokens(message, first)
        == count_message_tokens(message, first)
        == count_message_tokens(message, second)
        == 5
    )
    assert (first.times, second.times) == (1, 1)
    count_message_tokens(message, first, keep=False)
    assert first.times == 2
