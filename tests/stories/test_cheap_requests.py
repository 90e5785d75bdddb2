"""The cost of long runs: cached prefixes, and usage that equals the bill of the service."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from crew import Agent, CrewExecutor, Limits
from tests.support.remote_providers import PROTOCOLS, long_step, provider, refusal_reasons, run, thinking
from tests.support.remote_providers import worker as agent_on
from tests.wire import Protocol, WireServer, tool_loop

MARK = re.compile(rb',"cache_control":\{"type":"ephemeral"\}')


def conversation(raw: bytes) -> bytes:
    """The growing part of a request, without cache marks and closing brackets."""
    bare = MARK.sub(b"", raw)
    start = bare.index(b'"input":[' if b'"input":[' in bare else b'"messages":[')
    return bare[start:].removesuffix(b"]}")


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_requests_without_pruning_extend_the_previous_one(protocol: Protocol) -> None:
    """Byte for byte, without cache marks; from the third request on, nine tenths of the previous request are read from
    the cache."""
    async with WireServer(tool_loop(100, thinking="Hm.")) as server:
        worker = agent_on(provider(server, protocol, "classic"), thinking(protocol, "classic"))
        executor = CrewExecutor(_with(worker), history="unbounded")
        await run(executor)

        assert not server.refused, refusal_reasons(server)
        assert server.count == 101

        for before, after in pairwise(server.requests):
            assert conversation(after.raw).startswith(conversation(before.raw))
            assert _front(after.raw) == _front(before.raw)

        for before, after in pairwise(server.requests[1:]):
            if before.usage.input >= 1300:  # below it the services cache nothing, or in steps too coarse to tell
                assert after.usage.read >= 0.9 * before.usage.input


def _front(raw: bytes) -> dict[str, object]:
    body = json.loads(MARK.sub(b"", raw))
    return {key: value for key, value in body.items() if key not in ("messages", "input")}


def _with(worker: Agent) -> Agent:
    return replace(worker, tools=[long_step])


async def cached_share(protocol: Protocol, steps: int, prune_to: int) -> float:
    """The share of the input that was read from the cache; usage and cost equal the bill of the service."""
    async with WireServer(tool_loop(steps), keep=1) as server:
        worker = _with(agent_on(provider(server, protocol, "classic")))
        executor = CrewExecutor(worker, max_messages_per_request=50, prune_to=prune_to, limits=Limits(rounds=400))
        usage = (await run(executor)).usage
        billed = server.account.usage

    assert usage.requests == steps + 1
    assert (usage.input_tokens, usage.output_tokens) == (billed.input, billed.output)
    assert (usage.cache_read_tokens, usage.cache_write_tokens) == (billed.read, billed.write)
    assert usage.cost == pytest.approx(float(server.account.total), rel=0.01)
    return usage.cache_read_tokens / usage.input_tokens


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_pruning_in_blocks_reads_mostly_from_the_cache(protocol: Protocol) -> None:
    """At 50→25 over 300 steps at least four fifths of the input are cached."""
    assert await cached_share(protocol, 300, prune_to=25) >= 0.8


async def test_sliding_window_misses_the_cache() -> None:
    """For comparison: a prefix that changes at every step is never cached."""
    with pytest.warns(UserWarning, match="defeats prompt caching"):
        assert await cached_share("messages", 100, prune_to=48) < 0.65


async def test_anthropic_requests_have_at_most_four_cache_marks() -> None:
    """Tools and system have one, the conversation at most three, each at most fifteen blocks from the next."""
    async with WireServer(tool_loop(96, width=8)) as server:
        await run(CrewExecutor(_with(agent_on(provider(server, "messages", "classic"))), history="unbounded"))

        for request in server.requests:
            assert 1 < len(MARK.findall(request.raw)) <= 4
            body = request.body
            assert "cache_control" in body["system"][-1]
            blocks = [block for message in body["messages"] for block in message["content"]]
            places = [index for index, block in enumerate(blocks) if "cache_control" in block]
            assert places[-1] == len(blocks) - 1
            assert all(after - before <= 15 for before, after in pairwise(places))

        third = server.requests[5:]
        assert all(after.usage.read >= 0.9 * before.usage.input for before, after in pairwise(third))


async def test_openai_cache_key_is_the_conversation_id() -> None:
    """The same in every request of a conversation, another one in another conversation."""
    async with WireServer(tool_loop(3)) as server:
        executor = CrewExecutor(_with(agent_on(provider(server, "chat", "classic"))))
        first = await run(executor)
        await run(executor, history=first)
        await run(executor)
        keys = [request.body["prompt_cache_key"] for request in server.requests]

    assert len(set(keys[:5])) == 1 == len({*keys[:5], *keys[1:5]})
    assert keys[-1] != keys[0]
    assert all(0 < len(key) <= 64 for key in keys)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_equal_histories_are_equal_bytes(protocol: Protocol) -> None:
    """Two executors and two runs: only the conversation id differs."""
    raws = []

    for _ in range(2):
        async with WireServer(tool_loop(5)) as server:
            await run(CrewExecutor(_with(agent_on(provider(server, protocol, "classic")))), run_id="fixed")
            raws.append([request.raw for request in server.requests])

    assert raws[0] == raws[1]


@pytest.mark.filterwarnings("ignore:prune_to=30 is above")
@pytest.mark.parametrize("protocol", ["chat", "messages"])
async def test_reported_savings_equal_the_cost_of_a_run_without(protocol: Protocol) -> None:
    """Within a tenth, at the prices of the run; a sliding window costs more than no pruning, and the metrics say so."""
    costs = {}

    for name, bounds in {
        "none": {"history": "unbounded"},
        "block": {"max_messages_per_request": 30},
        "summaries": {"history": {"name": "summarize", "limit": 30}},
        "slide": {"max_messages_per_request": 30, "prune_to": 30},
    }.items():
        async with WireServer(tool_loop(64), keep=1) as server:
            options: dict[str, Any] = {"limits": Limits(rounds=400), **bounds}
            result = await run(CrewExecutor(_with(agent_on(provider(server, protocol, "classic"))), **options))
            costs[name] = (result.usage.cost or 0.0, result.metrics.cost_saved, result.metrics.tokens_saved)

    unpruned, saved, tokens = costs.pop("none")
    assert (saved, tokens) == (0.0, 0)

    for cost, saved, tokens in costs.values():
        assert saved == pytest.approx(unpruned - cost, abs=0.1 * unpruned)
        assert tokens > 100_000

    assert costs["block"][1] > 0 > costs["slide"][1]  # type: ignore[operator]
