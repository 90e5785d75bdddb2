"""Summaries and compression on the bytes that a strict server received: accepted, cached, and worth their price."""

import json
from dataclasses import replace
from typing import Any

import pytest

from crew import CrewExecutor, Limits, RequestParameters, WholeHistory, tool
from crew.history import Checkpoint, HeadTail, Summarize
from crew.messages import SUMMARY_HEADING
from tests.providers.ways import ERAS, PROTOCOLS, provider, run, said, thinking, worker
from tests.wire import Brain, Era, Model, Protocol, Reply, WireServer, tool_loop

INSTRUCTION = "Stop here and write a summary"


@tool
async def step(n: int) -> str:
    """Go one step on.

    Args:
        n: The step's number.
    """
    return f"Step {n} is done. " + "It left a note of some length behind, as tools do. " * 14


def summarising(loop: Brain) -> Brain:
    """A model that works, and writes a summary when it is asked for one; the steps it remembers from there."""

    def brain(body: Any, protocol: Protocol, index: int) -> Reply | str:
        asked = INSTRUCTION in json.dumps(body)
        return Reply(text="Steps were taken, and each left a note.") if asked else loop(body, protocol, index)

    return brain


@pytest.mark.parametrize("thinks", [False, True], ids=["plainly", "thinking"])
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_every_request_of_a_summarising_run_is_accepted(protocol: Protocol, era: Era, thinks: bool) -> None:
    """One summary, several, or a TL;DR that was asked for: the strictest server refuses nothing."""
    brain = summarising(tool_loop(60, width=2 if thinks else 1, thinking="Let me see." if thinks else None))
    cases: list[tuple[Any, RequestParameters | None]] = [
        (Summarize(limit=30), None),
        (HeadTail(max_messages=30, preserve_last_n=8, summarize_on_trim=True), None),
        (Checkpoint(trigger_at=30, keep_recent=8), None),
        ("rolling", RequestParameters(compression_strategy=WholeHistory())),
    ]

    for policy, parameters in cases:
        async with WireServer(brain, model=Model(era=era)) as server:
            agent = replace(worker(provider(server, protocol, era), thinking(protocol, era)), tools=[step])
            result = await run(CrewExecutor(agent, history=policy, parameters=parameters))
            asked = [INSTRUCTION.encode() in request.raw for request in server.requests]

            assert not server.refused, said(server)
            assert result.output == "done"
            assert sum(asked) >= 2
            assert SUMMARY_HEADING.encode() in server.requests[-1].raw
            assert result.usage.requests == server.count


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_summary_is_read_from_the_cache(protocol: Protocol) -> None:
    """Its request begins with the one before: at least four fifths of its input cost a tenth."""
    async with WireServer(summarising(tool_loop(80))) as server:
        agent = replace(worker(provider(server, protocol, "classic")), tools=[step])
        await run(CrewExecutor(agent, history=Summarize(limit=30)))
        asked = [request for request in server.requests if INSTRUCTION.encode() in request.raw]

    assert asked

    for request in asked:
        assert request.usage.read >= 0.8 * request.usage.input


@pytest.mark.filterwarnings("ignore:prune_to")
async def test_at_the_five_hundredth_message_a_request_is_a_tenth_and_the_run_is_the_cheapest() -> None:
    """Against no bound: 90 % fewer tokens; and less money than that, and than a window that slides."""
    last, money = {}, {}

    for name, options in {
        "unbounded": {"history": "unbounded"},
        "sliding": {"prune_to": 50},
        "rolling": {},
        "checkpoint": {"history": Checkpoint(trigger_at=50, keep_recent=10)},
    }.items():
        async with WireServer(summarising(tool_loop(250)), keep=1) as server:
            agent = replace(worker(provider(server, "messages", "classic")), tools=[step])
            await run(CrewExecutor(agent, limits=Limits(rounds=400), **options))  # type: ignore[arg-type]
            last[name] = server.requests[-1].usage.input
            money[name] = server.account.total

    assert last["rolling"] <= 0.1 * last["unbounded"]
    assert last["checkpoint"] <= 0.1 * last["unbounded"]
    assert money["rolling"] < money["unbounded"] < money["sliding"]
    assert money["checkpoint"] < money["unbounded"]
