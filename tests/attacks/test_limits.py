"""Odd figures in replies can't break a run, its budget or its stored state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from crew import Agent, CrewExecutor, Limits, RequestParameters, ScriptedProvider, call
from crew.errors import MalformedReply, RunError
from crew.history import Summarize
from crew.interfaces import ModelReply, WholeHistory
from crew.messages import Usage
from crew.runs.events import Event, Warned
from crew.store import decode_events
from tests.support.remote_providers import PROTOCOLS, provider, run, step, worker
from tests.support.stores import JsonStore
from tests.wire import Fault, Protocol, WireServer, tool_loop

ODD_FIGURES: list[Any] = [1.5, -7, -0.5, "12", "many", True, 2**80, 10**400, [3], {"n": 1}]


class Custom:
    """A provider that returns what it is given."""

    name, model, profile = "mine", "m-1", "strictest"

    def __init__(self, reply: Any) -> None:
        self.reply = reply

    async def complete(self, request: object, on_delta: object = None) -> Any:
        return self.reply


def warnings(store: JsonStore) -> list[str]:
    """The warnings of all runs, read from their stored form."""
    events: list[Event] = [event for batch in store.event_batches for event in decode_events(batch)]
    return [event.text for event in events if isinstance(event, Warned)]


def usage_of(data: Any) -> list[dict[str, Any]]:
    """The usage objects in an answer or an event of any protocol."""
    holders = [data, data.get("message") or {}, data.get("response") or {}]
    return [holder["usage"] for holder in holders if isinstance(holder.get("usage"), dict)]


def with_figure(value: Any) -> Callable[[Any], Any]:
    """Replace the first count of each usage."""

    def rewrite(data: Any) -> Any:
        for usage in usage_of(data):
            for name in ("prompt_tokens", "input_tokens"):
                if name in usage:
                    usage[name] = value

        return data

    return rewrite


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("figure", ODD_FIGURES, ids=lambda value: repr(value)[:12])
async def test_odd_usage_of_a_service_is_corrected_and_reported(
    figure: Any, protocol: Protocol, streamed: bool
) -> None:
    """The reply counts, its figures are integers that can be loaded again, and a warning names the odd one."""
    store = JsonStore()

    async with WireServer(tool_loop(1), faults={0: Fault("rewritten", rewrite=with_figure(figure))}) as server:
        executor = CrewExecutor(worker(provider(server, protocol)), store=store)
        result = await run(executor, streamed=streamed)
        await executor.aclose()

    assert result.stop_reason == "completed"
    assert server.count == 2
    assert store.newest.counters.usage == result.usage
    assert type(result.usage.input_tokens) is int
    assert 0 < result.usage.input_tokens < 2 * 10**9
    assert result.usage.cost is None or result.usage.cost >= 0
    assert len(found := warnings(store)) == 1
    assert "input_tokens" in found[0]
    assert "counted as" in found[0]


@pytest.mark.parametrize(
    "figure", [*ODD_FIGURES, None, math.nan, math.inf, -math.inf], ids=lambda value: repr(value)[:12]
)
@pytest.mark.parametrize("field", ["input_tokens", "output_tokens", "cache_read_tokens", "reasoning_tokens", "cost"])
async def test_odd_usage_of_a_custom_provider_can_be_stored(field: str, figure: Any) -> None:
    """Checked where a reply enters the run, whoever wrote the provider."""
    if (field, figure) == ("cost", None):
        return  # an unknown price is no odd figure

    store = JsonStore()
    usage = Usage(**{"requests": 1, "input_tokens": 100, field: figure})
    model = ScriptedProvider(ModelReply(text="Here.", usage=usage))
    result = await CrewExecutor(Agent("a", model=model), store=store).execute("Go.")
    assert result.output == "Here."
    assert store.newest.counters.usage == result.usage
    counts = (result.usage.input_tokens, result.usage.output_tokens, result.usage.cache_read_tokens)
    assert all(type(count) is int and 0 <= count <= 10**9 for count in counts)
    assert result.usage.cost is None or 0 <= result.usage.cost <= 10**6
    assert any(field in text for text in warnings(store)) or (field, figure) == ("cost", 1.5)


@pytest.mark.parametrize("limits", [Limits(tokens=1000), Limits(cost_usd=1.0)], ids=["tokens", "cost"])
async def test_negative_usage_cannot_undo_a_budget(limits: Limits) -> None:
    """Ten requests of 400 tokens and 40 cents, every second one reports as much less than nothing."""
    replies = [
        ModelReply(
            calls=(call("step", n=n),),
            usage=Usage(requests=1, input_tokens=400 * (-1) ** n, cost=0.4 * (-1) ** n),
        )
        for n in range(10)
    ]
    agent = Agent("a", model=ScriptedProvider(*replies, "End."), tools=[step])
    result = await CrewExecutor(agent, limits=limits).execute("Go.")
    assert result.stop_reason == "limit"
    assert result.usage.requests <= 5


async def test_unknown_cost_does_not_hide_the_costs_before_it() -> None:
    """One reply without usage, and so without a cost, leaves the budget as it was."""
    usages = [Usage(requests=1, input_tokens=10, cost=0.4 if n != 1 else None) for n in range(10)]
    replies = [ModelReply(calls=(call("step", n=n),), usage=usage) for n, usage in enumerate(usages)]
    agent = Agent("a", model=ScriptedProvider(*replies, "End."), tools=[step])
    result = await CrewExecutor(agent, limits=Limits(cost_usd=1.0)).execute("Go.")
    assert (result.stop_reason, result.usage.requests, result.usage.cost) == ("limit", 4, None)


async def test_odd_usage_of_a_summary_is_corrected() -> None:
    """A summary is paid for, too."""
    store = JsonStore()
    usage = Usage(requests=1, input_tokens=-500, output_tokens=2.5, cost=math.nan)  # type: ignore[arg-type]
    summarizer = Custom(ModelReply(text="Earlier: steps.", usage=usage))
    agent = Agent("a", model=ScriptedProvider(*[call("step", n=n) for n in range(6)], "End.", "Again."), tools=[step])
    executor = CrewExecutor(agent, history=Summarize(summarizer=summarizer), store=store)
    first = await executor.execute("Go.")
    compress = RequestParameters(compression_strategy=WholeHistory())
    result = await executor.execute("And again.", history=first, parameters=compress)
    assert result.output == "Again."
    assert result.usage.requests == 2
    assert result.usage.input_tokens >= 0
    assert store.newest.counters.usage == result.usage
    assert any("input_tokens is -500, counted as 0" in text for text in warnings(store))


async def test_more_cached_tokens_than_input_do_not_give_a_negative_cost() -> None:
    """The cache discount of tokens that were never sent would lower the bill of the run."""

    def rewrite(data: Any) -> Any:
        for usage in usage_of(data):
            usage["prompt_tokens_details"] = {"cached_tokens": 10**6}

        return data

    async with WireServer(faults={0: Fault("rewritten", rewrite=rewrite)}) as server:
        executor = CrewExecutor(Agent("a", model=provider(server, "chat")))
        result = await executor.execute("Hello")
        await executor.aclose()

    assert result.usage.cache_read_tokens == result.usage.input_tokens
    assert result.usage.cost is not None
    assert result.usage.cost > 0


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (None, "expected a ModelReply, not None"),
        ("Hello", "expected a ModelReply, not 'Hello'"),
        (ModelReply(text=7), "text must be a string, not 7"),  # type: ignore[arg-type]
        (ModelReply(usage={"input_tokens": 3}), "usage must be a Usage, not {'input_tokens': 3}"),  # type: ignore[arg-type]
        (ModelReply(calls=("step",)), "calls must be a tuple of ToolCall, not of 'step'"),  # type: ignore[arg-type]
        (ModelReply(calls=tuple(call("step", n=n) for n in range(257))), "more than 256 tool calls"),
        (ModelReply(calls=(call("x" * 257),)), "the name of a call has 257 characters, more than 256"),
    ],
    ids=["none", "a text", "text", "usage", "calls", "too many calls", "a long name"],
)
async def test_unusable_reply_of_a_custom_provider_is_a_malformed_reply(reply: Any, words: str) -> None:
    """The error names the provider and the field; nothing of the reply is stored."""

    store = JsonStore()

    with pytest.raises(RunError) as caught:
        await CrewExecutor(Agent("a", model=Custom(reply), tools=[step]), store=store).execute("Go.")

    assert isinstance(caught.value.__cause__, MalformedReply)
    assert words in str(caught.value.__cause__)
    assert "mine (m-1)" in str(caught.value.__cause__)
    assert len(store.newest.transcript) == 1
