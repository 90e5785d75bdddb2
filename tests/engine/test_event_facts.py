"""Facts in events from which a reader of stored events rebuilds the course of a run."""

from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, ScriptedProvider, call, tool
from crew.history.policies.chain import chain
from crew.history.policies.lookup import policy_spec, resolve_policy
from crew.history.policies.rolling import Rolling
from crew.history.policies.summarizing import Summarize
from crew.history.policies.view_policies import MaskToolResults
from crew.messages import ToolMessage, Usage
from crew.models import token_prices, usage_cost
from crew.runs.events import CallHeld, Replied, RunStarted, Summarised, ToolReturned, ToolsStarted
from crew.simulator import simulate
from tests.support.runs import events_of_type, run_and_collect, solo


@tool(effect="read")
def look(word: str) -> str:
    """Look a word up."""
    return f"{word}: found"


@tool(effect="write", approval="always")
def order(item: str) -> str:
    """Order an item."""
    return f"{item} is ordered"


async def test_tool_results_name_their_call_key_and_their_place_in_the_transcript() -> None:
    """`position` is that of the tool message, and `key` begins with the position of the reply that made the call."""
    model = ScriptedProvider([call("look", word="a"), call("look", word="b")], call("look", word="c"), "Done.")
    events, result = await run_and_collect(CrewExecutor(solo(model, look)))
    returned = events_of_type(events, ToolReturned)
    started = events_of_type(events, ToolsStarted)

    # Calls of one reply run at the same time, on threads: they return in any order.
    assert sorted(key for event in started for key in event.keys) == sorted(event.key for event in returned)

    for event in returned:
        message = result.transcript[event.position or 0]
        assert isinstance(message, ToolMessage)
        assert event.result in message.results
        assert event.key.startswith(f"{result.run_id}:{(event.position or 0) - 1}.")


async def test_a_pause_names_the_effect_of_its_tool() -> None:
    """A person who approves a call sees whether it changes something."""
    executor = CrewExecutor(solo(ScriptedProvider(call("order", item="tea"), "Done."), order))
    events, result = await run_and_collect(executor)

    assert [pause.effect for pause in result.pauses] == ["write"]
    assert [(event.effect, event.key) for event in events_of_type(events, CallHeld)] == [("write", result.pauses[0].id)]


async def test_a_summary_says_how_long_it_took() -> None:
    """`seconds` is the time of the summarizer, so that its start is known."""
    now = 0.0

    def slowly(messages: Any) -> str:
        nonlocal now
        now += 4.0
        return "What was said before."

    model = ScriptedProvider(*[call("look", word=str(n)) for n in range(20)], "Done.")
    executor = CrewExecutor(
        solo(model, look),
        history=Summarize(limit=12, prune_to=4, summarizer=slowly),
        clock=lambda: 1_700_000_000.0,
        monotonic=lambda: now,
    )
    events, _ = await run_and_collect(executor)
    summaries = events_of_type(events, Summarised)

    assert summaries
    assert {event.seconds for event in summaries} == {4.0}


async def test_a_reply_says_how_long_its_request_would_be_without_pruning() -> None:
    """`unpruned_tokens` equal the billed tokens until the first pruning, and exceed them afterwards."""
    model = ScriptedProvider(*[call("look", word=str(n)) for n in range(12)], "Done.")
    events, _ = await run_and_collect(CrewExecutor(solo(model, look), max_messages_per_request=8))
    replies = events_of_type(events, Replied)
    first = next(n for n, event in enumerate(replies) if event.message.manifest and event.message.manifest.removed)

    assert all(event.unpruned_tokens == event.usage.input_tokens for event in replies[:first])
    assert all(event.unpruned_tokens > event.usage.input_tokens for event in replies[first:])
    assert [e.unpruned_tokens for e in replies] == sorted(e.unpruned_tokens for e in replies)


@pytest.mark.parametrize(
    "policy",
    [
        Rolling(),
        Rolling(limit=30, prune_to=12),
        chain(MaskToolResults(keep_recent=7), Summarize(limit=30, prune_to=12)),
    ],
)
async def test_the_start_of_a_run_names_its_history_policy(policy: Any) -> None:
    """`history_policy` can be resolved to the same policy; `history_limit` and `prune_to` are the bound in effect."""
    executor = CrewExecutor(solo(ScriptedProvider("Done.")), history=policy)
    events, _ = await run_and_collect(executor)
    [started] = events_of_type(events, RunStarted)

    assert resolve_policy(started.history_policy) == policy
    assert (started.history_limit, started.prune_to) in ((50, 25), (30, 12))


def test_the_spec_of_an_unknown_policy_is_its_name() -> None:
    """What a custom policy is made of is not known, so only its name is kept; functions are left out as well."""

    class Own:
        name = "own"

        def prune(self, history: Any, budget: Any) -> Any: ...

    assert policy_spec(Own()) == {"name": "own"}
    assert policy_spec(Summarize(summarizer=lambda messages: "")) == {"name": "summarize"}


def test_prices_agree_with_the_cost_of_a_usage() -> None:
    """`token_prices` are the prices that `usage_cost` applies; None for an unknown model."""
    usage = Usage(requests=1, input_tokens=100_000, cache_read_tokens=40_000, cache_write_tokens=10_000)

    for model in ("claude-sonnet-4-5", "claude-haiku-4-5"):  # the prices of the first depend on the size of a request
        prices = token_prices("anthropic", model)
        assert prices is not None
        assert usage_cost("anthropic", model, usage) == pytest.approx(
            0.05 * prices.input + 0.04 * prices.cache_read + 0.01 * prices.cache_write
        )

    assert token_prices("anthropic", "no-such-model") is None


async def test_a_simulation_has_the_manifest_of_each_request() -> None:
    """Each manifest lists what its replayed request contained, with the simulated bill."""
    model = ScriptedProvider(*[call("look", word=str(n)) for n in range(12)], "Done.")
    _, result = await run_and_collect(CrewExecutor(Crew("c", agents=[Agent("solo", model=model, tools=[look])])))
    [row] = simulate(result, [Rolling(limit=8)]).rows
    lines: list[str] = []

    for manifest, request, billed in zip(row.manifests, row.requests, row.billed, strict=True):
        lines = [*lines[: manifest.same_messages], *(line.id for line in manifest.tail)]
        assert lines == [message.id for message in request.messages]
        assert (manifest.tokens_billed, manifest.cached_billed) == (billed.input_tokens, billed.cached_tokens)

    assert any(manifest.removed for manifest in row.manifests)
