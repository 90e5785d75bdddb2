"""Edges that code decides: `then=choose(…)` after an agent or a group."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from crew import Agent, Crew, CrewExecutor, NodeResult, Parallel, Route, RunError, ScriptedProvider, choose
from crew.agents.mermaid import mermaid
from crew.cli import main
from crew.errors import ConfigError, DefinitionError
from crew.runs.events import Routed
from crew.runs.state import ChooseNext
from tests.support.runs import collect


class Review(BaseModel):
    good: bool


def writer(*lines: str, **options: Any) -> Agent:
    return Agent("writer", model=ScriptedProvider(*lines), **options)


def critic(*lines: str, **options: Any) -> Agent[Any, Review]:
    return Agent("critic", model=ScriptedProvider(*lines), output=Review, **options)


BAD, GOOD = '{"good": false}', '{"good": true}'


async def test_a_function_of_the_result_decides_what_follows() -> None:
    """It gets the typed output, and its decision is an event; None ends the run with this answer."""
    seen: list[NodeResult[Review]] = []

    def accept(result: NodeResult[Review]) -> str | None:
        seen.append(result)
        return None if result.output.good else "writer"

    judge = critic(BAD, GOOD, then=choose(accept, targets=["writer"]))
    crew = Crew("c", agents=[writer("One.", "Two.", then=judge), judge])
    executor = CrewExecutor(crew)
    events, result = await collect(executor.execute_stream("Write.", metadata={"tone": "dry"}))
    assert result.output == Review(good=True)
    routed = [(event.agent, event.target, event.function) for event in events if isinstance(event, Routed)]
    assert routed == [
        ("writer", "critic", ""),
        ("critic", "writer", "accept"),
        ("writer", "critic", ""),
        ("critic", None, "accept"),
    ]
    assert [(one.agent, one.output.good, one.text, one.rounds) for one in seen] == [
        ("critic", False, BAD, 2),
        ("critic", True, GOOD, 4),
    ]
    assert [one.metadata for one in seen] == [{"tone": "dry"}] * 2
    assert seen[0].transcript[1].text == "One."  # type: ignore[union-attr]


async def test_a_function_may_return_an_agent_or_a_group() -> None:
    """Objects and names are the same; a group's own choice gets the outputs of its branches."""
    editor = Agent("editor", model=ScriptedProvider("Printed."))
    outputs: list[object] = []

    def after_panel(result: NodeResult[Any]) -> Agent:
        outputs.append((result.agent, result.output))
        return editor

    one, two = critic(GOOD), Agent("two", model=ScriptedProvider("Fine."))
    panel = Parallel("panel", branches=[one, two], then=choose(after_panel, targets=[editor, "writer"]))
    first = writer("Draft.", then=choose(lambda result: panel, targets=[panel]))
    result = await CrewExecutor(Crew("c", agents=[first])).execute("Write.")
    assert (result.agent, result.output) == ("editor", "Printed.")
    assert outputs == [("panel", (Review(good=True), "Fine."))]


def test_the_graph_shows_every_target() -> None:
    """Also the end, which a function may always choose; `then` cycles through a function are not endless."""
    a = Agent("a", model=ScriptedProvider(), then=choose(next_step, targets=["a", "b"]))
    b = Agent("b", model=ScriptedProvider(), then="a")
    lines = list(mermaid(Crew("c", agents=[a, b])))
    wanted = [f'  a -. "next_step" .-> {target}' for target in ("a", "b", "done((end))")]
    assert [line for line in lines if ".->" in line] == wanted


def next_step(result: NodeResult[Any]) -> str | None:
    """Used by a file, too."""
    return "b" if result.agent == "a" else None


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: choose(next_step, targets=[]), "targets is empty"),
        (lambda: choose(next_step, targets="ab"), "targets must be a list, not 'ab'"),
        (lambda: choose(next_step, targets=[3]), r"targets\[0\] must be an agent, a group or a name, not 3"),
        (lambda: choose(next_step, targets=["a", None]), r"targets\[1\] is None, which is always allowed"),
        (lambda: choose("next_step", targets=["a"]), "must be a function of a NodeResult, not 'next_step'"),
        (lambda: choose(slow, targets=["a"]), "must be a synchronous function; .* is async"),
        (lambda: choose(lambda: "a", targets=["a"]), "must accept one argument, the NodeResult; .*lambda.* does not"),  # type: ignore[arg-type, misc]
        (lambda: choose(lambda r, s: "a", targets=["a"]), "must accept one argument, the NodeResult"),  # type: ignore[arg-type, misc]
        (lambda: Crew("c", agents=[writer(then=choose(next_step, targets=["x"]))]), "then of 'writer' leads to 'x'"),
    ],
    ids=["empty", "text", "number", "none", "name", "async", "no argument", "two arguments", "unknown"],
)
def test_a_wrong_choice_is_refused_when_it_is_built(make: Any, problem: str) -> None:
    """With the offending value."""
    with pytest.raises(DefinitionError, match=problem):
        make()


async def slow(result: NodeResult[Any]) -> str:
    return "a"


class Switch:
    """A function that fails until it is repaired."""

    answer: object = "nowhere"

    def __call__(self, result: NodeResult[Any]) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer

        return self.answer


@pytest.mark.parametrize("answer", ["nowhere", 5, KeyError("colour"), Agent("writer2", model="openai:x")], ids=str)
@pytest.mark.parametrize("where", ["agent", "group", "branch"])
async def test_a_failing_function_loses_nothing_and_is_called_again_by_a_resume(
    where: str, answer: object, tmp_path: Path
) -> None:
    """The reply or the join is committed; the resume makes no request twice, and may be in another process."""
    asked: list[str] = []

    def made(switch: Switch) -> Crew:
        def agent(name: str, **options: Any) -> Agent:
            return Agent(name, model=ScriptedProvider(lambda r: asked.append(name) or f"{name}."), **options)

        after = choose(switch, targets=["editor"])
        editor = agent("editor")

        if where == "agent":
            return Crew("c", agents=[agent("writer", then=after), editor])

        one = agent("one", then=after if where == "branch" else None)
        group = Parallel(
            "g", branches=[one, agent("two")], on_error="fail_fast", then=after if where == "group" else None
        )
        return Crew("c", agents=[one, editor], groups=[group], entry=group)

    switch = Switch()
    switch.answer = answer

    async with CrewExecutor(made(switch), store=tmp_path / "runs.db") as first:
        with pytest.raises(RunError) as raised:
            await first.execute("Go.", run_id="r")

    if where != "branch":
        assert isinstance(raised.value.result.state.next, ChooseNext)
        failed = f"The function 'Switch', which chooses what follows {'g' if where == 'group' else 'writer'!r}, failed"
        words = f"{failed}: KeyError: 'colour'" if isinstance(answer, Exception) else "not among its targets: editor"
        assert words in str(raised.value)

    before = sorted(asked)
    repaired = Switch()
    repaired.answer = "editor"

    async with CrewExecutor(made(repaired), store=tmp_path / "runs.db") as second:
        done = await second.resume("r")

    assert "editor." in done.output
    assert sorted(asked) == sorted([*before, "editor", *(["two"] if where == "branch" and "two" not in before else [])])


async def test_a_resume_does_not_call_a_function_that_has_chosen(tmp_path: Path) -> None:
    """The decision is in the state, so that another version of the function changes nothing."""
    editor = Agent("editor", model=ScriptedProvider(OSError("down")))
    agent = writer("Draft.", then=choose(lambda result: "editor", targets=[editor]))

    async with CrewExecutor(agent, store=tmp_path / "runs.db") as first:
        with pytest.raises(RunError):
            await first.execute("Go.", run_id="r")

    def never(result: NodeResult[Any]) -> None:
        raise AssertionError("called again")

    editor = Agent("editor", model=ScriptedProvider("Printed."))
    agent = writer(then=choose(never, targets=[editor]))

    async with CrewExecutor(agent, store=tmp_path / "runs.db") as second:
        assert (await second.resume("r")).output == "Printed."


async def test_routes_come_before_a_choice() -> None:
    """A signal of the model wins, as it does over a fixed `then`."""
    other = Agent("other", model=ScriptedProvider("Other."))
    agent = writer(
        "Help. [OTHER]", routes=[Route("[OTHER]", to=other)], then=choose(lambda r: "writer", targets=["writer"])
    )
    assert (await CrewExecutor(agent).execute("Go.")).output == "Other."


def test_a_file_names_the_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`then: {choose: module:name, targets: […]}`; the graph is drawn from it, and problems have their place."""
    (tmp_path / "rules_of_choice.py").write_text("def pick(result):\n    return 'b' if result.agent == 'a' else None\n")
    file = tmp_path / "config.yaml"
    text = """
crews:
  c:
    agents:
      a: {model: "scripted:A", then: {choose: "rules_of_choice:pick", targets: [b]}}
      b: {model: "scripted:B"}
"""
    file.write_text(text)
    assert CrewExecutor.from_config(file, "c").execute_sync("Go.").output == "B"
    assert main(["show", f"{file}:c"]) == 0
    assert 'a -. "pick" .-> b' in capsys.readouterr().out
    file.write_text(text.replace("rules_of_choice:pick", "rules_of_choice:nothing").replace("[b]", "[x]"))

    with pytest.raises(ConfigError) as raised:
        CrewExecutor.from_config(file, "c")

    assert "config.yaml:5:" in str(raised.value)
    assert "can't load 'rules_of_choice:nothing'" in str(raised.value)


@pytest.mark.parametrize("where", ["agent", "group"])
async def test_a_function_in_a_pruned_stored_conversation_gets_the_loaded_messages(where: str, tmp_path: Path) -> None:
    """All of them can be read, by position too; the older ones stay in the store. A failing function loses nothing."""
    seen: list[tuple[int, list[str]]] = []
    fails = [False]

    def after(result: NodeResult[Any]) -> None:
        texts = [result.transcript[place].text for place in range(len(result.transcript))]  # type: ignore[union-attr]
        assert texts == [message.text for message in result.transcript]  # type: ignore[union-attr]
        seen.append((len(texts), texts))

        if fails[0]:
            raise OSError("down")

    then = choose(after, targets=["editor"])
    worker = Agent("writer", model=ScriptedProvider(lambda r: "Done."), then=then if where == "agent" else None)
    editor = Agent("editor", model=ScriptedProvider())
    entry = worker if where == "agent" else Parallel("g", branches=[worker], then=then)
    crew = Crew("c", agents=[editor], entry=entry)

    async with CrewExecutor(crew, store=tmp_path / "runs.db", max_messages_per_request=6) as executor:
        for turn in range(9):
            await executor.execute(f"Turn {turn}.", conversation="c")

        fails[0] = True

        with pytest.raises(RunError, match="down"):
            await executor.execute("Turn 9.", conversation="c", run_id="last")

        fails[0] = False
        result = await executor.resume("last")
        assert len(await executor.transcript("c")) == 20

    assert result.stop_reason == "completed"
    assert [texts[-1] for _, texts in seen] == [*(f"Turn {turn}." for turn in range(10)), "Turn 9."]
    assert max(count for count, _ in seen[:10]) < 12, "the function gets a part of the conversation"
