"""A crew's graph is checked when it is built, and the error lists every problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from crew import Agent, Crew, CrewExecutor, Parallel, Quorum, Route, ScriptedProvider, choose, handoff, tool
from crew.errors import DefinitionError, InvalidInput

MODEL = ScriptedProvider("Done.")


def agent(name: str, **given: Any) -> Agent:
    return Agent(name, **({"instructions": "Work.", "model": MODEL} | given))


@tool
def look() -> str:
    """Look."""
    return "seen"


@tool(name="transfer_to_b")
def not_a_handoff() -> str:
    """Look like a handoff."""
    return "no"


def groups(*made: Parallel) -> Callable[[], Crew]:
    start = agent("a", handoffs=[group.name for group in made])
    return lambda: Crew("c", agents=[start, agent("b")], groups=made)


PROBLEMS: dict[str, tuple[Callable[[], object], str]] = {
    "no agents": (lambda: Crew("c", agents=[]), "agents is empty"),
    "not an agent": (lambda: Crew("c", agents=["a"]), "agents[0] must be an Agent, not 'a'"),
    "not a group": (lambda: Crew("c", agents=[agent("a")], groups=[agent("b")]), "groups[0] must be a Parallel"),
    "no name": (lambda: Crew("c", agents=[Agent(None, model=MODEL)]), "name must be a string, not None"),
    "bad name": (lambda: Crew("c", agents=[agent("a b")]), "the name 'a b' must be"),
    "unicode name": (lambda: Crew("c", agents=[agent("bílling")]), "the name 'bílling' must be"),
    "duplicate": (lambda: Crew("c", agents=[agent("a"), agent("a")]), "'a' is used 2 times"),
    "duplicate group": (groups(Parallel("b", branches=["a"])), "'b' is used 2 times"),
    "unknown handoff": (lambda: Crew("c", agents=[agent("a", handoffs=["bilings"])]), "a handoff of 'a' leads to"),
    "unknown route": (lambda: Crew("c", agents=[agent("a", routes=[Route("[X]", to="x")])]), "the route '[X]' of 'a'"),
    "unknown then": (lambda: Crew("c", agents=[agent("a", then="x")]), "then of 'a' leads to 'x'"),
    "unknown entry": (lambda: Crew("c", agents=[agent("a")], entry="x"), "the entry leads to 'x'"),
    "unknown branch": (groups(Parallel("g", branches=["b", "x"])), "a branch of 'g' leads to 'x'"),
    "another object": (
        lambda: Crew("c", agents=[agent("a", handoffs=[agent("b")]), agent("b")]),
        "leads to a different object named 'b'",
    ),
    "no model": (lambda: Crew("c", agents=[Agent("a")]), "agent 'a': model is required"),
    "tool twice": (lambda: Crew("c", agents=[agent("a", tools=[look, look])]), "2 tools are named 'look'"),
    "tool and handoff": (
        lambda: Crew("c", agents=[agent("a", tools=[not_a_handoff], handoffs=["b"]), agent("b")]),
        "a tool and a handoff have it",
    ),
    "handoff twice": (lambda: Crew("c", agents=[agent("a", handoffs=["b", "b"]), agent("b")]), "'transfer_to_b'"),
    "long name": (lambda: Crew("c", agents=[agent("a", handoffs=["b" * 60]), agent("b" * 60)]), "must be 1–64"),
    "bad filter": (
        lambda: Crew("c", agents=[agent("a", handoffs=[handoff("b", history="most")]), agent("b")]),
        "history= of a handoff must be 'full', 'text_only', 'last', 'none' or a function, not 'most'",
    ),
    "bad payload": (
        lambda: Crew("c", agents=[agent("a", handoffs=[handoff("b", payload=dict)]), agent("b")]),
        "payload= of a handoff must be a subclass of pydantic.BaseModel",
    ),
    "blank signal": (
        lambda: Crew("c", agents=[agent("a", routes=[Route(" ", to=None)])]),
        "must not be blank, but is ' '",
    ),
    "route twice": (
        lambda: Crew("c", agents=[agent("a", routes=[Route("[X]", to=None), Route("[X]", to="a")])]),
        "2 routes have the signal '[X]'",
    ),
    "empty group": (groups(Parallel("g", branches=[])), "group 'g': branches is empty"),
    "group as branch": (
        groups(Parallel("g", branches=["b"]), Parallel("h", branches=["g"])),
        "a branch must be an agent",
    ),
    "quorum too high": (
        groups(Parallel("g", branches=["b"], on_error=Quorum(2))),
        "on_error=Quorum(2) must be at most 1",
    ),
    "quorum zero": (
        groups(Parallel("g", branches=["b"], on_error=Quorum(0))),
        "on_error=Quorum(0): n must be a positive integer",
    ),
    "bad policy": (groups(Parallel("g", branches=["b"], on_error="ignore")), "on_error must be"),
    "bad timeout": (groups(Parallel("g", branches=["b"], timeout=0)), "timeout must be"),
    "timeout in words": (groups(Parallel("g", branches=["b"], timeout="1 s")), "timeout must be"),
    "bad concurrency": (groups(Parallel("g", branches=["b"], max_concurrency=0)), "max_concurrency must be"),
    "unreachable": (lambda: Crew("c", agents=[agent("a"), agent("b")]), "'b' can't be reached from 'a'"),
    "unreachable group": (
        lambda: Crew("c", agents=[agent("a")], groups=[Parallel("g", branches=["a"])]),
        "'g' can't be reached",
    ),
    "then to oneself": (lambda: Crew("c", agents=[agent("a", then="a")]), "then forms an endless cycle: a → a"),
    "then in a circle": (
        lambda: Crew("c", agents=[agent("a", then="b"), agent("b", then="a")]),
        "then forms an endless cycle: a → b → a",
    ),
    "circle through a group": (
        lambda: Crew("c", agents=[agent("a", then="g"), agent("b")], groups=[Parallel("g", branches=["b"], then="a")]),
        "then forms an endless cycle: a → g → a",
    ),
    "called agent without model": (
        lambda: Crew("c", agents=[agent("a", tools=[Agent("b").as_tool()])]),
        "agent 'b': model is required",
    ),
    "called agent hands over": (
        lambda: Crew("c", agents=[agent("a", tools=[agent("b", handoffs=["x"]).as_tool()])]),
        "a handoff of 'b' leads to 'x'",
    ),
    "called agent with a taken name": (
        lambda: Crew("c", agents=[agent("a", tools=[agent("a").as_tool()])]),
        "the name 'a' of an agent used as a tool is already taken",
    ),
    "two called agents of one name": (
        lambda: Crew("c", agents=[agent("a", tools=[agent("b").as_tool(), agent("b").as_tool("second")])]),
        "the name 'b' of an agent used as a tool",
    ),
}


@pytest.mark.parametrize("kind", PROBLEMS)
def test_each_problem_is_found_when_the_crew_is_built(kind: str) -> None:
    """A crew that can't run is refused before a run, and the error names the problem."""
    build, words = PROBLEMS[kind]

    with pytest.raises(DefinitionError) as caught:
        build()

    assert words in str(caught.value)


def test_error_lists_all_problems() -> None:
    """Not one problem after the other."""
    with pytest.raises(DefinitionError) as caught:
        Crew(
            "support",
            agents=[
                agent("triage", handoffs=["bilings", "panel"], routes=[Route("", to=None)]),
                agent("billing", tools=[look, look]),
                Agent("legal"),
            ],
            groups=[Parallel("panel", branches=[], timeout=-1, on_error=Quorum(3))],
        )

    problems = caught.value.problems
    assert len(problems) == 7
    assert len(set(problems)) == 7
    assert "Did you mean 'billing'?" in str(caught.value)


def test_loop_of_then_with_an_exit_is_allowed() -> None:
    """A route that ends the run, a handoff or a pause is an exit."""
    Crew("c", agents=[agent("a", then="b", routes=[Route("[DONE]", to=None)]), agent("b", then="a")])
    Crew("c", agents=[agent("a", then="b", handoffs=["x"]), agent("b", then="a"), agent("x")])
    Crew("c", agents=[agent("a", then="b", wait_for_signal=True), agent("b", then="a")])


def test_one_agent_can_have_several_places() -> None:
    """Agents hold no state: one object can be two branches and a tool of several agents."""
    clerk = agent("clerk")
    crew = Crew(
        "c",
        agents=[agent("a", tools=[clerk.as_tool()], handoffs=["g"]), agent("b", tools=[clerk.as_tool()]), clerk],
        groups=[Parallel("g", branches=["b", "b", "clerk"])],
    )
    assert set(crew.agents_by_name) == {"a", "b", "clerk"}


def test_handoff_to_itself_is_allowed() -> None:
    """It continues with a filtered view, and counts as a handoff."""
    Crew("c", agents=[agent("a", handoffs=[handoff("a", history="none")])])


async def test_unknown_entry_agent_suggests_a_similar_name() -> None:
    """`agent=` names an agent or a group of the crew."""
    executor = CrewExecutor(Crew("c", agents=[agent("billing")]))

    with pytest.raises(InvalidInput, match="Did you mean 'billing'"):
        await executor.execute("Hello", agent="biling")


class Ticket(BaseModel):
    """The payload of a handoff."""

    order: int


def test_tool_specification_of_a_handoff() -> None:
    """A handoff is a tool named after its target; the schema of the payload is its parameters."""
    crew = Crew(
        "c",
        agents=[
            agent("a", handoffs=[handoff("b", payload=Ticket), "g"]),
            agent("b", description="Knows all orders."),
        ],
        groups=[Parallel("g", branches=["b"])],
    )
    to_b, to_g = CrewExecutor(crew).plan.toolkits["a"].specs
    assert (to_b.name, to_g.name) == ("transfer_to_b", "transfer_to_g")
    assert "Knows all orders." in to_b.description
    assert to_b.parameters["properties"].keys() == {"order"}
    assert "b, at the same time" in to_g.description


def test_agents_that_others_lead_to_need_not_be_listed() -> None:
    """They follow the listed ones in the order in which they are reached: by handoffs, routes, `then` and branches."""
    legal, finance, editor = agent("legal"), agent("finance"), agent("editor")
    panel = Parallel("panel", branches=[legal, finance], then=editor)
    billing = agent("billing", then=choose(lambda result: None, targets=[panel]))
    tech = agent("tech", handoffs=[handoff(billing, history="last")])
    helper = agent("helper", handoffs=[agent("expert")])
    triage = agent("triage", routes=[Route("[TECH]", to=tech)], tools=[helper.as_tool()])
    crew = Crew("c", agents=[triage])
    reached = "triage tech billing expert legal finance editor"
    assert [member.name for member in crew.agents] == reached.split()
    assert [group.name for group in crew.groups] == ["panel"]
    assert "helper" in crew.agents_by_name, "an agent that is only called as a tool is no member"
    assert crew.entry_name == "triage"
    again = Crew("c", entry=triage)
    assert [member.name for member in again.agents] == [member.name for member in crew.agents]
    assert Crew("c", entry=panel).entry_name == "panel"
    assert CrewExecutor(triage).plan.crew.groups == (panel,)


def test_two_agents_of_one_name_are_refused_wherever_they_are() -> None:
    """Also if neither of them is listed."""
    one, other = agent("same"), agent("same")

    with pytest.raises(DefinitionError, match="a handoff of 'b' leads to a different object named 'same'"):
        Crew("c", agents=[agent("a", handoffs=[one, agent("b", handoffs=[other])])])

    with pytest.raises(DefinitionError, match="agents is empty; a crew needs at least one agent"):
        Crew("c")
