"""Measures the engine offline: append and prune time, overhead of a run, memory of an idle run."""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from itertools import chain

from crew import Agent, CrewExecutor, Limits, ScriptedProvider, call, tool
from crew.history import History
from crew.history.policies import Rolling
from crew.interfaces import HistoryBudget, HistoryEntry, ModelReply, ModelRequest, OnDelta
from crew.messages import AssistantMessage, Message, ToolCall, ToolMessage, ToolResult, Transcript, UserMessage

LENGTHS = (100, 1_000, 10_000, 100_000)
LIMITS = (50, 200, 1_000)
PRUNE_MS = 1.0
ROUNDS = 200
IDLE = 200
REPEATS = 7


def best(work: Callable[[], float], repeats: int = REPEATS) -> float:
    """The smallest of several measurements; larger ones contain noise of the machine."""
    return min(work() for _ in range(repeats))


# ------------------------------------------------------------------------------------------ append and prune


def call_and_result(number: int) -> list[Message]:
    call = ToolCall(id=f"c{number}", name="look", arguments='{"n": 1}')
    result = ToolResult(call_id=call.id, name="look", text="found")
    return [AssistantMessage(calls=(call,), id=f"a{number}"), ToolMessage((result,), id=f"t{number}")]


class Growing:
    """A history with the default policy, and its transcript, to which calls and results are appended."""

    def __init__(self, limit: int = 50) -> None:
        goal = UserMessage("the goal", id="goal")
        self.policy, self.budget = Rolling(), HistoryBudget(limit=limit, prune_to=limit // 2)
        self.transcript = Transcript([goal])
        entry = HistoryEntry(message=goal, position=0, tokens=5)
        self.history, _ = History(goal="goal").append(entry, policy=self.policy, budget=self.budget)
        self.prunings = 0
        self.turns = 0

    def turn(self) -> None:
        """Append one call and one result."""
        for message in call_and_result(self.turns):
            entry = HistoryEntry(message=message, position=len(self.transcript), tokens=5)
            self.transcript = self.transcript.append(message)
            self.history, pruned = self.history.append(entry, policy=self.policy, budget=self.budget)
            self.prunings += pruned is not None

        self.turns += 1

    def cycle(self) -> float:
        """CPU seconds from one pruning to the next."""
        start, prunings = time.process_time(), self.prunings

        while self.prunings == prunings:
            self.turn()

        return time.process_time() - start


def appends() -> None:
    """Append and prune, by the length of the transcript."""
    print("append + prune, per message (limit 50, target 25)")

    for length in LENGTHS:
        growing = Growing()

        while len(growing.transcript) < length:
            growing.turn()

        def hundred(growing: Growing = growing) -> float:
            start = time.process_time()

            for _ in range(100):
                growing.turn()

            return (time.process_time() - start) / 200

        print(f"  transcript of {length:>7,}: {best(hundred, 20) * 1e6:7.2f} µs")


def cycles() -> None:
    """A whole prune cycle around turn 50 and turn 500."""

    def around(turn: int) -> float:
        growing = Growing()

        while growing.turns < turn - 20:
            growing.turn()

        growing.cycle()
        return statistics.median(growing.cycle() for _ in range(5))

    early, late = best(lambda: around(50), 30), best(lambda: around(500), 30)
    print(f"a prune cycle around turn 50: {early * 1e6:.0f} µs, around turn 500: {late * 1e6:.0f} µs")
    print(f"  ratio {late / early:.3f}")


def question_and_answer(number: int) -> list[Message]:
    return [UserMessage("the question", id=f"u{number}"), AssistantMessage("the answer", id=f"a{number}")]


def prunings() -> None:
    """The append that prunes, in a history that was pruned before, by its limit and the kind of its messages."""
    print("an append that prunes to half of the limit")

    for kind in (call_and_result, question_and_answer):
        for limit in LIMITS:
            policy, budget = Rolling(), HistoryBudget(limit=limit, prune_to=limit // 2)
            history, times = History(goal="a0"), []

            for position, message in enumerate(chain.from_iterable(map(kind, range(10 * limit)))):
                entry = HistoryEntry(message=message, position=position, tokens=5)
                start = time.process_time()
                history, pruned = history.append(entry, policy=policy, budget=budget)

                if pruned is not None:
                    times.append(time.process_time() - start)

            found, target = min(times[1:]) * 1e3, PRUNE_MS * max(0.2, limit / 1_000)
            name = kind.__name__.replace("_", " ")
            result = "met" if found <= target else "MISSED"
            print(f"  {name:20} limit {limit:>5,}: {found:5.2f} ms (target {target}) {result}")


# ------------------------------------------------------------------------------------------ the overhead of a run


@tool(effect="read")
async def look(n: int = 0) -> str:
    """Look something up."""
    return "found"


async def by_hand(provider: ScriptedProvider) -> None:
    """A hand-written loop: a window, no state, no events, no checks."""
    messages: list[Message] = [UserMessage("go", id="goal")]
    turn = 0

    while (reply := await provider.complete(_request(messages, turn))).calls:
        messages.append(AssistantMessage(reply.text, calls=reply.calls))
        messages.append(_results(reply, [await look.function(**json.loads(c.arguments)) for c in reply.calls]))
        # The average number of messages that the engine sends, so that the scripted model does the same work.
        del messages[1:-36]
        turn += 1


def _request(messages: list[Message], turn: int) -> ModelRequest:
    return ModelRequest(messages=tuple(messages), tools=(look.spec,), turn=turn, agent="solo")


def _results(reply: ModelReply, texts: list[str]) -> ToolMessage:
    pairs = zip(reply.calls, texts, strict=True)
    return ToolMessage(tuple(ToolResult(call_id=call.id, name=call.name, text=text) for call, text in pairs))


def overhead() -> None:
    """A run of scripted calls compared with the hand-written loop."""
    provider = ScriptedProvider(*[call("look", n=n) for n in range(ROUNDS)], "done")
    executor = CrewExecutor(Agent("solo", model=provider, tools=[look]), limits=Limits(rounds=None))

    def seconds(work: Callable[[], Awaitable[object]]) -> float:
        async def timed() -> float:
            start = time.process_time()
            await work()
            return time.process_time() - start

        return asyncio.run(timed()) / (ROUNDS + 1)

    ours = best(lambda: seconds(lambda: executor.execute("go")))
    hand = best(lambda: seconds(lambda: by_hand(provider)))
    print(f"a model call with a tool call: {ours * 1e6:.0f} µs, by hand {hand * 1e6:.0f} µs")
    print(f"  overhead {(ours - hand) * 1e6:.0f} µs, ratio {ours / hand:.1f}")


# ------------------------------------------------------------------------------------------ memory


class Waiting(ScriptedProvider):
    """A provider that replies once the gate is open."""

    def __init__(self, gate: asyncio.Event) -> None:
        super().__init__("done")
        self.gate = gate

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        await self.gate.wait()
        return await super().complete(request, on_delta)


async def idle_run_size() -> float:
    """Bytes allocated by a run that waits for its model."""
    gate = asyncio.Event()
    executor = CrewExecutor(Agent("solo", model=Waiting(gate)))
    gc.collect()
    tracemalloc.start()

    async with asyncio.TaskGroup() as group:
        for _ in range(IDLE):
            group.create_task(executor.execute("go"))

        for _ in range(20):
            await asyncio.sleep(0)

        gc.collect()
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        gate.set()

    return size / IDLE


if __name__ == "__main__":
    appends()
    cycles()
    prunings()
    overhead()
    print(f"an idle run holds {asyncio.run(idle_run_size()) / 1024:.1f} KiB")
