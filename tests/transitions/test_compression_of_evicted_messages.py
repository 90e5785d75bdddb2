"""Explicit compression covers the messages that the bound evicts in the same step, in parts that keep the bound."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crew import (
    Agent,
    Chunked,
    CrewExecutor,
    FromTimestamp,
    LastNMessages,
    Limits,
    RequestParameters,
    WholeHistory,
    WholeHistoryMultipleSystemMessages,
    call,
    tool,
)
from crew.errors import CompressionFailed
from crew.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, ToolResult, UserMessage
from crew.runs.events import Compacted
from tests.support.invariants import request_violations
from tests.support.messages import represented_ids, summaries_in, total_size
from tests.support.providers import ReplyingProvider
from tests.support.runs import events_of_type, run_and_collect, solo
from tests.support.strategies import budgets, conversations

WORDS = "There is a good deal to say about this, and it takes some words to say it well enough."
STRATEGIES = [
    WholeHistory(),
    LastNMessages(6),
    LastNMessages(100),
    Chunked(12),
    FromTimestamp(10.0),
    WholeHistoryMultipleSystemMessages(),
]


@tool(effect="read")
def look(n: int) -> str:
    """Look somewhere."""
    return f"At {n}: {WORDS}"


def talk(size: int) -> list[Message]:
    """A conversation of so many messages, one a second."""
    kinds: tuple[Any, ...] = (UserMessage, AssistantMessage)
    return [kinds[n % 2](f"Message {n}. {WORDS}", id=f"m{n}", time=1.0 + n) for n in range(size)]


def compressing(strategy: Any, **options: Any) -> RequestParameters:
    return RequestParameters(compression_strategy=strategy, **options)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: str(strategy.kind))
async def test_compression_covers_the_messages_that_the_bound_evicts(strategy: Any) -> None:
    """60 messages on a default executor: each is in the request, or a TL;DR in the request covers it."""
    model, given_messages = ReplyingProvider(), talk(60)
    executor = CrewExecutor(solo(model))
    result = await executor.execute("And now?", history=given_messages, parameters=compressing(strategy))
    shown = model.replies[0].messages
    assert represented_ids(shown, result.transcript) >= {message.id for message in given_messages}
    assert not result.state.pending_summary.message_ids
    assert len(model.replies) == 1


@pytest.mark.parametrize(("limit", "parts"), [(50, [30, 30]), (25, [20, 20, 20]), (61, [60])])
async def test_a_long_span_is_compressed_in_parts_oldest_first(limit: int, parts: list[int]) -> None:
    """Parts of about the same size, none larger than a request may be, each with its own TL;DR in order."""
    model = ReplyingProvider()
    executor = CrewExecutor(solo(model), max_messages_per_request=limit)
    events, _ = await run_and_collect(executor, history=talk(60), parameters=compressing(WholeHistory()))
    made = events_of_type(events, Compacted)
    assert [len(event.covers) for event in made] == parts
    assert [id for event in made for id in event.covers] == [f"m{n}" for n in range(60)]
    assert [summary.id for summary in summaries_in(model.replies[0].messages)] == [event.summary for event in made]
    assert not [violation for request in model.requests for violation in request_violations(request, limit)]


async def test_parts_of_a_compression_take_effect_together() -> None:
    """The second part fails: the history has no TL;DR. A resume keeps the first text and makes the others."""
    model = ReplyingProvider()
    model.summary = lambda r: "" if len(model.summaries) == 2 else "TL;DR."
    executor = CrewExecutor(solo(model), max_messages_per_request=25)

    with pytest.raises(CompressionFailed) as caught:
        await executor.execute("And now?", history=talk(60), parameters=compressing(WholeHistory()))

    assert not summaries_in(caught.value.result.history)
    assert not summaries_in(caught.value.result.transcript)
    result = await executor.resume(caught.value.result.run_id)
    assert [len(summary.covers) for summary in summaries_in(result.history)] == [20, 20, 20]
    assert len(model.summaries) == 4


async def test_messages_evicted_during_a_run_are_compressed_too() -> None:
    """`LastNMessages(60)` above the bound of 50: each pruning is followed by a TL;DR of what it evicted."""
    model = ReplyingProvider(lambda r: call("look", n=r.turn) if r.turn < 60 else "Done.")
    result = await CrewExecutor(solo(model, look)).execute("Look.", parameters=compressing(LastNMessages(60)))
    shown = model.replies[-1].messages
    assert len(model.summaries) >= 3
    assert {message.id for message in result.transcript[:-1]} <= represented_ids(shown, result.transcript)


async def test_fewer_than_ten_evicted_messages_wait_for_more() -> None:
    """A bound that evicts two messages a step does not lead to a TL;DR a step, and no message is lost."""
    model = ReplyingProvider(lambda r: call("look", n=r.turn) if r.turn < 60 else "Done.")

    with pytest.warns(UserWarning, match="prune_to"):
        executor = CrewExecutor(solo(model, look), prune_to=50)

    result = await executor.execute("Look.", parameters=compressing(LastNMessages(60)))
    represented = represented_ids(model.replies[-1].messages, result.transcript)
    missing = {message.id for message in result.transcript[:-1]} - represented
    assert 4 <= len(model.summaries) <= 8
    assert missing <= set(result.state.pending_summary.message_ids)
    assert len(missing) < 10


async def test_later_runs_without_a_strategy_make_no_summary() -> None:
    """A run stops at its limit before its compression is complete; only a run that asks for it completes it."""
    model = ReplyingProvider()
    executor = CrewExecutor(solo(model), max_messages_per_request=25, limits=Limits(rounds=2))
    stopped = await executor.execute("And now?", history=talk(60), parameters=compressing(WholeHistory()))
    assert stopped.stop_reason == "limit"
    model.requests.clear()
    executor = CrewExecutor(solo(model), max_messages_per_request=25)
    plain = await executor.execute("Hello?", history=stopped)
    assert not model.summaries
    result = await executor.execute("And now?", history=plain, parameters=compressing(WholeHistory()))
    covered = represented_ids(model.replies[-1].messages, result.transcript)
    assert covered >= {message.id for message in result.transcript[:-1]}


async def test_evicted_messages_get_a_tldr_even_if_it_is_longer() -> None:
    """Nothing else can be shown of them; messages that still fit stay verbatim if a TL;DR would be longer."""
    model = ReplyingProvider(summary="They greeted each other several times, and nothing else happened. " * 3)
    short: Any = [(UserMessage, AssistantMessage)[n % 2]("Hi.", id=f"m{n}") for n in range(60)]
    result = await CrewExecutor(solo(model)).execute("Now?", history=short, parameters=compressing(Chunked(6)))
    shown = model.replies[0].messages
    assert represented_ids(shown, result.transcript) >= {message.id for message in short}
    assert [message for message in shown if message.id == "m59"]


async def test_group_larger_than_the_bound_is_summarized_as_text() -> None:
    """60 parallel calls can't be shown within a bound of 50; the summary request has their results as one text."""
    model = ReplyingProvider()
    calls = tuple(ToolCall(id=f"c{n}", name="look", arguments=f'{{"n": {n}}}') for n in range(60))
    results = tuple(ToolResult(call_id=c.id, name="look", text=f"Found F-{n}.") for n, c in enumerate(calls))
    given_messages = [UserMessage("Look.", id="u"), AssistantMessage(calls=calls, id="a"), ToolMessage(results, id="t")]
    parameters = compressing(WholeHistory())
    result = await CrewExecutor(solo(model)).execute("And now?", history=given_messages, parameters=parameters)
    assert {"u", "a", "t"} <= represented_ids(model.replies[0].messages, result.transcript)
    assert "F-59." in str([request.messages for request in model.summaries])
    assert all(total_size(request.messages) <= 51 for request in model.requests)


async def test_nothing_is_compressed_if_no_tldr_fits() -> None:
    """A bound of one message holds the goal: a TL;DR would be paid and never sent."""
    model = ReplyingProvider()
    executor = CrewExecutor(solo(model), max_messages_per_request=1)
    await executor.execute("And now?", history=talk(60), parameters=compressing(WholeHistory()))
    assert [request.purpose for request in model.requests] == ["reply"]


async def test_many_tldrs_are_compressed_again_to_keep_the_bound() -> None:
    """500 messages in chunks of four are 125 TL;DRs; those that do not fit are covered by TL;DRs that do."""
    model = ReplyingProvider()
    executor = CrewExecutor(solo(model), limits=Limits(rounds=None))
    result = await executor.execute("And now?", history=talk(500), parameters=compressing(Chunked(4)))
    missing = {f"m{n}" for n in range(500)} - represented_ids(model.replies[0].messages, result.transcript)
    assert total_size(model.replies[0].messages) <= 50
    assert len(missing) <= 4 * 9  # fewer than ten TL;DRs wait for a further compression


@pytest.mark.filterwarnings("ignore:prune_to=")
@given(
    before=conversations(max_turns=14),
    budget=budgets(least=10),
    strategy=st.sampled_from(STRATEGIES),
    rounds=st.integers(0, 12),
)
def test_a_compressed_run_shows_covers_or_keeps_every_message(
    before: list[Message], budget: tuple[int, int], strategy: Any, rounds: int
) -> None:
    """Of any history at any bound, fewer than ten messages wait for a TL;DR, and no request exceeds the bound."""
    limit, prune_to = budget
    model = ReplyingProvider(lambda r: call("look", n=r.turn) if r.turn < rounds else "Done.", "TL;DR.")
    agent = Agent("solo", instructions="Answer.", model=model, tools=[look])
    executor = CrewExecutor(agent, max_messages_per_request=limit, prune_to=prune_to, limits=Limits(rounds=None))
    result = asyncio.run(executor.execute("And now?", history=before, parameters=compressing(strategy)))
    messages = [m for m in result.transcript[:-1] if not isinstance(m, SystemMessage)]
    represented = represented_ids(model.replies[-1].messages, result.transcript)
    missing = [message for message in messages if message.id not in represented]
    assert not [violation for request in model.requests for violation in request_violations(request, limit)]
    assert {m.id for m in missing} <= represented_ids(
        [m for m in messages if m.id in result.state.pending_summary.message_ids], result.transcript
    )
    assert total_size([m for m in missing if m.id in result.state.pending_summary.message_ids]) < 10
