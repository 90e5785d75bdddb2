"""A store with the runs that the inspector's screenshots show: an incident, coding, a conversation, a failure."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import time
from pathlib import Path
from typing import Any

from crew import Agent, CrewExecutor, Limits, ScriptedProvider, tool
from crew.errors import RunError, Unavailable
from crew.interfaces import ModelReply, ModelRequest, OnDelta
from crew.messages import ToolCall
from crew.store import SQLiteStore

ROOT = Path(__file__).parents[2]
CODING: dict[str, Any] = json.loads((ROOT / "examples/transcripts/coding.json").read_text(encoding="utf-8"))
SUPPORT: dict[str, Any] = json.loads((ROOT / "examples/transcripts/support.json").read_text(encoding="utf-8"))
RESULTS = {
    result["call_id"]: result["text"]
    for message in CODING["transcript"]
    if message["role"] == "tool"
    for result in message["results"]
}


def load_incident() -> Any:
    """The module examples/incident.py."""
    spec = importlib.util.spec_from_file_location("incident_example", ROOT / "examples/incident.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recorded_result(name: str, **arguments: object) -> str:
    """The result that the transcript has for a call with these arguments."""
    wanted = json.dumps({"name": name, **arguments}, sort_keys=True)
    return _BY_ARGUMENTS.get(wanted, "done")


_BY_ARGUMENTS = {
    json.dumps({"name": made["name"], **json.loads(made["arguments"])}, sort_keys=True): RESULTS.get(made["id"], "done")
    for message in CODING["transcript"]
    if message["role"] == "assistant"
    for made in message.get("calls", ())
}


@tool(effect="read")
async def read_file(path: str) -> str:
    """Read a file."""
    return recorded_result("read_file", path=path)


@tool(effect="read")
async def search(words: str) -> str:
    """Search the sources."""
    return recorded_result("search", words=words)


@tool(effect="write")
async def edit_file(path: str, old: str, new: str) -> str:
    """Replace a text in a file."""
    return recorded_result("edit_file", path=path, old=old, new=new)


@tool(effect="read")
async def run_tests(path: str) -> str:
    """Run tests."""
    return recorded_result("run_tests", path=path)


@tool(effect="read")
async def lookup_order(order_id: str) -> str:
    """Find an order."""
    return f"{order_id}: two chairs, 180 EUR, sent on 3 May, delivered on 6 May."


RULES = " ".join(
    f"Rule {number}: answer in the customer's language, name the source of each fact, and never promise a date that an "
    f"order does not have; refunds above {number * 10} EUR need a reason."
    for number in range(1, 32)
)


class RecordedModel(ScriptedProvider):
    """Replies as in a transcript, with bills like those of a service with a prompt cache."""

    def __init__(self, messages: list[dict[str, Any]], bill: Any, clock: FastClock) -> None:
        lines = [
            ModelReply(
                text=message.get("text", ""),
                calls=tuple(
                    ToolCall(id="", name=c["name"], arguments=c["arguments"]) for c in message.get("calls", ())
                ),
                finish_reason="calls" if message.get("calls") else "stop",
            )
            for message in messages
            if message["role"] == "assistant"
        ]
        super().__init__(*lines, name="anthropic", model="claude-sonnet-4-5")
        self._bill_of, self._clock = bill, clock

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        """Reply with a bill; the clock moves on by the time that a model takes."""
        self._clock.now += 1.4 + (request.turn * 7 % 11) / 5
        reply = await super().complete(request, on_delta)
        return ModelReply(
            text=reply.text,
            calls=reply.calls,
            finish_reason=reply.finish_reason,
            usage=self._bill_of(request, reply),
            model=self.model,
        )


class FastClock:
    """A clock that models move."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


async def fill(path: Path) -> None:
    """Write the runs to a store; the incident is the newest, and waits for an approval."""
    example, store, now = load_incident(), SQLiteStore(path), time.time()
    bill = example.BilledModel("triage")._bill
    clock = FastClock(now - 7_900)
    tools, limits = [read_file, search, edit_file, run_tests], Limits(rounds=None)
    goal = CODING["transcript"][0]["text"]

    def coder(clock: FastClock, **options: Any) -> CrewExecutor:
        agent = Agent("coder", instructions=RULES, model=RecordedModel(CODING["transcript"], bill, clock), tools=tools)
        return CrewExecutor(agent, store=store, clock=clock, monotonic=clock, **options)

    await coder(clock, limits=limits).execute(goal, run_id="c41d08e7", conversation="INV-20417")
    clock.now += 700
    await coder(clock, limits=Limits(cost_usd=0.35)).execute(goal, run_id="5a90c2f3", conversation="INV-20391")
    clock.now += 300
    model = RecordedModel(SUPPORT["transcript"], bill, clock)
    chat = Agent("support", instructions=RULES, model=model, tools=[lookup_order])
    talk = CrewExecutor(chat, store=store, clock=clock, monotonic=clock, max_messages_per_request=20)

    questions = [m["text"] for m in SUPPORT["transcript"] if m["role"] == "user"][:12]

    for number, question in enumerate(questions):
        clock.now += 40
        await talk.execute(question, run_id=f"{(number + 3) * 5_801 % 65_536:04x}f0aa", conversation="customer-88123")

    clock.now += 60
    down = Unavailable("529 overloaded_error (4 attempts in 31 s)", provider="anthropic", model="claude-sonnet-4-5")
    failing = CrewExecutor(Agent("research", model=ScriptedProvider(down)), store=store, clock=clock, monotonic=clock)

    try:
        await failing.execute("Write a report on heat pumps in Europe.", run_id="04de77a1")
    except RunError:
        pass  # the stored run shows it

    executor = example.build_executor(store, speed=200.0)
    await executor.execute(example.INPUT, run_id="7f3a91c2", conversation="INC-2231")
    store.close()


if __name__ == "__main__":
    import sys

    asyncio.run(fill(Path(sys.argv[1])))
