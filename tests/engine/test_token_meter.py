"""From the second request on, estimates are within a tenth of the billed tokens, however the provider counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from crew import Agent, CrewExecutor, RequestParameters, ScriptedProvider, tool
from crew.agents import Crew
from crew.engine.token_meter import TokenMeter
from crew.history import estimate_tokens, exact_counter
from crew.interfaces import ModelReply, ModelRequest
from crew.messages import AssistantMessage, ToolCall, ToolMessage, Usage
from crew.runs.events import Replied
from tests.history.test_estimates_against_tokenizer import CHINESE, CODE, EMOJI, ENGLISH, JAPANESE, JSON, KOREAN
from tests.wire.tokens import count_openai_tools

Count = Callable[[str], int]
TEXTS = {
    "english": ENGLISH * 3,
    "code": CODE * 2,
    "json": JSON,
    "chinese": CHINESE * 4,
    "japanese": JAPANESE * 4,
    "korean": KOREAN * 4,
    "emoji": EMOJI * 6,
}


def bill(count: Count, request: ModelRequest) -> int:
    """The tokens that a service with this tokenizer bills, including its message overhead."""
    tools = [{"name": t.name, "description": t.description, "parameters": dict(t.parameters)} for t in request.tools]
    total = 3 + count(request.instructions) + count_openai_tools(tools, count)

    for message in request.messages:
        if isinstance(message, ToolMessage):
            total += sum(5 + count(result.text) for result in message.results)
        else:
            total += 4 + count(message.text)

        if isinstance(message, AssistantMessage):
            total += sum(7 + count(call.name) + count(call.arguments) for call in message.calls)

    return total


def billed_by(count: Count, steps: int, **facts: Any) -> ScriptedProvider:
    def line(request: ModelRequest) -> ModelReply:
        text, calls = "Done.", ()

        if request.turn < steps:
            text = "I read the next part of it now."
            calls = (ToolCall(id=f"c{request.turn}", name="read", arguments=json.dumps({"part": request.turn})),)

        written = count(text) + sum(7 + count(call.arguments) for call in calls)
        usage = Usage(requests=1, input_tokens=bill(count, request), output_tokens=written)
        return ModelReply(text=text, calls=calls, usage=usage)

    return ScriptedProvider(line, **facts)


async def errors(count: Count, kind: str, *, max_tokens: int | None = None, **facts: Any) -> list[float]:
    """The relative error of the estimate of each request."""

    @tool
    async def read(part: int, path: str = "/srv/report.txt") -> str:
        """Read one part of a file.

        Args:
            part: Which one, from 0.
            path: Where the file lies, from the root.
        """
        return (TEXTS[kind] * 4)[: (80, 300, 900, 1_600)[part % 4]]

    agent = Agent("reader", instructions=TEXTS[kind][:400], model=billed_by(count, 45, **facts), tools=[read])

    parameters = RequestParameters(max_tokens=max_tokens)

    async with CrewExecutor(agent).execute_stream(TEXTS[kind][:200], parameters=parameters) as stream:
        replies = [event.message.manifest async for event in stream if isinstance(event, Replied)]

    return [
        manifest.tokens_estimated / manifest.tokens_billed - 1
        for manifest in replies
        if manifest is not None and manifest.tokens_billed
    ]


@pytest.mark.parametrize("factor", [1.0, 1.2, 1.35])
@pytest.mark.parametrize("kind", TEXTS)
async def test_estimates_follow_real_and_denser_tokenizers(kind: str, factor: float) -> None:
    """o200k, and services that count more for the same text, also after prunings."""
    pytest.importorskip("rs_bpe")
    counter = exact_counter("openai", "gpt-5-mini")
    assert counter is not None
    found = await errors(lambda text: round(counter.count(text) * factor), kind)
    assert max(map(abs, found[1:])) <= 0.10


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("english", lambda text: -(-len(text) // 4)),
        ("code", lambda text: -(-len(text) // 4)),
        ("json", lambda text: -(-len(text) // 3)),
        ("chinese", lambda text: -(-len(text.encode()) // 4)),
        ("japanese", lambda text: -(-len(text.encode()) // 4)),
        ("english", lambda text: round(estimate_tokens(text) * 0.8)),
        ("korean", lambda text: round(estimate_tokens(text) * 1.3)),
    ],
)
async def test_estimates_follow_other_ways_of_counting(kind: str, count: Count) -> None:
    """By characters, by bytes, or by a similar rule."""
    found = await errors(count, kind)
    assert max(map(abs, found[1:])) <= 0.10


async def test_exact_tokenizer_is_right_from_the_first_request() -> None:
    """In runs with `max_tokens` only the message overhead of the service is estimated."""
    pytest.importorskip("rs_bpe")
    counter = exact_counter("openai", "gpt-5-mini")
    assert counter is not None
    found = await errors(counter.count, "emoji", max_tokens=100_000, name="openai", model="gpt-5-mini")
    assert max(map(abs, found)) <= 0.05


@pytest.mark.parametrize("kind", TEXTS)
async def test_short_texts_are_estimated_where_a_tokenizer_exists(kind: str) -> None:
    """Without `max_tokens` the tables of the tokenizer stay unloaded, and the errors are those of estimates."""
    pytest.importorskip("rs_bpe")
    counter = exact_counter("openai", "gpt-5-mini")
    assert counter is not None
    found = await errors(counter.count, kind, name="openai", model="gpt-5-mini")
    assert abs(found[0]) <= 0.25
    assert max(map(abs, found[1:])) <= 0.10


def test_long_texts_are_counted_by_the_tokenizer() -> None:
    """Texts of about 1 % of the window and more, whatever the window is; a shorter text is estimated."""
    pytest.importorskip("rs_bpe")
    counter = exact_counter("openai", "gpt-5-mini")
    assert counter is not None
    agent = Agent("reader", model="openai:gpt-5-mini", max_input_tokens=25_000)
    meter = TokenMeter(plan=CrewExecutor(agent).plan)
    long, short = (EMOJI * 100)[:1_000], (EMOJI * 100)[:999]
    assert counter.count(long) != estimate_tokens(long)
    assert meter.counter_for(agent, agent.model).count(long) == counter.count(long)
    assert meter.counter_for(agent, agent.model).count(short) == estimate_tokens(short)
    assert meter.counter_for(agent, agent.model, max_tokens=9_000).count(short) == counter.count(short)
    assert not meter.token_budgets()["reader"][0].counts_exactly
    assert meter.token_budgets(max_tokens=9_000)["reader"][0].counts_exactly


async def test_two_models_with_different_counts_share_a_history() -> None:
    """The bill of one model does not change the estimates for the other."""

    @tool
    async def read(part: int) -> str:
        """Read one part of a file."""
        return ENGLISH * 3

    first = Agent("first", model=billed_by(estimate_tokens, 6, model="a"), tools=[read], then="second")
    second = Agent(
        "second",
        model=billed_by(lambda text: round(estimate_tokens(text) * 1.5), 6, model="b"),
        tools=[read],
        then="third",
    )
    third = Agent("third", model=billed_by(estimate_tokens, 3, model="a"), tools=[read])

    async with CrewExecutor(Crew("c", agents=[first, second, third])).execute_stream("Read it.") as stream:
        replies = [event async for event in stream if isinstance(event, Replied)]

    off = {
        name: [
            m.tokens_estimated / m.tokens_billed - 1
            for e in replies
            if e.agent == name and (m := e.message.manifest) and m.tokens_billed
        ]
        for name in ("first", "second", "third")
    }
    assert max(map(abs, off["first"][1:] + off["second"][1:] + off["third"])) <= 0.10
