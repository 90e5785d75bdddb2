"""The options of a simulated model: era, limits, prices."""

from dataclasses import dataclass
from typing import Any, Literal

from tests.wire.billing import Prices

Era = Literal["classic", "modern"]
Protocol = Literal["chat", "responses", "messages"]
Json = dict[str, Any]
ANTHROPIC = Prices()
OPENAI = Prices(input="1.25", output="10", read="0.125", write=None, write_1h=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Options of one model.

    `classic` accepts temperature, manual thinking, prefill and `max_tokens` on Chat, but no system role in Anthropic's
    messages. `modern` is the opposite, with adaptive thinking.
    `interleaved`: the model thinks before each call of a tool loop, and each such turn must be sent back with it.
    `demand_tools`: Anthropic's rule that a history with tool blocks must define tools.
    `factor`: tokens of this model per token of o200k. `dense`: its tokenizer splits numbers and punctuation finer.
    `tool_prompts`: the tokens that Anthropic adds to a request with tools, by tool choice: `auto` or `none`, and `any`
    or a tool. The documentation lists 346 and 313 for Claude 4, 530 and 281 for Claude 3 Opus, 159 and 235 for Sonnet.
    `prices`: None for the usual prices of the service.
    """

    era: Era = "classic"
    window: int = 200_000
    max_output: int = 64_000
    cache_minimum: int = 1024
    interleaved: bool = True
    demand_tools: bool = False
    factor: float = 1.0
    dense: bool = False
    tool_prompts: tuple[int, int] = (346, 313)
    prices: Prices | None = None

    def price(self, protocol: Protocol) -> Prices:
        """Return the model's prices, else the usual ones of the protocol's service."""
        return self.prices or (ANTHROPIC if protocol == "messages" else OPENAI)
