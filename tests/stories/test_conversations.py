"""Stored conversations send what conversations in memory send."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from crew import (
    Agent,
    Crew,
    CrewExecutor,
    Parallel,
    RequestParameters,
    RunResult,
    WholeHistory,
    call,
    handoff,
    recall,
    tool,
)
from crew.history import Checkpoint, HeadTail, MaskToolResults, Rolling, Summarize, chain
from crew.interfaces import ModelRequest, Policy
from crew.message_rules import get_profile
from crew.providers.openai_chat import render_request
from crew.runs.events import Asked
from crew.store import MemoryStore, SQLiteStore
from tests.support.clocks import fixed_clock
from tests.support.providers import ReplyingProvider

ACTIONS = ("talk", "talk", "long", "look", "remember", "billing", "triage", "panel", "pay", "compress")


@dataclass(frozen=True)
class Sketch:
    """The policies of a crew, and what each turn does."""

    shared: str
    own: str
    limit: int
    turns: Sequence[str]


sketches = st.builds(
    Sketch,
    shared=st.sampled_from(["rolling", "head_tail", "summarize", "checkpoint", "masks"]),
    own=st.sampled_from(["", "", "summarize", "checkpoint"]),
    limit=st.sampled_from([6, 9, 12]),
    turns=st.lists(st.sampled_from(ACTIONS), min_size=8, max_size=20),
)


def policy(name: str, limit: int) -> Policy | None:
    match name:
        case "":
            return None
        case "head_tail":
            return HeadTail(max_messages=limit, preserve_last_n=limit // 3, summarize_on_trim=True)
        case "summarize":
            return Summarize(limit=limit, threshold=0.5, target=0.3)
        case "checkpoint":
            return Checkpoint(trigger_at=limit, keep_recent=limit // 3)
        case "masks":
            return chain(MaskToolResults(keep_recent=1), Rolling(limit=limit))
        case _:
            return Rolling(limit=limit)


@tool(effect="read")
async def look(place: str) -> str:
    """Look."""
    return f"The {place} is blue. " * 20


@tool(approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def reply(request: ModelRequest) -> Any:
    last = request.messages[-1]
    word = last.text.split()[0] if last.role == "user" else ""

    match word:
        case "look":
            return call("look", place="bicycle")
        case "remember":
            return call("recall", words="0")
        case "pay":
            return call("pay", amount=3)
        case "billing" | "triage" | "panel" if request.agent in ("triage", "billing") and word != request.agent:
            return call(f"transfer_to_{word}")
        case "long":
            return "Many words. " * 40
        case _:
            return f"{request.agent} answers {last.id}."


def crew_of(sketch: Sketch, model: Any) -> Crew:
    own = policy(sketch.own, max(4, sketch.limit // 2))
    tools = [look, pay, recall]
    ways = {"triage": ["billing", "panel"], "billing": ["triage", "panel"]}
    return Crew(
        "shop",
        agents=[
            *(Agent(n, model=model, tools=tools, handoffs=[*map(handoff, to)], history=own) for n, to in ways.items()),
            *(Agent(name, model=model, tools=tools) for name in ("legal", "finance")),
        ],
        groups=[Parallel("panel", branches=["legal", "finance"], then="triage")],
    )


class Story:
    """One conversation, with everything that was sent."""

    def __init__(self, sketch: Sketch, store: Any) -> None:
        self.sent: list[bytes] = []
        self.model = ReplyingProvider(reply, summary=lambda request: f"Summary of {len(request.messages)}.")
        self.executor = CrewExecutor(
            crew_of(sketch, self.model),
            store=store,
            history=policy(sketch.shared, sketch.limit) or "rolling",
            observers=[self._note],
            clock=fixed_clock,
            monotonic=fixed_clock,
        )
        self.manifests: list[Any] = []

    def _note(self, event: Any) -> None:
        if isinstance(event, Asked):
            self.manifests.append(event.manifest)

    async def turn(self, number: int, action: str, **how: Any) -> RunResult:
        strategy = WholeHistory() if action == "compress" else None
        parameters = RequestParameters(compression_strategy=strategy)
        text, run_id = f"{action} {number}", f"t{number}"
        result = await self.executor.execute(text, run_id=run_id, parameters=parameters, **how)

        if result.stop_reason == "paused":
            result = await self.executor.resume(run_id, {pause.id: True for pause in result.pauses})

        return result

    def requests(self) -> list[bytes]:
        profile = get_profile("openai-chat")
        return [render_request(request, "m", profile) for request in self.model.requests]


async def in_memory(sketch: Sketch) -> Story:
    story, result = Story(sketch, MemoryStore()), None

    for number, action in enumerate(sketch.turns):
        agent = None if result is None else result.agent
        result = await story.turn(number, action, history=result, agent=agent)

    return story


async def stored(sketch: Sketch, store: Any) -> Story:
    for number, action in enumerate(sketch.turns):
        # A new executor for each turn: nothing but the store connects the turns.
        one = Story(sketch, store)
        await one.turn(number, action, conversation="t0")

        if number == 0:
            whole = one
        else:
            whole.model.requests += one.model.requests
            whole.manifests += one.manifests

    return whole


@pytest.mark.filterwarnings("ignore::UserWarning")  # some sketches have a setting that can't take effect
@settings(max_examples=max(4, settings().max_examples // 20))
@given(sketch=sketches)
def test_stored_conversation_sends_the_same_bytes_as_one_in_memory(sketch: Sketch) -> None:
    """Tools, recall, handoffs, branches, approvals and compressions, with any policy: `conversation=` and
    `history=result` send the same requests, with the same manifests."""
    with TemporaryDirectory() as folder:
        file = SQLiteStore(Path(folder) / "runs.db")
        expected = asyncio.run(in_memory(sketch))

        for store in (file, MemoryStore()):
            found = asyncio.run(stored(sketch, store))
            note(str([request.messages[-1].id for request in found.model.requests]))
            assert found.requests() == expected.requests()
            assert found.manifests == expected.manifests

        file.close()
