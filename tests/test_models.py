"""Context windows and prices: known models work offline, unknown models have none."""

import genai_prices
import pytest

from crew import Agent, CrewExecutor
from crew.messages import Usage
from crew.models import context_window, usage_cost
from tests.support.remote_providers import provider
from tests.wire import WireServer


@pytest.mark.parametrize(
    ("name", "model"),
    [("openai", "gpt-5-mini"), ("openai-responses", "gpt-5"), ("anthropic", "claude-sonnet-4-5")],
)
def test_the_context_window_is_known_offline(name: str, model: str) -> None:
    """The registry of `genai-prices` contains it."""
    window = context_window(name, model)
    assert window is not None
    assert window >= 100_000


def test_unknown_models_have_no_window_and_no_price() -> None:
    """None, not zero: a budget would never be reached."""
    assert context_window("openai", "made-up-model") is None
    assert context_window("no-such-provider", "made-up-model") is None
    assert usage_cost("openai", "made-up-model", Usage(input_tokens=1000)) is None
    assert usage_cost("aviary", "parrot-1", Usage(input_tokens=1000)) is None


@pytest.mark.parametrize("size", [1_000, 300_000])
@pytest.mark.parametrize("model", ["gpt-5", "gpt-4o", "claude-sonnet-4-5", "claude-opus-4-1", "claude-haiku-4-5"])
def test_the_cost_equals_that_of_the_registry(model: str, size: int) -> None:
    """Cache reads and writes have separate prices; a price can depend on the size of the request."""
    name = "anthropic" if model.startswith("claude") else "openai"
    written = size // 5 if name == "anthropic" else 0
    usage = Usage(input_tokens=size, output_tokens=77, cache_read_tokens=size // 2, cache_write_tokens=written)
    expected = genai_prices.calc_price(
        genai_prices.Usage(
            input_tokens=size, output_tokens=77, cache_read_tokens=size // 2, cache_write_tokens=written
        ),
        model_ref=model,
        provider_id=name,
    )
    assert usage_cost(name, model, usage) == pytest.approx(float(expected.total_price))


async def test_a_model_without_a_price_makes_the_cost_unknown() -> None:
    """Tokens are still counted."""
    async with WireServer() as server:
        model = provider(server, "chat", "classic", model="made-up-model")
        usage = (await CrewExecutor(Agent("a", instructions="Hi.", model=model)).execute("Hello")).usage

    assert usage.cost is None
    assert usage.input_tokens > 0
