"""Compares the cost of a model call: Crew, a hand-written loop on the SDK's create(), and one on bare aiohttp.

All are measured in one run against a local server in a separate process. Results are ratios, so that they do not
depend on the speed of the machine.
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
        "description": "Do one step.",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
}
SYSTEM = {"role": "system", "content": "Work."}

SendRequest = Callable[[list[dict[str, Any]]], Awaitable[dict[str, Any]]]


@tool
async def step(n: int) -> str:
    """Do one step.

    Args:
        n: The number of the step.
    """
    return f"step {n} is done"


async def by_hand(send: SendRequest, messages: list[dict[str, Any]]) -> None:
    """A hand-written agent loop: send a request, call the tools, append, until the reply has no calls."""
    while True:
        message = await send([SYSTEM, *messages])
        messages.append(message)

        if not message.get("tool_calls"):
            return

        for call in message["tool_calls"]:
            n = json.loads(call["function"]["arguments"])["n"]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"step {n} is done"})


def with_create(client: openai.AsyncOpenAI) -> SendRequest:
    async def send(messages: list[dict[str, Any]]) -> dict[str, Any]:
        reply = await client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])  # type: ignore[arg-type,call-overload]
        message: dict[str, Any] = reply.choices[0].message.model_dump(exclude_none=True)
        message.pop("annotations", None)
        return message

    return send


def with_aiohttp(session: aiohttp.ClientSession, url: str) -> SendRequest:
    async def send(messages: list[dict[str, Any]]) -> dict[str, Any]:
        body = json.dumps({"model": MODEL, "messages": messages, "tools": [TOOL]}).encode()
        headers = {"Content-Type": "application/json", "Authorization": "Bearer k"}

        async with session.post(f"{url}/chat/completions", data=body, headers=headers) as response:
            message: dict[str, Any] = json.loads(await response.read())["choices"][0]["message"]

        return {key: value for key, value in message.items() if value is not None and key != "annotations"}

    return send


def executor(server: WireProcess, rounds: int = 1000) -> CrewExecutor:
    """Crew with its default settings."""
    model = OpenAIChat(MODEL, base_url=server.openai_url, api_key="k")
    agent = Agent("worker", instructions="Work.", model=model, tools=[step])
    return CrewExecutor(agent, max_messages_per_request=WINDOW, limits=Limits(rounds=rounds))


async def cpu_seconds(*works: Callable[[], Awaitable[object]], times: int = 5, tries: int = 7) -> list[float]:
    """CPU seconds for one call of each function, the minimum of several tries; the functions alternate, so that other
    load on the machine affects all of them alike."""
    least = [float("inf")] * len(works)

    for attempt in range(tries + 1):
        for index, work in enumerate(works):
            start = time.process_time()

            for _ in range(times):
                await work()

            if attempt:  # the first round is a warm-up
                least[index] = min(least[index], (time.process_time() - start) / times)

    return least


async def twenty_calls() -> None:
    """CPU of each model call in a run with 20 tool calls."""
    with wire_process("--responder", "tool_loop", "--steps", str(STEPS), "--no-checks") as server:
        async with (
            openai.AsyncOpenAI(api_key="k", base_url=server.openai_url, max_retries=0) as client,
            aiohttp.ClientSession() as session,
            executor(server) as crew,
        ):
            goal = [{"role": "user", "content": "Go."}]
            sdk, bare, mine = await cpu_seconds(
                lambda: by_hand(with_create(client), list(goal)),
                lambda: by_hand(with_aiohttp(session, server.openai_url), list(goal)),
                lambda: crew.execute("Go."),
            )

    calls = STEPS + 1
    print(
        f"20 tool calls, CPU per model call: ours {mine / calls * 1e3:.2f} ms, create() {sdk / calls * 1e3:.2f} ms, ",
        end="",
    )
    print(f"bare aiohttp {bare / calls * 1e3:.2f} ms")
    _compare("ours / create()", mine / sdk, 0.19)
    _compare("ours / bare aiohttp", mine / bare, 6.0)


async def one_call() -> None:
    """CPU of a run with a single model call, connection kept."""
    with wire_process("--responder", "echo", "--no-checks", "--keep", "1") as server:
        async with (
            openai.AsyncOpenAI(api_key="k", base_url=server.openai_url, max_retries=0) as client,
            executor(server) as crew,
        ):
            goal = [{"role": "user", "content": "Go."}]
            theirs, mine = await cpu_seconds(
                lambda: by_hand(with_create(client), list(goal)), lambda: crew.execute("Go."), times=100
            )

    print(f"one call, CPU: ours {mine * 1e3:.2f} ms, create() {theirs * 1e3:.2f} ms")
    _compare("ours / create()", mine / theirs, 0.65)


async def long_conversation(turns: int = 500) -> None:
    """A conversation of 500 turns; the hand-written loop cuts its history to the same length."""
    with wire_process("--responder", "echo", "--no-checks", "--keep", "1") as server:
        async with (
            openai.AsyncOpenAI(api_key="k", base_url=server.openai_url, max_retries=0) as client,
            executor(server) as crew,
        ):
            send = with_create(client)

            async def hand() -> None:
                messages: list[dict[str, Any]] = []

                for turn in range(turns):
                    messages.append({"role": "user", "content": f"Turn {turn}."})
                    messages = messages[-WINDOW:]
                    await by_hand(send, messages)

            async def mine() -> None:
                result = None

                for turn in range(turns):
                    result = await crew.execute(f"Turn {turn}.", history=result)

            theirs, cost = await cpu_seconds(hand, mine, times=1, tries=2)

    print(f"{turns} turns, CPU per turn: ours {cost / turns * 1e3:.2f} ms, create() {theirs / turns * 1e3:.2f} ms")
    _compare("ours / create()", cost / theirs, 0.2)


async def many_runs(runs: int = 200) -> None:
    """200 concurrent runs against a server with a latency of 20 ms."""
    with wire_process("--responder", "tool_loop", "--steps", str(STEPS), "--no-checks", "--latency", "0.02") as server:
        async with (
            openai.AsyncOpenAI(api_key="k", base_url=server.openai_url, max_retries=0) as client,
            executor(server) as crew,
        ):
            send = with_create(client)
            goal = [{"role": "user", "content": "Go."}]
            theirs, their_cpu = await _throughput(lambda: by_hand(send, list(goal)), runs)
            mine, my_cpu = await _throughput(lambda: crew.execute("Go."), runs)

    print(f"{runs} runs at once: ours {mine:.0f} calls/s, create() {theirs:.0f} calls/s; ", end="")
    print(f"CPU per call: ours {my_cpu * 1e3:.2f} ms, create() {their_cpu * 1e3:.2f} ms")
    _compare("ours / create(), at least", mine / theirs, 6.0, least=True)
    # CPU time does not depend on what else runs on the machine.
    _compare("the same by CPU, at least", their_cpu / my_cpu, 6.0, least=True)


async def _throughput(work: Callable[[], Awaitable[object]], runs: int) -> tuple[float, float]:
    """Model calls per second, and CPU seconds per call."""
    start, cpu = time.perf_counter(), time.process_time()

    async with asyncio.TaskGroup() as group:
        for _ in range(runs):
            group.create_task(_await(work))

    calls = runs * (STEPS + 1)
    return calls / (time.perf_counter() - start), (time.process_time() - cpu) / calls


async def _await(work: Callable[[], Awaitable[object]]) -> None:
    await work()


def _compare(label: str, ratio: float, target: float, *, least: bool = False) -> None:
    met = ratio >= target if least else ratio <= target
    print(f"  {label}: {ratio:.2f} (target {target}) {'met' if met else 'MISSED'}")


async def main() -> None:
    """Run all benchmarks."""
    await one_call()
    await twenty_calls()
    await long_conversation()
    await many_runs()


if __name__ == "__main__":
    asyncio.run(main())
