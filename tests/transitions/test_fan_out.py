"""`Parallel.map`: one agent runs once for each item, and the results are joined in the order of the items."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from crew import (
    Agent,
    Crew,
    CrewExecutor,
    Limits,
    NodeResult,
    Parallel,
    Quorum,
    RunError,
    ScriptedProvider,
    call,
    choose,
    handoff,
    tool,
)
from crew.agents.mermaid import mermaid
from crew.errors import BranchesFailed, DefinitionError
from crew.interfaces import ModelRequest
from crew.runs.events import BranchStarted
from crew.runs.state import ChooseNext
from tests.support.runs import collect


class Files(BaseModel):
    files: list[str]


def item_of(request: ModelRequest) -> str:
    """The item of a branch: the last line of what it was told."""
    return request.messages[-1].text.splitlines()[-1]  # type: ignore[union-attr]


def reviewer(reply: Any = lambda request: f"Reviewed {item_of(request)}.") -> Agent:
    return Agent("reviewer", model=ScriptedProvider(reply))


def lister(*files: str, **options: Any) -> Agent[Any, Files]:
    return Agent("lister", model=ScriptedProvider(Files(files=list(files)).model_dump_json()), output=Files, **options)


def joined(*results: tuple[str, str]) -> str:
    parts = [f"## reviewer.{n}: {item}\n{text}" for n, (item, text) in enumerate(results, 1)]
    return "[Results of reviews]\n" + "\n\n".join(parts)


async def test_each_item_of_an_output_is_one_branch() -> None:
    """Each branch is told its item; keys and join follow the order of the items."""
    told: list[str] = []

    def review(request: ModelRequest) -> str:
        told.append(request.messages[-1].text)  # type: ignore[union-attr]
        return f"Reviewed {item_of(request)}."

    reviews = Parallel.map("reviews", reviewer(review), items="files")
    executor = CrewExecutor(lister("a.py", "b.py", then=reviews))
    events, result = await collect(executor.execute_stream("Review.", run_id="r"))
    assert result.text == joined(("a.py", "Reviewed a.py."), ("b.py", "Reviewed b.py."))
    assert [branch.run_id for branch in result.branches] == ["r/reviewer.1", "r/reviewer.2"]
    assert [event.group for event in events if isinstance(event, BranchStarted)] == ["reviews", "reviews"]
    assert told[0] == (
        "[You are reviewer, branch 1 of 2 of reviews. Work only on this item of the user's request:]\na.py"
    )


async def test_items_come_from_the_payload_of_a_handoff() -> None:
    """The model fills in the list; items that are no texts are JSON."""

    class Task(BaseModel):
        file: str
        lines: int

    class Tasks(BaseModel):
        tasks: list[Task]

    reviews = Parallel.map("reviews", reviewer(), items="tasks")
    arguments: Any = {"tasks": [{"file": "a.py", "lines": 3}]}
    model = ScriptedProvider(call("transfer_to_reviews", **arguments))
    agent = Agent("lead", model=model, handoffs=[handoff(reviews, payload=Tasks)])
    result = await CrewExecutor(agent).execute("Review.")
    assert 'Reviewed {"file":"a.py","lines":3}.' in result.output


async def test_items_come_from_a_function() -> None:
    """Of the reply, of a join, or of the input of a run that starts with the group."""

    def words(result: NodeResult[Any]) -> list[str]:
        return result.text.split()

    reviews = Parallel.map("reviews", reviewer(), items=words)
    crew = Crew("c", entry=reviews)
    assert (await CrewExecutor(crew).execute("x y")).output == joined(("x", "Reviewed x."), ("y", "Reviewed y."))

    def outputs(result: NodeResult[Any]) -> Any:
        return (f"{output}!" for output in result.output)

    again = Parallel.map("again", Agent("second", model=ScriptedProvider(item_of)), items=outputs)
    first = Parallel.map("reviews", reviewer(), items=words, then=again)
    result = await CrewExecutor(Crew("c", entry=first)).execute("x y")
    assert "## second.1: Reviewed x.!\nReviewed x.!" in result.output
    assert [branch.run_id.partition("/")[2] for branch in result.branches] == [
        "reviewer.1",
        "reviewer.2",
        "2.second.1",
        "2.second.2",
    ]


async def test_without_items_the_group_joins_at_once() -> None:
    """Whatever its error policy is; the next agent is told."""
    model = ScriptedProvider(lambda request: request.messages[-1].text)  # type: ignore[union-attr]
    editor = Agent("editor", model=model)
    reviews = Parallel.map("reviews", reviewer(), items="files", then=editor, on_error=Quorum(2))
    result = await CrewExecutor(lister(then=reviews)).execute("Review.")
    assert result.output == "[Results of reviews]\n(There were no items.)"
    assert result.agent == "editor"
    alone = await CrewExecutor(lister(then=Parallel.map("reviews", reviewer(), items="files"))).execute("Review.")
    assert (alone.stop_reason, alone.text) == ("completed", result.output)


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        (lambda result: "abc", "The items of the group 'reviews' must be a list, not 'abc'"),
        (lambda result: {"a": 1}, "must be a list, not {'a': 1}"),
        (lambda result: 5, "must be a list, not 5"),
        (lambda result: ["x"] * 4, "The group 'reviews' got 4 items, at most 3 are allowed. Raise max_items="),
        (lambda result: iter(int, 1), "got more than 3 items, at most 3"),
        (lambda result: [object()], "The items of the function '<lambda>' for the group 'reviews' can't be read: "),
        (lambda result: 1 / 0, "'<lambda>' for the group 'reviews' can't be read: ZeroDivisionError: division by zero"),
        (lambda result: (1 / n for n in (1, 0)), "for the group 'reviews' can't be read: ZeroDivisionError"),
    ],
    ids=["text", "mapping", "number", "too many", "endless", "not JSON", "raises", "raises late"],
)
@pytest.mark.parametrize("way", ["then", "handoff", "join"])
async def test_items_that_can_not_be_used_fail_the_run_until_a_resume(
    way: str, items: Any, problem: str, tmp_path: Path
) -> None:
    """The reply or join that led there is committed, and not asked for again."""
    asked: list[str] = []

    def crew(source: Any) -> Crew:
        reviews = Parallel.map("reviews", reviewer(), items=source, max_items=3)

        def lead(request: ModelRequest) -> Any:
            asked.append("lead")
            return call("transfer_to_reviews") if way == "handoff" else "Go on."

        agent = Agent(
            "lead",
            model=ScriptedProvider(lead),
            handoffs=[reviews] if way == "handoff" else [],
            then=reviews if way == "then" else None,
        )
        group = Parallel("first", branches=[agent], then=reviews)
        return Crew(
            "c", agents=[agent], groups=[group] if way == "join" else [], entry=group if way == "join" else None
        )

    async with CrewExecutor(crew(items), store=tmp_path / "runs.db") as first:
        with pytest.raises(RunError) as raised:
            await first.execute("Review.", run_id="r")

    assert problem in str(raised.value)

    if way != "handoff":
        assert isinstance(raised.value.result.state.next, ChooseNext)

    async with CrewExecutor(crew(lambda result: ["x"]), store=tmp_path / "runs.db") as second:
        done = await second.resume("r")

    assert done.output.endswith("## reviewer.1: x\nReviewed x.")
    assert asked == ["lead"]


@pytest.mark.parametrize(("count", "got"), [(1, "1 item"), (2, "2 items")])
async def test_fewer_items_than_a_quorum_are_refused_before_a_branch_starts(count: int, got: str) -> None:
    """With the numbers; a resume reads the items again."""
    items = ["x"] * count
    reviews = Parallel.map("reviews", reviewer(), items=lambda result: items, on_error=Quorum(3))
    executor = CrewExecutor(Agent("lead", model=ScriptedProvider("Go on."), then=reviews))

    with pytest.raises(
        RunError, match=f"'reviews' got {got}, but on_error=.*3.* needs at least 3. Pass more"
    ) as raised:
        await executor.execute("Review.", run_id="r")

    assert raised.value.result.branches == ()
    items += ["x"] * (3 - count)
    assert (await executor.resume("r")).stop_reason == "completed"


async def test_branches_share_concurrency_and_limits() -> None:
    """`max_concurrency` holds for items, and each gets an equal share of the remaining rounds."""
    running, most = 0, 0

    @tool
    async def work() -> str:
        """Work."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return "done"

    def reply(request: ModelRequest) -> Any:
        return call("work") if len(request.messages) < 4 else "Done."

    worker = Agent("reviewer", model=ScriptedProvider(reply), tools=[work])
    reviews = Parallel.map("reviews", worker, items="files", max_concurrency=2)
    crew = Crew("c", agents=[lister(*"abcdef", then=reviews)])
    result = await CrewExecutor(crew).execute("Go.")
    assert [branch.outcome for branch in result.branches] == ["completed"] * 6
    assert most == 2
    limited = await CrewExecutor(crew, limits=Limits(rounds=7)).execute("Go.")
    assert [branch.outcome for branch in limited.branches] == ["limit"] * 6
    assert limited.usage.requests == 7, "one for the list, and one for each item"


async def test_a_failed_item_is_repeated_alone_after_a_resume(tmp_path: Path) -> None:
    """The keys of the branches stay, and items that are done are not repeated."""
    asked: list[str] = []

    def crew(broken: str) -> Crew:
        def review(request: ModelRequest) -> Any:
            item = item_of(request)
            asked.append(item)
            return OSError("down") if item == broken else f"Reviewed {item}."

        reviews = Parallel.map("reviews", reviewer(review), items="files", on_error="fail_fast", max_concurrency=1)
        return Crew("c", agents=[lister("a", "b", "c", then=reviews)])

    async with CrewExecutor(crew("b"), store=tmp_path / "runs.db") as first:
        with pytest.raises(BranchesFailed, match=r"the branch 'reviewer\.2' failed"):
            await first.execute("Review.", run_id="r")

    async with CrewExecutor(crew(""), store=tmp_path / "runs.db") as second:
        done = await second.resume("r")

    assert done.text == joined(("a", "Reviewed a."), ("b", "Reviewed b."), ("c", "Reviewed c."))
    assert asked == ["a", "b", "b", "c"]


async def test_an_approval_within_an_item_pauses_and_continues_in_another_executor(tmp_path: Path) -> None:
    """Each item has its own pause."""

    @tool(approval=True)
    def publish(file: str) -> str:
        """Publish."""
        return f"published {file}"

    def executor() -> CrewExecutor[Any, Any]:
        def reply(request: ModelRequest) -> Any:
            last = request.messages[-1]
            return call("publish", file=item_of(request)) if last.role == "user" else "Done."

        worker = Agent("reviewer", model=ScriptedProvider(reply), tools=[publish])
        reviews = Parallel.map("reviews", worker, items="files")
        return CrewExecutor(lister("a", "b", then=reviews), store=tmp_path / "runs.db")

    async with executor() as first:
        paused = await first.execute("Go.", run_id="r")

    assert [pause.arguments for pause in paused.pauses] == [{"file": "a"}, {"file": "b"}]

    async with executor() as second:
        done = await second.resume("r", {pause.id: True for pause in paused.pauses})

    assert done.text == joined(("a", "Done."), ("b", "Done."))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Parallel("g", branches=["a", "b"], items="files"), "with items there is one branch"),
        (lambda: Parallel.map("g", "a", items=5), "items must be a function of a NodeResult, not 5"),
        (lambda: Parallel.map("g", "a", items=lambda: ["x"]), "items must accept one argument, the NodeResult"),
        (
            lambda: Crew("c", entry=Parallel.map("g", reviewer(), items=str.split, max_items=2, on_error=Quorum(3))),
            r"on_error=Quorum\(3\) must be at most 2, which is max_items",
        ),
        (lambda: Crew("c", agents=[lister(then=Parallel.map("g", reviewer(), items="fils"))]), "has the fields files"),
        (
            lambda: Crew("c", agents=[Agent("a", model="openai:x", then=Parallel.map("g", reviewer(), items="files"))]),
            "items='files' must be a field of the output of 'a', which has none",
        ),
        (
            lambda: Crew(
                "c", agents=[Agent("a", model="openai:x", handoffs=[Parallel.map("g", reviewer(), items="files")])]
            ),
            "must be a field of the payload of the handoff of 'a', which has none",
        ),
        (
            lambda: Crew("c", entry=Parallel.map("g", reviewer(), items="files")),
            "names a field, but the run starts here; use a function",
        ),
        (lambda: Crew("c", entry=Parallel.map("g", reviewer(), items=str.split, max_items=0)), "max_items must be"),
    ],
    ids=["two", "number", "no argument", "quorum", "misspelt", "no output", "no payload", "entry", "no items"],
)
def test_a_wrong_fan_out_is_refused_when_it_is_built(make: Any, problem: str) -> None:
    """Each edge to the group must have the field of its items."""
    with pytest.raises(DefinitionError, match=problem):
        make()


def test_the_graph_shows_the_fan_out() -> None:
    """As an edge for each item."""
    crew = Crew("c", agents=[lister(then=Parallel.map("reviews", reviewer(), items="files"))])
    assert "  reviews -- each item --> reviewer" in list(mermaid(crew))


def test_a_file_describes_a_fan_out(tmp_path: Path) -> None:
    """By the field of an output, or by a function."""
    (tmp_path / "fan_out_types.py").write_text(
        "from pydantic import BaseModel\n\nclass Files(BaseModel):\n    files: list[str]\n\n"
        "def words(result):\n    return result.text.split()\n"
    )
    file = tmp_path / "config.yaml"
    text = """
crews:
  c:
    agents:
      lister: {model: 'scripted:{"files": ["a", "b"]}', output: "fan_out_types:Files", then: reviews}
      reviewer: {model: "scripted:Fine."}
    groups:
      reviews: {branches: [reviewer], items: ITEMS, max_items: 5}
"""
    file.write_text(text.replace("ITEMS", "files"))
    result = CrewExecutor.from_config(file, "c").execute_sync("Go.")
    assert result.text == joined(("a", "Fine."), ("b", "Fine."))
    file.write_text(text.replace("ITEMS", "fan_out_types:words"))
    assert len(CrewExecutor.from_config(file, "c").execute_sync("Go.").branches) == 3


@settings(max_examples=25, deadline=None)
@given(items=st.lists(st.text(min_size=1, max_size=40), max_size=8), limit=st.integers(3, 9))
def test_any_items_are_joined_in_their_order_within_the_bound(items: list[str], limit: int) -> None:
    """The history stays within its bound, and every item has exactly one branch."""
    reviews = Parallel.map("reviews", reviewer(lambda request: "Fine."), items=lambda result: items)
    crew = Crew("c", agents=[Agent("lead", model=ScriptedProvider("Go on."), then=reviews)])
    result = CrewExecutor(crew, max_messages_per_request=limit).execute_sync("Review.")
    assert len(result.branches) == len(items)
    assert result.metrics.messages <= limit
    assert [branch.run_id.rpartition(".")[2] for branch in result.branches] == [str(n + 1) for n in range(len(items))]


async def test_a_choice_may_loop_over_fan_outs() -> None:
    """A group runs again with other items, until the function ends the run."""
    rounds: list[int] = []

    def again(result: NodeResult[Any]) -> str | None:
        rounds.append(len(result.output))
        return "lead" if len(rounds) < 3 else None

    reviews = Parallel.map(
        "reviews",
        reviewer(lambda request: "Fine."),
        items=lambda result: range(len(rounds) + 1),
        then=choose(again, targets=["lead"]),
    )
    lead = Agent("lead", model=ScriptedProvider("Go on.", "Go on.", "Go on."), then=reviews)
    result = await CrewExecutor(lead).execute("Review.")
    assert rounds == [1, 2, 3]
    assert result.stop_reason == "completed"
    assert len(result.branches) == 6


@pytest.mark.parametrize("entry", ["group", "planner"])
async def test_a_pruned_stored_conversation_fans_out_in_every_turn(entry: str, tmp_path: Path) -> None:
    """The functions of items and of what follows get the messages that are loaded, whether they read them or not."""
    counts: list[tuple[int, int]] = []

    def items(result: NodeResult[Any]) -> list[str]:
        counts.append((len(result.transcript), len([*result.transcript])))
        return ["a", "b"]

    editor = Agent("editor", model=ScriptedProvider(lambda request: "Printed."))
    reviews = Parallel.map(
        "reviews",
        reviewer(),
        items=items if entry == "group" else "files",
        then=choose(lambda result: "editor", targets=[editor]),
    )
    model = ScriptedProvider(lambda request: Files(files=["a", "b"]).model_dump_json())
    planner = Agent("planner", model=model, output=Files, then=reviews)
    crew = Crew("c", entry=reviews if entry == "group" else planner)

    async with CrewExecutor(crew, store=tmp_path / "runs.db", max_messages_per_request=8) as executor:
        for turn in range(8):
            result = await executor.execute(f"Turn {turn}.", conversation="c", agent=crew.entry_name)
            assert (result.output, len(result.branches)) == ("Printed.", 2)

    assert all(size == read for size, read in counts)


PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
from pydantic import BaseModel
from crew import Agent, CrewExecutor, NodeResult, Parallel, ScriptedProvider, choose

kills, log = sys.argv[1] == "kill", Path("asked.log")


class Files(BaseModel):
    files: list[str]


def review(request):
    item = request.messages[-1].text.splitlines()[-1]

    if kills and item == "c":
        os.kill(os.getpid(), signal.SIGKILL)

    with log.open("a") as file:
        file.write(item + "\\n")

    return f"Reviewed {item}."


def end(result: NodeResult) -> str | None:
    with log.open("a") as file:
        file.write(f"chosen after {len(result.output)}\\n")

    return "editor"


editor = Agent("editor", model=ScriptedProvider("Printed."))
reviewer = Agent("reviewer", model=ScriptedProvider(review))
reviews = Parallel.map(
    "reviews", reviewer, items="files", max_concurrency=1, then=choose(end, targets=[editor])
)
lister = Agent("lister", model=ScriptedProvider('{"files": ["a", "b", "c", "d"]}'), output=Files, then=reviews)


async def main():
    async with CrewExecutor(lister, store="runs.db") as executor:
        result = await (executor.execute("Go.", run_id="r") if kills else executor.resume("r"))
        print(result.text, [branch.run_id for branch in result.branches])


asyncio.run(main())
"""


def test_a_killed_fan_out_continues_with_the_items_that_are_left(tmp_path: Path) -> None:
    """After kill -9 in the middle of an item, another process repeats nothing that was committed."""
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}

    def run(mode: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "program.py", mode]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    assert run("kill").returncode == -signal.SIGKILL
    done = run("resume")
    keys = [f"r/reviewer.{n}" for n in range(1, 5)]
    assert done.stdout.strip() == f"Printed. {keys}", done.stderr
    assert (tmp_path / "asked.log").read_text().splitlines() == ["a", "b", "c", "d", "chosen after 4"]


@tool
def look() -> str:
    """Look."""
    return "seen"


def warnings_of(events: Any) -> list[str]:
    return [event.text for event in events if event.kind == "warned"]


@pytest.mark.parametrize(
    ("rounds", "text"),
    [
        (
            8,
            "each of 4 runs of the group 'reviews' gets 1 of the 7 rounds that are left, but a tool call and an answer",
        ),
        (8, "take 2: 'reviewer' may end at its limit. Raise Limits(rounds=8) by at least 1, or start fewer runs."),
        (9, ""),
        (None, ""),
    ],
)
async def test_a_share_that_is_too_small_for_a_tool_call_is_reported(rounds: int | None, text: str) -> None:
    """Every branch would end at its limit, and the run would be completed with nothing done."""
    worker = Agent(
        "reviewer", model=ScriptedProvider(lambda r: call("look") if r.turn == 0 else "Reviewed."), tools=[look]
    )
    reviews = Parallel.map("reviews", worker, items="files")
    crew = Crew("c", entry=lister("a", "b", "c", "d", then=reviews))
    executor = CrewExecutor(crew, limits=Limits(rounds=rounds))
    events, result = await collect(executor.execute_stream("Go"))
    found = [warning for warning in warnings_of(events) if "each of" in warning]
    assert len(found) == bool(text)
    assert all(text in warning for warning in found)
    assert {branch.outcome for branch in result.branches} == {"limit" if text else "completed"}


@pytest.mark.parametrize(("rounds", "is_reported"), [(5, False), (4, True)])
async def test_an_agent_without_tools_needs_one_round(rounds: int, is_reported: bool) -> None:
    """One round is enough for an answer."""
    reviews = Parallel.map("reviews", reviewer(), items="files")
    crew = Crew("c", entry=lister("a", "b", "c", "d", then=reviews))
    events, _ = await collect(CrewExecutor(crew, limits=Limits(rounds=rounds)).execute_stream("Go"))
    assert any("an answer takes 1: 'reviewer' may end" in text for text in warnings_of(events)) is is_reported


async def test_a_small_share_of_agents_called_as_tools_is_reported_once() -> None:
    """They share the limits as branches do."""
    worker = Agent("worker", model=ScriptedProvider(lambda r: "Done."), tools=[look])
    calls = [call("ask_worker", request="x")] * 3
    boss = Agent("boss", model=ScriptedProvider(calls, "Done."), tools=[worker.as_tool()])
    events, _ = await collect(CrewExecutor(boss, limits=Limits(rounds=5)).execute_stream("Go"))
    found = [text for text in warnings_of(events) if "each of" in text]
    assert len(found) == 1
    assert "each of 3 runs of agents that 'boss' calls gets 1 of the 4 rounds" in found[0]
