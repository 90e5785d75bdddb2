"""Explicit compression by `RequestParameters` happens before the next request, or the run fails unchanged."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

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
from crew.errors import CompressionFailed, DefinitionError
from crew.history import estimate_message_tokens
from crew.messages import AssistantMessage, Message, SummaryMessage, SystemMessage, UserMessage
from crew.runs.events import Compacted, Warned
from tests.support.messages import summaries_in, total_size
from tests.support.providers import ReplyingProvider
from tests.support.runs import collect, events_of_type

WORDS = "There is a good deal to say about this, and it takes some words to say it well enough."


@tool(effect="read")
def look(place: str) -> str:
    """Look somewhere."""
    return f"At {place}: {WORDS}"


def replying(reply: Any = "The answer.", summary: Any = "TL;DR of what was said.") -> ReplyingProvider:
    return ReplyingProvider(reply, summary)


def agent(model: ReplyingProvider, **options: Any) -> Agent:
    return Agent("a", instructions="Answer.", model=model, **options)


def conversation(size: int, *, start: float = 1.0) -> list[Message]:
    messages: list[Message] = []

    for n in range(size):
        kind: Any = AssistantMessage if n % 2 else UserMessage
        messages.append(kind(f"Message {n}. {WORDS}", id=f"m{n}", time=start + n))

    return messages


def tokens(messages: Sequence[Message]) -> int:
    return sum(map(estimate_message_tokens, messages))


@pytest.mark.parametrize("size", [50, 100, 200])
async def test_whole_history_becomes_one_tldr(size: int) -> None:
    """100 messages become fewer than 10, and from 50 messages on at least 60 % of the tokens are saved."""
    model = replying()
    executor = CrewExecutor(agent(model), max_messages_per_request=300)
    given = conversation(size)
    parameters = RequestParameters(compression_strategy=WholeHistory())
    result = await executor.execute("And now?", history=given, parameters=parameters)
    request = model.replies[0]
    assert [r.purpose for r in model.requests] == ["summary", "reply"]
    assert len(request.messages) == 2 < 10
    assert tokens(request.messages) <= 0.4 * tokens(given)
    assert summaries_in(result.history)[0].covers == tuple(m.id for m in given)
    assert [m.id for m in result.transcript][:size] == [m.id for m in given]


async def test_last_n_messages_stay_verbatim() -> None:
    """`LastNMessages(n)`: the last n are unchanged, preceded by one TL;DR of the others."""
    model = replying()
    given = conversation(40)
    parameters = RequestParameters(compression_strategy=LastNMessages(6))
    await CrewExecutor(agent(model)).execute("And now?", history=given, parameters=parameters)
    shown = model.replies[0].messages
    assert isinstance(shown[0], SummaryMessage)
    assert list(shown[1:-1]) == given[-5:]
    assert len(shown) == 7


async def test_each_chunk_becomes_a_tldr_if_it_is_smaller() -> None:
    """`Chunked(size)`: one TL;DR a chunk, in order; a chunk whose TL;DR is not smaller stays verbatim."""
    model = replying(summary=lambda r: "word " * 500 if "Message 12." in str(r.messages) else "Short.")
    given = conversation(36)
    parameters = RequestParameters(compression_strategy=Chunked(12))
    result = await CrewExecutor(agent(model)).execute("And now?", history=given, parameters=parameters)
    shown = model.replies[0].messages
    assert [m.role for m in shown].count("summary") == 2
    assert list(shown[1:13]) == given[12:24]
    assert [m.covers[0] for m in summaries_in(shown)] == ["m0", "m24"]
    assert len([r for r in model.requests if r.purpose == "summary"]) == 3
    model.requests.clear()
    await CrewExecutor(agent(model)).execute("And then?", history=result, parameters=parameters)
    assert not [r for r in model.requests if r.purpose == "summary"]


AT_120 = datetime.fromtimestamp(120, UTC)


@pytest.mark.parametrize("time", [120.0, 120, AT_120, AT_120.astimezone().replace(tzinfo=None)])
async def test_messages_before_a_timestamp_become_a_tldr(time: float | datetime) -> None:
    """`FromTimestamp(t)`: the messages before t. A datetime without a time zone is local time, as in Python."""
    model = replying()
    given = conversation(30, start=100.0)
    parameters = RequestParameters(compression_strategy=FromTimestamp(time))
    await CrewExecutor(agent(model)).execute("And now?", history=given, parameters=parameters)
    shown = model.replies[0].messages
    assert summaries_in(shown)[0].covers == tuple(f"m{n}" for n in range(20))
    assert list(shown[1:-1]) == given[20:]


async def test_a_timestamp_selects_among_imported_messages_by_their_time() -> None:
    """Dicts keep their time, so that older turns of another system are compressed and newer ones are not."""
    model = replying()
    given = [
        {"role": "user", "content": f"Note {n}.", "created_at": f"2026-01-{n + 1:02}T12:00:00Z"} for n in range(20)
    ]
    parameters = RequestParameters(compression_strategy=FromTimestamp(datetime(2026, 1, 11, tzinfo=UTC)))
    result = await CrewExecutor(agent(model)).execute("And now?", history=given, parameters=parameters)
    shown = model.replies[0].messages
    assert len(summaries_in(shown)[0].covers) == 10
    assert [m.text for m in shown[1:-1]] == [f"Note {n}." for n in range(10, 20)]
    assert result.transcript[0].time == datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()


async def test_block_after_each_system_message_becomes_a_tldr() -> None:
    """`WholeHistoryMultipleSystemMessages`: system messages stay, each with one TL;DR."""
    model = replying()
    plain = conversation(24)
    given = [SystemMessage("Be kind."), *plain[:12], SystemMessage("Be brief."), *plain[12:]]
    parameters = RequestParameters(compression_strategy=WholeHistoryMultipleSystemMessages())
    await CrewExecutor(agent(model)).execute("And now?", history=given, parameters=parameters)
    shown = model.replies[0].messages
    assert [m.role for m in shown] == ["system", "summary", "system", "summary", "user"]
    assert [len(m.covers) for m in summaries_in(shown)] == [12, 12]


@pytest.mark.parametrize(("size", "asked"), [(9, 0), (10, 1)])
async def test_fewer_than_ten_messages_are_not_compressed(size: int, asked: int) -> None:
    """Protected messages do not count."""
    model = replying()
    parameters = RequestParameters(compression_strategy=WholeHistory())
    await CrewExecutor(agent(model)).execute("And now?", history=conversation(size), parameters=parameters)
    assert len(model.requests) - len(model.replies) == asked


@pytest.mark.parametrize("summary", [lambda r: RuntimeError("down"), "", lambda r: call("look", place="x")])
async def test_failed_compression_changes_nothing(summary: Any) -> None:
    """`CompressionFailed` holds the result so far; resuming the run tries again."""
    model = replying(summary=summary)
    executor = CrewExecutor(agent(model, tools=[look]))
    given = conversation(20)
    parameters = RequestParameters(compression_strategy=WholeHistory())

    with pytest.raises(CompressionFailed) as caught:
        await executor.execute("And now?", history=given, parameters=parameters)

    assert list(caught.value.result.history[:-1]) == given
    assert not model.replies
    model.summary = "TL;DR"
    result = await executor.resume(caught.value.result.run_id)
    assert (result.output, len(summaries_in(result.history))) == ("The answer.", 1)


async def test_chunks_take_effect_together_or_not_at_all() -> None:
    """The second of three fails: the TL;DR of the first is not in the history either."""
    model = replying(summary=lambda r: "" if "Message 12." in str(r.messages) else "Short.")
    parameters = RequestParameters(compression_strategy=Chunked(12))

    with pytest.raises(CompressionFailed) as caught:
        await CrewExecutor(agent(model)).execute("And now?", history=conversation(36), parameters=parameters)

    assert not summaries_in(caught.value.result.history)


class Answer(BaseModel):
    """A structured answer."""

    words: str


@pytest.mark.parametrize("way", ["execute", "stream", "structured"])
async def test_compression_in_execute_stream_and_structured_output(way: str) -> None:
    """All three send the same messages."""
    model = replying(reply='{"words": "x"}')
    executor = CrewExecutor(agent(model, output=Answer if way == "structured" else None))
    parameters = RequestParameters(compression_strategy=LastNMessages(4))

    if way == "stream":
        stream = executor.execute_stream("And now?", history=conversation(30), parameters=parameters)
        events, result = await collect(stream)
        assert len(events_of_type(events, Compacted)) == 1
    else:
        result = await executor.execute("And now?", history=conversation(30), parameters=parameters)

    assert [m.role for m in model.replies[0].messages] == ["summary", "assistant", "user", "assistant", "user"]
    assert model.requests[0].output is None
    assert result.usage.requests == 2


async def test_long_run_is_compressed_every_ten_messages() -> None:
    """Calls and their results are compressed together, and the goal stays."""
    model = replying(reply=lambda r: call("look", place=f"room {r.turn}") if r.turn < 40 else "Done.")
    executor = CrewExecutor(agent(model, tools=[look]))
    parameters = RequestParameters(compression_strategy=WholeHistory())
    await executor.execute("Look everywhere.", parameters=parameters)
    assert len(model.requests) - len(model.replies) >= 6

    for request in model.replies:
        assert total_size(request.messages) <= 14
        assert "Look everywhere." in [getattr(m, "text", "") for m in request.messages]


async def test_compression_precedes_max_history_size() -> None:
    """Compressed first, then trimmed; the size is never exceeded over many turns."""
    model = replying(reply=f"Well. {WORDS}")
    executor = CrewExecutor(agent(model))
    parameters = RequestParameters(compression_strategy=LastNMessages(30), max_history_size=20)
    result: Any = None

    for turn in range(60):
        result = await executor.execute(f"Turn {turn}. {WORDS}", history=result, parameters=parameters)

    assert len(model.requests) > len(model.replies)
    assert all(len(request.messages) <= 20 for request in model.replies)


@pytest.mark.parametrize("limits", [{"max_history_size": 20}, {"max_tokens": 600}, {"max_history_size": 4}], ids=str)
@pytest.mark.parametrize("strategy", [LastNMessages(30), Chunked(20)], ids=lambda strategy: str(strategy.kind))
async def test_limits_of_a_request_do_not_trim_the_tldr(strategy: Any, limits: dict[str, int]) -> None:
    """The request is compressed, then its verbatim messages are trimmed; each TL;DR that was paid for is sent."""
    model = replying(reply=lambda r: call("look", place=f"room {r.turn}") if r.turn < 4 else "Done.")
    executor = CrewExecutor(agent(model, tools=[look]))
    parameters = RequestParameters(compression_strategy=strategy, **limits)  # type: ignore[arg-type]
    given = conversation(40)
    result = await executor.execute("And now?", history=given, parameters=parameters)
    first = summaries_in(model.replies[0].messages)
    assert [summary.id for summary in first] == [m.id for m in summaries_in(result.transcript)][: len(first)]
    assert {id for summary in first for id in summary.covers} >= {message.id for message in given[:10]}

    for request in model.replies:
        assert summaries_in(request.messages)
        assert total_size(request.messages) <= limits.get("max_history_size", 50)


async def test_request_with_one_message_left_emits_a_warning() -> None:
    """One warning names the strategy and the count."""
    model = replying()
    executor = CrewExecutor(agent(model))
    parameters = RequestParameters(compression_strategy=WholeHistory(), max_history_size=1)

    events, _ = await collect(executor.execute_stream("And now?", history=conversation(12), parameters=parameters))
    warned = [event.text for event in events_of_type(events, Warned) if "whole_history" in event.text]
    assert len(model.replies[0].messages) == 1
    assert len(warned) == 1
    assert "1 message" in warned[0]


async def test_each_tldr_counts_as_a_round() -> None:
    """A history of many chunks does not exceed the limit of rounds."""
    model = replying()
    parameters = RequestParameters(compression_strategy=Chunked(4))
    executor = CrewExecutor(agent(model), limits=Limits(rounds=3))
    result = await executor.execute("And now?", history=conversation(40), parameters=parameters)
    assert (result.stop_reason, len(model.requests)) == ("limit", 3)
    assert not summaries_in(result.history)


@pytest.mark.parametrize("strategy", ["whole_history", WholeHistory])
def test_invalid_strategy_is_refused_when_built(strategy: Any) -> None:
    """Not in the middle of a run."""
    with pytest.raises(DefinitionError, match="compression_strategy must"):
        RequestParameters(compression_strategy=strategy)


@pytest.mark.parametrize(("strategy", "value"), [(LastNMessages, -1), (Chunked, 0), (FromTimestamp, "now")])
def test_options_of_a_strategy_are_checked_when_it_is_built(strategy: Callable[[Any], object], value: object) -> None:
    with pytest.raises(DefinitionError, match=f"must be .*, not {value!r}"):
        strategy(value)
