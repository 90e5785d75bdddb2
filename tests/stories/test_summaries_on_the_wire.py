"""Summaries and compression on the bytes that a strict server received: accepted, cached and cheaper."""

import json
from dataclasses import replace
from typing import Any

import pytest

from crew import Crew, CrewExecutor, LastNMessages, Limits, RequestParameters, WholeHistory
from crew.history.policies import Checkpoint, HeadTail, Summarize
from crew.interfaces import ModelSettings
from crew.messages import SUMMARY_HEADING, AssistantMessage, UserMessage
from crew.runs.events import Compacted, CompactionFailed, Retried
from tests.support.remote_providers import (
    ERAS,
    PROTOCOLS,
    long_step,
    provider,
    refusal_reasons,
    retrying_provider,
    run,
    thinking,
    worker,
)
from tests.support.runs import run_and_collect
from tests.wire import Era, Fault, Model, Protocol, Reply, Responder, WireServer, tool_loop

INSTRUCTION = "Stop here and write a summary"


def with_summaries(loop: Responder, thinking: str | None = None) -> Responder:
    """A model that follows the loop, and writes a summary when requested."""

    def responder(body: Any, protocol: Protocol, index: int) -> Reply | str:
        asked = INSTRUCTION in json.dumps(body)
        summary = Reply(text="Steps were taken, and each left a note.", thinking=thinking)
        return summary if asked else loop(body, protocol, index)

    return responder


@pytest.mark.parametrize("thinks", [False, True], ids=["plainly", "thinking"])
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_requests_of_summarizing_runs_are_accepted(protocol: Protocol, era: Era, thinks: bool) -> None:
    """One summary, several, or an explicit TL;DR: the strictest server refuses nothing."""
    responder = with_summaries(tool_loop(60, width=2 if thinks else 1, thinking="Let me see." if thinks else None))
    cases: list[tuple[Any, RequestParameters | None]] = [
        (Summarize(limit=30), None),
        (HeadTail(max_messages=30, preserve_last_n=8, summarize_on_trim=True), None),
        (Checkpoint(trigger_at=30, keep_recent=8), None),
        ("rolling", RequestParameters(compression_strategy=WholeHistory())),
    ]

    for policy, parameters in cases:
        async with WireServer(responder, model=Model(era=era)) as server:
            agent = replace(worker(provider(server, protocol, era), thinking(protocol, era)), tools=[long_step])
            result = await run(CrewExecutor(agent, history=policy, parameters=parameters))
            asked = [INSTRUCTION.encode() in request.raw for request in server.requests]

            assert not server.refused, refusal_reasons(server)
            assert result.output == "done"
            assert sum(asked) >= 2
            assert SUMMARY_HEADING.encode() in server.requests[-1].raw
            assert result.usage.requests == server.count


@pytest.mark.parametrize("thinks", [False, True], ids=["plainly", "thinking"])
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_summary_request_is_read_from_the_cache(protocol: Protocol, era: Era, thinks: bool) -> None:
    """It starts with the previous request: at least four fifths of its input are cached."""
    responder = with_summaries(tool_loop(80, thinking="Let me see." if thinks else None))

    async with WireServer(responder, model=Model(era=era)) as server:
        settings = thinking(protocol, era) if thinks else None
        agent = replace(worker(provider(server, protocol, era), settings), tools=[long_step])
        await run(CrewExecutor(agent, history=Summarize(limit=30)))
        asked = [request for request in server.requests if INSTRUCTION.encode() in request.raw]

    assert asked

    for request in asked:
        assert request.usage.read >= 0.8 * request.usage.input


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_summaries_of_one_view_reach_only_its_agent(protocol: Protocol, era: Era) -> None:
    """An agent that summarizes its view hands over to one that does not: every request is accepted, its summaries are
    read from the cache, its later requests hold one, and the other agent's requests none."""
    responder = with_summaries(tool_loop(50))

    async with WireServer(responder, model=Model(era=era)) as server:
        first = replace(worker(provider(server, protocol, era), None), tools=[long_step], then="second")
        first = replace(first, name="first", history=Summarize(limit=20), instructions="You are first.")
        second = replace(worker(provider(server, protocol, era), None), name="second", instructions="You are second.")
        executor = CrewExecutor(Crew("pair", agents=[first, second]))
        events, result = await run_and_collect(executor)
        made = [event for event in events if isinstance(event, Compacted)]
        requests = [request.raw for request in server.requests]

        assert not server.refused, refusal_reasons(server)
        assert result.output == "done"
        assert len(made) >= 2
        assert all(event.where == "view" for event in made)
        assert result.usage.requests == server.count

        for request in server.requests:
            if INSTRUCTION.encode() in request.raw:
                assert request.usage.read >= 0.8 * request.usage.input

    own = [raw for raw in requests if b"You are first." in raw and INSTRUCTION.encode() not in raw]
    assert sum(SUMMARY_HEADING.encode() in raw for raw in own) > 20
    assert SUMMARY_HEADING.encode() in own[-1]
    others = [raw for raw in requests if b"You are second." in raw]
    assert others
    assert not any(SUMMARY_HEADING.encode() in raw for raw in others)


@pytest.mark.parametrize("settings", [ModelSettings(), ModelSettings(reasoning="high")], ids=["unasked", "asked"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_reasoning_does_not_use_up_the_summary_output(protocol: Protocol, settings: ModelSettings) -> None:
    """Reasoning counts as output, so that the output limit of a summary includes it."""
    responder = with_summaries(tool_loop(40), thinking="Let me think about this. " * 500)

    async with WireServer(responder, model=Model(era="modern")) as server:
        agent = replace(worker(provider(server, protocol), settings), tools=[long_step])
        events, result = await run_and_collect(CrewExecutor(agent, history=Summarize(limit=30)))

    assert result.output == "done"
    assert any(isinstance(event, Compacted) for event in events)
    assert not any(isinstance(event, CompactionFailed) for event in events)


@pytest.mark.parametrize("summariser", PROTOCOLS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_summarizer_can_be_another_provider(protocol: Protocol, summariser: Protocol) -> None:
    """It gets its settings and not those of the agent's model; its retries are reported, and secrets are not sent to
    it."""
    settings = ModelSettings(temperature=0.2) if protocol != "messages" else ModelSettings(thinking_tokens=1024)
    responder = tool_loop(60, thinking="Hm." if protocol == "messages" else None)

    async with (
        WireServer(responder) as server,
        WireServer(
            with_summaries(tool_loop(0)), model=Model(era="modern"), faults={0: Fault("rate_limited", retry_after="0")}
        ) as other,
    ):
        agent = replace(worker(provider(server, protocol, "classic"), settings), tools=[long_step])
        agent = replace(agent, instructions="Work. The password is hunter2-hunter2.")
        policy = Summarize(limit=30, summarizer=retrying_provider(other, summariser))
        events, result = await run_and_collect(CrewExecutor(agent, history=policy, secrets=["hunter2-hunter2"]))

        assert not server.refused, refusal_reasons(server)
        assert not other.refused, refusal_reasons(other)
        assert result.output == "done"
        assert not any(isinstance(event, CompactionFailed) for event in events)
        assert sum(isinstance(event, Compacted) for event in events) == other.count - 1 >= 2
        assert [event.attempt for event in events if isinstance(event, Retried)] == [1]
        assert not [r for r in (*server.requests, *other.requests) if b"hunter2" in r.raw]
        assert result.usage.requests == server.count + other.count - 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_compression_of_a_long_history_is_within_the_bound(protocol: Protocol) -> None:
    """130 messages on a default executor: each summary request holds at most 51, and all TL;DRs are in the reply."""
    before: Any = [(UserMessage, AssistantMessage)[n % 2](f"Message {n} of a long talk. " * 4) for n in range(130)]
    parameters = RequestParameters(compression_strategy=LastNMessages(30), max_history_size=20)

    async with WireServer(with_summaries(tool_loop(6)), model=Model(era="modern")) as server:
        agent = replace(worker(provider(server, protocol)), tools=[long_step])
        result = await CrewExecutor(agent).execute("Go on.", history=before, parameters=parameters)

    asked = [request for request in server.requests if INSTRUCTION.encode() in request.raw]
    replied = [request for request in server.requests if request not in asked]
    sizes = [len(request.body["input" if protocol == "responses" else "messages"]) for request in asked]
    assert not server.refused, refusal_reasons(server)
    assert len(asked) >= 3
    assert max(sizes) <= 51
    assert not [n for n in range(101) if not any(f"Message {n} of".encode() in request.raw for request in asked)]
    assert replied[0].raw.count(SUMMARY_HEADING.encode()) == 3
    assert all(SUMMARY_HEADING.encode() in request.raw for request in replied)
    assert result.output == "done"


@pytest.mark.filterwarnings("ignore:prune_to")
async def test_summaries_save_ninety_percent_of_the_tokens() -> None:
    """After 500 messages, compared with no limit; and the run costs less than unbounded and sliding runs."""
    last, money = {}, {}

    for name, options in {
        "unbounded": {"history": "unbounded"},
        "sliding": {"prune_to": 50},
        "rolling": {},
        "checkpoint": {"history": Checkpoint(trigger_at=50, keep_recent=10)},
    }.items():
        async with WireServer(with_summaries(tool_loop(250)), keep=1) as server:
            agent = replace(worker(provider(server, "messages", "classic")), tools=[long_step])
            await run(CrewExecutor(agent, limits=Limits(rounds=400), **options))  # type: ignore[arg-type]
            last[name] = server.requests[-1].usage.input
            money[name] = server.account.total

    assert last["rolling"] <= 0.1 * last["unbounded"]
    assert last["checkpoint"] <= 0.1 * last["unbounded"]
    assert money["rolling"] < money["unbounded"] < money["sliding"]
    assert money["checkpoint"] < money["unbounded"]
