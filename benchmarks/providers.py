"""What a model call costs: ours beside a hand-written loop on the SDK's create() and one on bare aiohttp.

All in one run, as ratios, against a local server in a process of its own, so that the machine's speed cancels out.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aiohttp
import openai

from crew import Agent, CrewExecutor, Limits, tool
from crew.providers import OpenAIChat
from tests.wire import WireProcess, wire_process

MODEL = "gpt-5"
STEPS = 20
WINDOW = 50
TOOL = {
    "type": "function",
    "function": {
        "name": "step",
        "description": "Go one step on.",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
}
SYSTEM = {"role": "system", "content": "Work."}

Ask = Callable[[list[dict[str, Any]]], Awaitable[dict[str, Any]]]


@tool
async def step(n: int) -> str:
    """Go one step on.

    Args:
        n: The step's number.
    """
    return f"step {n} is done"


async def by_hand(ask: Ask, messages: list[dict[str, Any]]) -> None:
    """The loop that everybody writes: ask, call, append, until there is nothing to call."""
    while True:
        said = await ask([SYSTEM, *messages])
        messages.append(said)

        if not said.get("tool_calls"):
            return

        for call in said["tool_calls"]:
            n = json.loads(call["function"]["arguments"])["n"]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"step {n} is done"})


def with_create(client: openai.AsyncOpenAI) -> Ask:
    async def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
        reply = await client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])  # type: ignore[arg-type,call-overload]
        said: dict[str, Any] = reply.choices[0].message.model_dump(exclude_none=True)
        said.pop("annotations", None)
        return said

    return ask


def with_aiohttp(session: aiohttp.ClientSession, url: str) -> Ask:
    async def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
        body = json.dumps({"model": MODEL, "messages": messages, "tools": [TOOL]}).encode()
        headers = {"Content-Type": "application/json", "Authorization": "Bearer k"}

        async with session.post(f"{url}/chat/completions", data=body, headers=headers) as answer:
            said: dict[str, Any] = json.loads(await answer.read())["choices"][0]["message"]

        return {key: value for key, value in said.items() if value is not None and key != "annotations"}

    return ask


def executor(server: WireProcess, rounds: int = 1000) -> CrewExecutor:
    """Ours, as a user has it."""
    model = OpenAIChat(MODEL, base_url=server.openai_url, api_key="k")
    agent = Agent("worker", instructions="Work.", model=model, tools=[step])
    return CrewExecutor(agent, max_messages_per_request=WINDOW, limits=Limits(rounds=rounds))


async def cpu_of(*works: Callable[[], Awaitable[object]], times: int = 5, tries: int = 7) -> list[float]:
    """Seconds of CPU for one go of each, the least of several tries; taken in turns, so that what else the machine
    does bears on all of them alike."""
    least = [float("inf")] * len(works)

    for attempt in range(tries + 1):
        for index, work in enumerate(works):
            start = time.process_time()

            for _ in range(times):
                await work()

            if attempt:  # the first go warms up
                least[index] = min(least[index], (time.process_time() - start) / times)

    return least


async def twenty_calls() -> None:
    """20 tool calls: CPU for each model call."""
    with wire_process("--brain", "tool_loop", "--steps", str(STEPS), "--no-checks") as server:
        async with (
            openai.AsyncOpenAI(api_key="k", base_url=server.openai_url, max_retries=0) as client,
            aiohttp.ClientSession() as session,
            executor(server) as ours,
        ):
            goal = [{"role": "user", "content": "Go."}]
            sdk, bare, mine = await cpu_of(
                lambda: by_hand(with_create(client), list(goal)),
                lambda: by_hand(with_aiohttp(session, server.openai_url), list(goal)),
                lambda: ours.execute("Go."),
            )

    calls = STEPS + 1
    print(
        f"20 tool calls, CPU per model call: ours {mine / calls * 1e3:.2f} ms, create() {sdk / calls * 1e3:.2f} ms, ",
        end="",
    )
    print(f"bare aiohttp {bare / calls * 1e3:.2f} ms")
    _verdict("ours / create()", mine / sdk, 0.25)
    _verdict("ours / bare aiohttp", mine / bare, 6.0)


async def long_conversation(turns: int = 500) -> None:
    """500 turns of one conversation, the hand-written loop with its history cut to the same length."""
    with wire_process("--brain", "echo", "--no-checks", "--keep", "1") as server:
        async with (
            openai.AsyncOpenAI(api_key="k", base_url=server.openai_url, max_retries=0) as client,
            executor(server) as ours,
        ):
            ask = with_create(client)

            async def hand() -> None:
                messages: list[dict[str, Any]] = []

                for turn in range(turns):
                    messages.append({"role": "user", "content": f"Turn {turn}."})
                    messages = messages[-WINDOW:]
                    await by_hand(ask, messages)

            async def mine() -> None:
                result = None

                for turn in range(turns):
                    result = await ours.execute(f"Turn {turn}.", history=result)

            theirs, cost = await cpu_of(hand, mine, times=1, tries=2)

    print(f"{turns} turns, CPU per turn: ours {cost / turns * 1e3:.2f} ms, create() {theirs / turns * 1e3:.2f} ms")
    _verdict("ours / create()", cost / theirs, 0.15)


async def many_runs(runs: int = 200) -> None:
    """200 runs at once against a server that takes 20 ms."""
    with wire_process("--brain", "tool_loop", "--steps", str(STEPS), "--no-checks", "--latency", "0.02") as server:
        async with (
            openai.AsyncOpenAI(api_key="k", base_url=server.openai_url, max_retries=0) as client,
            executor(server) as ours,
        ):
            ask = with_create(client)
            goal = [{"role": "user", "content": "Go."}]
            theirs, their_cpu = await _throughput(lambda: by_hand(ask, list(goal)), runs)
            mine, my_cpu = await _throughput(lambda: ours.execute("Go."), runs)

    print(f"{runs} runs at once: ours {mine:.0f} calls/s, create() {theirs:.0f} calls/s; ", end="")
    print(f"CPU per call: ours {my_cpu * 1e3:.2f} ms, create() {their_cpu * 1e3:.2f} ms")
    _verdict("ours / create(), at least", mine / theirs, 10.0, least=True)
    # What the same machine would do if nothing else ran on it.
    _verdict("the same by CPU, at least", their_cpu / my_cpu, 10.0, least=True)


async def _throughput(work: Callable[[], Awaitable[object]], runs: int) -> tuple[float, float]:
    """Calls in a second, and CPU seconds for one."""
    start, cpu = time.perf_counter(), time.process_time()

    async with asyncio.TaskGroup() as group:
        for _ in range(runs):
            group.create_task(_one(work))

    calls = runs * (STEPS + 1)
    return calls / (time.perf_counter() - start), (time.process_time() - cpu) / calls


async def _one(work: Callable[[], Awaitable[object]]) -> None:
    await work()


def _verdict(what: str, ratio: float, target: float, *, least: bool = False) -> None:
    held = ratio >= target if least else ratio <= target
    print(f"  {what}: {ratio:.2f} (target {target}) {'holds' if held else 'FALLS SHORT'}")


async def main() -> None:
    """All three."""
    await twenty_calls()
    await long_conversation()
    await many_runs()


if __name__ == "__main__":
    asyncio.run(main())
