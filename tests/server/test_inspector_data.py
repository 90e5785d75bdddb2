"""What the inspector shows of a run, rebuilt from its stored events and state."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from crew import Agent, Crew, CrewExecutor, Parallel, ScriptedProvider, call, tool
from crew.errors import RunError, Unavailable
from crew.history.policies.summarizing import Summarize
from crew.messages import SummaryMessage
from crew.runs.interfaces import RunReader
from crew.server.inspector_data import RunView, find_message, policy_text, recording_json, search_messages
from crew.server.inspector_what_if import choices, describe, replay
from crew.simulator import read_recording
from crew.store.memory import MemoryStore
from tests.support.providers import RecordingProvider


@tool(effect="read")
def look(word: str) -> str:
    """Look a word up."""
    return f"{word}: found. " + "More about it. " * 20


@tool(effect="write", approval="always")
def pay(amount: int) -> str:
    """Pay a bill."""
    return f"{amount} paid."


def words(count: int, last: Any = "Done.") -> list[Any]:
    return [*[call("look", word=f"word {n}") for n in range(count)], last]


async def view_of(store: RunReader, run_id: str, step: int = 10_000) -> dict[str, Any]:
    """The page's data of a run; with a small `step`, merged from many updates, as a live page has it."""
    view, merged = RunView(), {}
    record = await store.run(run_id)

    while page := await store.events(run_id, view.cursor, step):
        before = view.cursor
        view.update(record, page)
        part = json.loads(json.dumps(view.changes(before, record.info.status)))
        merged = merge(merged, part)

    return merged


def merge(known: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """As `merge` in model.js: objects replace those with the same number."""
    if not known:
        return part

    def put(items: list[Any], changed: list[Any]) -> None:
        for item in changed:
            items[item["i"] : item["i"] + 1] = [item]

    for number, thread in enumerate(part["threads"]):
        if number == len(known["threads"]):
            known["threads"].append(thread)
        else:
            put(known["threads"][number]["messages"], thread["messages"])
            put(known["threads"][number]["requests"], thread["requests"])

    put(known["spans"], part["spans"])
    return {**part, "threads": known["threads"], "spans": known["spans"]}


def sent_positions(thread: dict[str, Any]) -> list[list[int]]:
    """The positions of the messages in each request, unfolded as the page does it."""
    found: list[list[list[int]]] = []

    for request in thread["requests"]:
        base = [] if request["base"] is None else found[request["base"]][: request["same"]]
        found.append([*base, *request["lines"]])

    return [[line[0] for line in lines] for lines in found]


async def test_each_request_lists_exactly_the_messages_that_the_model_got() -> None:
    """The unfolded lines of all requests are those that the provider received, also after prunings."""
    model = RecordingProvider(*words(30))
    store = MemoryStore()
    executor = CrewExecutor(Agent("reader", model=model, tools=[look]), store=store, max_messages_per_request=12)
    result = await executor.execute("Find the words.")
    [main] = (await view_of(store, result.run_id))["threads"]
    ids = {message["pos"]: message["id"] for message in main["messages"]}

    assert [[ids[place] for place in places] for places in sent_positions(main)] == [
        [message.id for message in shown] for shown in model.shown
    ]
    pruned = next(request for request in main["requests"] if request["before"])
    assert pruned["before"][0]["reason"] == "13 messages are more than the limit of 12"
    assert set(pruned["before"][0]["ids"]).isdisjoint(sent_positions(main)[pruned["i"]])


@pytest.mark.parametrize("step", [1, 7])
async def test_a_live_page_ends_with_the_data_of_a_page_that_is_opened_later(step: int) -> None:
    """Changes since a cursor, merged one after the other, equal the whole."""
    store = MemoryStore()
    model = ScriptedProvider(*words(14, call("pay", amount=3)), "Paid.", summary="What was found before.")
    executor = CrewExecutor(
        Agent("reader", model=model, tools=[look, pay]), store=store, history=Summarize(limit=10, prune_to=4)
    )
    paused = await executor.execute("Find the words, then pay.")
    result = await executor.resume(paused.run_id, {paused.pauses[0].id: True})

    assert await view_of(store, result.run_id, step) == await view_of(store, result.run_id)


async def test_the_timeline_has_agents_requests_tools_branches_and_their_parents() -> None:
    """A span names its parent; a branch has a transcript of its own, which continues that of its parent."""
    left, right = (Agent(name, model=ScriptedProvider(f"{name} agrees.")) for name in ("left", "right"))
    last = Agent("last", model=ScriptedProvider("Both agree."))
    first = Agent(
        "first",
        model=ScriptedProvider(call("look", word="a"), call("transfer_to_panel")),
        tools=[look],
        handoffs=["panel"],
    )
    crew = Crew(
        "c",
        agents=[first, left, right, last],
        groups=[Parallel("panel", branches=[left, right], then=last)],
        entry=first,
    )
    store = MemoryStore()
    result = await CrewExecutor(crew, store=store).execute("Decide.")
    data = await view_of(store, result.run_id)
    spans = data["spans"]
    tree = [(span["k"], span["name"], spans[span["p"]]["name"] if span["p"] > 0 else "") for span in spans[1:]]

    assert tree == [
        ("agent", "first", ""),
        ("chat", "", "first"),
        ("tool", "look", "first"),
        ("chat", "", "first"),
        ("handoff", "panel", "first"),
        ("parallel", "panel", ""),
        ("branch", "left", "panel"),
        ("agent", "left", "left"),
        ("branch", "right", "panel"),
        ("agent", "right", "right"),
        ("chat", "", "left"),
        ("chat", "", "right"),
        ("agent", "last", ""),
        ("chat", "", "last"),
    ]
    assert all(span["e"] is not None and span["e"] >= span["s"] for span in spans)
    assert [(t["name"], t["parent"], t["inherited"]) for t in data["threads"][1:]] == [("left", 0, 5), ("right", 0, 5)]
    found = find_message((await store.run(result.run_id)).state, f"{result.run_id}/left", 0)
    assert found is not None
    assert found.id == f"{result.run_id}:0", "an inherited message is the parent's"


async def test_a_pause_has_everything_that_a_person_needs() -> None:
    """Tool, arguments and effect; after the answer its span is closed, and the waiting time is left out."""
    store = MemoryStore()
    executor = CrewExecutor(
        Agent("clerk", model=ScriptedProvider(call("pay", amount=3), "Paid."), tools=[pay]), store=store
    )
    paused = await executor.execute("Pay.")
    data = await view_of(store, paused.run_id)
    [pause] = data["run"]["pauses"]

    assert (pause["name"], pause["arguments"], pause["effect"]) == ("pay", {"amount": 3}, "write")
    assert [(span["name"], span["e"]) for span in data["spans"] if span["k"] == "held"] == [("pay", None)]

    await executor.resume(paused.run_id, {pause["id"]: True})
    data = await view_of(store, paused.run_id)
    assert [span["answer"] for span in data["spans"] if span["k"] == "held"] == ["approved"]
    assert data["run"]["waited"] > 0
    assert all(request["at"] <= data["run"]["seconds"] for request in data["threads"][0]["requests"])


async def test_a_failed_run_shows_its_error_until_it_is_resumed() -> None:
    """The request that failed has no reply; the resumed one follows it."""
    store = MemoryStore()
    lines = [call("look", word="a"), Unavailable("the service is down", provider="p", model="m")]
    failing = Agent("reader", model=ScriptedProvider(*lines), tools=[look])
    with pytest.raises(RunError):
        await CrewExecutor(failing, store=store).execute("Go.", run_id="failed")

    data = await view_of(store, "failed")
    assert "the service is down" in data["run"]["error"]["text"]
    assert data["threads"][0]["requests"][-1]["failed"]

    whole = Agent("reader", model=ScriptedProvider(call("look", word="a"), "Done."), tools=[look])
    await CrewExecutor(whole, store=store).resume("failed")
    data = await view_of(store, "failed")
    assert data["run"]["error"] is None
    assert [("reply" in request, "failed" in request) for request in data["threads"][0]["requests"]] == [
        (True, False),
        (False, True),
        (True, False),
    ]


async def test_the_turns_of_a_conversation_share_positions() -> None:
    """The first request of a later turn lists all its messages, those of earlier turns by their positions."""
    model = RecordingProvider(lambda request: f"Answer {request.turn}.")
    store = MemoryStore()
    executor = CrewExecutor(Agent("chat", model=model), store=store)
    results = [await executor.execute(f"Question {n}?", conversation="c") for n in range(3)]
    [main] = (await view_of(store, results[2].run_id))["threads"]

    assert main["inherited"] == 4
    assert len(main["messages"]) == 6
    assert sent_positions(main) == [[0, 1, 2, 3, 4]]
    assert main["requests"][0]["same"] == 3, "the request of the turn before is its prefix"


async def test_a_search_finds_arguments_results_and_texts_of_branches() -> None:
    """All words must be in one message; parts of words count."""
    store = MemoryStore()
    helper = Agent("helper", model=ScriptedProvider("The answer is forty-two."))
    model = ScriptedProvider(call("look", word="needle"), call("ask_helper", request="What is it?"), "Done.")
    result = await CrewExecutor(Agent("main", model=model, tools=[look, helper.as_tool()]), store=store).execute("Go.")
    state = (await store.run(result.run_id)).state

    assert search_messages(state, "NEEDLE") == {result.run_id: [1, 2]}
    assert {path.rpartition("/")[2]: places for path, places in search_messages(state, "forty answer").items()} == {
        result.run_id: [4],
        next(b.run_id.rpartition("/")[2] for b in result.branches): [1],
    }
    assert search_messages(state, "needle forty") == {}


async def test_the_export_of_a_run_can_be_simulated() -> None:
    """`crew simulate` reads the transcript and the branches."""
    store = MemoryStore()
    result = await CrewExecutor(Agent("reader", model=ScriptedProvider(*words(4)), tools=[look]), store=store).execute(
        "Go."
    )
    exported = json.loads(recording_json({}, await store.run(result.run_id), []))

    assert len(read_recording(exported).messages) == len(result.transcript)


async def test_what_if_compares_replays_and_shows_what_each_request_held() -> None:
    """A column has a letter for each message before the reply; the run's own policy is replayed as a base."""
    store = MemoryStore()
    model = ScriptedProvider(*words(20), summary="What was found before.")
    executor = CrewExecutor(
        Agent("reader", model=model, tools=[look]), store=store, history=Summarize(limit=12, prune_to=4)
    )
    result = await executor.execute("Find the words.")
    record, view = await store.run(result.run_id), RunView()
    view.update(record, await store.events(result.run_id, None, 10_000))

    base, unbounded = (replay(record.state, view, policy, 12) for policy in ("as run", "unbounded"))
    assert base["cost"] > 0
    assert base["tokens"] < unbounded["tokens"]
    assert (base["breaks"] > 0, base["summaries"] > 0, unbounded["breaks"]) == (True, True, 0)
    assert [sum(int(n or 1) for n in _counts(column)) for column in base["columns"]] == [2 * n + 1 for n in range(21)]
    assert "s" in base["columns"][-1]
    assert "e" not in base["columns"][-1]
    assert set(unbounded["columns"][-1]) <= set("cf0123456789")
    assert describe(view)["own"] == "summarize(limit=12, prune_to=4)"
    assert {one["policy"] for one in describe(view)["offered"]} == set(choices(12))
    assert any(isinstance(message, SummaryMessage) for message in record.state.transcript)


def _counts(column: str) -> list[str]:
    return re.findall(r"[a-z](\d*)", column)


def test_a_policy_is_written_as_in_python() -> None:
    """Chains are nested; options that have their defaults are left out."""
    spec = {"name": "chain", "policies": [{"name": "mask_tool_results", "keep_recent": 7}, {"name": "rolling"}]}
    assert policy_text(spec) == "chain(mask_tool_results(keep_recent=7), rolling())"
    assert policy_text({}) == ""


async def test_events_of_later_commits_wait_for_their_messages() -> None:
    """A run goes on between the reading of its state and of its events; what is shown is the same in the end."""
    store, records = MemoryStore(), []

    @tool(effect="read")
    async def note(word: str) -> str:
        """Note the state of the run."""
        records.append(await store.run("live"))
        return word

    lines = [*[call("note", word=f"word {n}") for n in range(6)], "Done."]
    agent = Agent("reader", model=ScriptedProvider(*lines), tools=[note])
    await CrewExecutor(agent, store=store, max_messages_per_request=6).execute("Go.", run_id="live")
    view, merged = RunView(), {}

    for record in [*records, await store.run("live")]:
        before = view.cursor
        view.update(record, await store.events("live", before))
        merged = merge(merged, json.loads(json.dumps(view.changes(before, record.info.status))))

    assert merged == await view_of(store, "live")
    assert all("reply" in request for request in merged["threads"][0]["requests"])
