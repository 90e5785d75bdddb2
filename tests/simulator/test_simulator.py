"""The simulator uses the code of a live run, so that its numbers are those of a live run."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from crew import (
    Agent,
    Crew,
    CrewExecutor,
    Limits,
    Parallel,
    RequestParameters,
    Route,
    ScriptedProvider,
    call,
    simulate,
    tool,
)
from crew.errors import DefinitionError, InvalidInput
from crew.history.policies import Checkpoint, HeadTail, MaskToolResults, Rolling, Truncate, Unbounded, chain
from crew.interfaces import ModelRequest
from crew.messages import Message, SummaryMessage
from crew.runs import RunResult
from crew.simulator import Prices, read_recording

WORDS = "There is a good deal to say about this, and it takes some words to say it well enough. "
MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])


@tool(effect="read")
def read(path: str) -> str:
    """Read a file."""
    return f"Contents of {path}: {WORDS * 4}"


def reader(seen: list[ModelRequest], steps: int = 12) -> Agent:
    def answer(request: ModelRequest) -> Any:
        seen.append(request)
        last = request.messages[-1]
        done = sum(m.role == "assistant" for m in request.messages) > 500 or request.turn % (steps + 1) == steps
        return f"Done with {last.role}. {WORDS}" if done else [call("read", path=f"src/{request.turn}.py")] * 2

    return Agent("reader", instructions="Read.", model=ScriptedProvider(answer), tools=[read])


async def conversation(policy: Any, seen: list[ModelRequest], turns: int = 6) -> RunResult:
    executor = CrewExecutor(reader(seen), history=policy)
    result: Any = None

    for turn in range(turns):
        result = await executor.execute(f"Question {turn}: never touch /etc/{turn}. {WORDS}", history=result)

    return result


def as_bytes(requests: Any) -> list[bytes]:
    """The whole content of each request as bytes."""
    return [
        repr((r.instructions, r.tools, r.settings, r.turn, r.agent)).encode() + MESSAGES.dump_json(list(r.messages))
        for r in requests
    ]


@pytest.mark.parametrize(
    "policy",
    [
        Rolling(),
        Rolling(limit=24, prune_to=23),
        Rolling(limit=9),
        Unbounded(),
        HeadTail(max_messages=30, preserve_last_n=8),
        chain(MaskToolResults(keep_recent=4), Rolling(limit=40)),
        MaskToolResults(keep_recent=3),
    ],
    ids=lambda policy: f"{policy.name}-{getattr(policy, 'limit', '')}",
)
@pytest.mark.filterwarnings("ignore:prune_to")
async def test_simulator_and_live_run_send_equal_requests(policy: Any) -> None:
    """Byte for byte, whatever policy the transcript was recorded with."""
    recorded: list[ModelRequest] = []
    live: list[ModelRequest] = []
    other = await conversation(Unbounded(), recorded)
    mine = await conversation(policy, live)
    again = simulate(mine, {"same": policy}, crew=reader([])).rows[0]
    assert as_bytes(again.requests) == as_bytes(live)
    assert len(live) == 6 * 13
    # Recorded without a bound, replayed under one: the messages differ in their ids and times alone.
    moved = simulate(other, {"moved": policy}, crew=reader([])).rows[0]
    assert [len(r.messages) for r in moved.requests] == [len(r.messages) for r in live]


async def test_views_cut_by_tokens_are_equal() -> None:
    """Counts are calibrated by the same bills, so that `truncate` cuts at the same places."""
    seen: list[ModelRequest] = []

    def agent(requests: list[ModelRequest]) -> Agent:
        made = reader(requests)
        return Agent("reader", instructions="Read.", model=made.model, tools=[read], max_input_tokens=3000)

    executor = CrewExecutor(agent(seen), history=Truncate())
    result: Any = None

    for turn in range(4):
        result = await executor.execute(f"Question {turn}. {WORDS}", history=result)

    again = simulate(result, {"same": Truncate()}, crew=agent([])).rows[0]
    assert as_bytes(again.requests) == as_bytes(seen)
    assert any("truncated to fit" in str(r.messages) for r in seen)


async def test_sliding_window_costs_more_than_no_pruning() -> None:
    """A prefix that changes with every request writes the cache and never reads it."""
    result = await conversation(Unbounded(), [], turns=10)
    policies = {
        "unbounded": Unbounded(),
        "sliding": Rolling(limit=40, prune_to=40),
        "rolling": Rolling(limit=40),
        "checkpoint": Checkpoint(trigger_at=40, keep_recent=10),
    }
    simulation = simulate(result, policies, Prices())
    unbounded, sliding, rolling, checkpoint = simulation.rows
    assert sliding.cost > unbounded.cost > rolling.cost
    assert rolling.cache_share > 0.7 > sliding.cache_share
    assert sliding.prefix_breaks > 5 * rolling.prefix_breaks > unbounded.prefix_breaks == 0
    assert (unbounded.summaries, rolling.summaries) == (0, 0)
    assert checkpoint.summaries > 3
    assert max(rolling.tokens) < max(unbounded.tokens)

    for row in simulation.rows:
        assert row.valid == len(row.billed)
        assert row.goal == 1.0


async def test_pruned_request_has_a_tenth_of_the_tokens() -> None:
    """At 500 messages, compared with no limit; the run is the cheapest."""
    recorded = await CrewExecutor(reader([], steps=250), history="unbounded", limits=Limits(rounds=None)).execute("Go.")
    assert len(recorded.transcript) > 500
    policies = {"unbounded": "unbounded", "sliding": Rolling(limit=50, prune_to=50), "rolling": "rolling"}
    unbounded, sliding, rolling = simulate(recorded, policies).rows
    assert rolling.tokens[-1] <= 0.1 * unbounded.tokens[-1]
    assert rolling.cost < unbounded.cost < sliding.cost


async def test_facts_and_constraints_are_searched_at_the_end() -> None:
    """A user sentence with a word such as "never" is a constraint."""
    result = await conversation(Unbounded(), [], turns=8)
    simulation = simulate(result, [Unbounded(), Rolling(limit=20)], facts=["/etc/0", "/etc/7", "nowhere"])
    assert simulation.rows[0].facts == ("/etc/0", "/etc/7")
    assert simulation.rows[1].facts == ("/etc/7",)
    assert len(simulation.constraints) == 8
    assert len(simulation.rows[1].constraints) < len(simulation.rows[0].constraints) == 8


def test_transcripts_of_other_formats_are_read() -> None:
    """OpenAI and Anthropic formats, as dicts or as JSON."""
    openai = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where is it?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"x": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "Here."},
        {"role": "assistant", "content": "It is here."},
    ]
    anthropic = {
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": "Where is it?"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "find", "input": {"x": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "Here."}]},
            {"role": "assistant", "content": [{"type": "text", "text": "It is here."}]},
        ],
    }

    for source in (openai, json.dumps(openai), anthropic, json.dumps(anthropic).encode()):
        row = simulate(source, ["rolling"]).rows[0]
        assert [len([m for m in r.messages if m.role != "system"]) for r in row.requests] == [1, 3]
        assert row.valid == 2


@pytest.mark.parametrize("source", ["{", '{"x": 1}', '[{"role": "robot", "content": ""}]', '"hello"', "[1]"])
def test_invalid_transcripts_are_refused(source: str) -> None:
    """Every unreadable input is an `InvalidInput`."""
    with pytest.raises((InvalidInput, OSError)):
        simulate(source)


async def test_crew_with_branches_is_replayed() -> None:
    """Requests of branches count, and each branch starts from the history at that point."""
    seen: list[ModelRequest] = []

    def says(text: str) -> ScriptedProvider:
        def answer(request: ModelRequest) -> str:
            seen.append(request)
            return text

        return ScriptedProvider(answer)

    editor = Agent("editor", model=says(f"The end. {WORDS}"))
    one, two = (Agent(name, model=says(f"I am {name}. {WORDS}")) for name in ("one", "two"))
    panel = Parallel("panel", branches=[one, two], then=editor)
    chief = Agent("chief", model=says("[GO]"), routes=[Route("[GO]", to=panel)])
    crew = Crew("c", agents=[chief, one, two, editor], groups=[panel])
    result = await CrewExecutor(crew).execute("Look into it.")
    row = simulate(result, ["rolling"], crew=crew).rows[0]
    assert sorted(as_bytes(row.requests)) == sorted(as_bytes(seen))
    stored = json.dumps({"transcript": MESSAGES.dump_python(list(result.transcript), mode="json"), "branches": []})
    assert len(simulate(stored, ["rolling"]).rows[0].requests) == 2

    with pytest.raises(DefinitionError):
        simulate(result, ["rolling"], crew=chief if False else Agent("other", model=says("x")))


async def test_recorded_summaries_are_left_out() -> None:
    """They are the result of another policy."""
    result = await conversation(Checkpoint(trigger_at=20, keep_recent=4), [])
    assert any(isinstance(m, SummaryMessage) for m in result.transcript)
    assert not any(isinstance(m, SummaryMessage) for m in read_recording(result).messages)
    row = simulate(result, [Unbounded()]).rows[0]
    assert len(row.requests) == 78


async def test_report_as_table_json_and_chart() -> None:
    """All three have the same numbers."""
    result = await conversation(Unbounded(), [])
    simulation = simulate(result)
    assert [row.policy for row in simulation.rows] == ["unbounded", "sliding 50", "rolling 50"]
    table = simulation.table().splitlines()
    assert len(table) == 4
    assert all(name in "\n".join(table) for name in ("unbounded", "sliding 50", "rolling 50", "$"))
    found = json.loads(json.dumps(simulation.as_dict()))
    assert [len(policy["tokens"]) for policy in found["policies"]] == [78, 78, 78]
    root = ET.fromstring(simulation.svg())
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 3


async def test_explicit_compression_can_be_simulated(tmp_path: Path) -> None:
    """Request parameters can be simulated too."""
    from crew import WholeHistory

    result = await conversation(Unbounded(), [])
    file = tmp_path / "run.json"
    file.write_bytes(MESSAGES.dump_json(list(result.transcript)))
    parameters = RequestParameters(compression_strategy=WholeHistory())
    plain, compressed = (simulate(file, ["unbounded"], parameters=p).rows[0] for p in (None, parameters))
    assert compressed.summaries > 3
    assert max(compressed.tokens) < max(plain.tokens) / 2
