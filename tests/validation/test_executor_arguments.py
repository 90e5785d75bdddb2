"""Arguments of a wrong type are refused where they are passed, with their value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from crew import (
    Agent,
    Chunked,
    Crew,
    CrewExecutor,
    LastNMessages,
    Parallel,
    RequestParameters,
    Route,
    ScriptedProvider,
    WholeHistory,
    handoff,
    recall,
)
from crew.errors import DefinitionError, InvalidInput
from crew.history.policies import Rolling
from crew.interfaces import PolicyOptions

MODEL = ScriptedProvider("Fine.")
AGENT = Agent("a", model=MODEL)
any_: Any = lambda given: given  # noqa: E731 - hides wrong types from the type checker


class Odd:
    """A policy whose limit is a string."""

    name, options, prune = "odd", PolicyOptions(limit=any_("many")), print


class Vague:
    """A policy whose options are a mapping."""

    name, options, prune = "vague", {"limit": 5}, print


class Waits:
    """An async observer, which is not supported."""

    async def __call__(self, event: object) -> None: ...


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CrewExecutor(any_("support")), "crew must be a Crew or an Agent, not 'support'"),
        (lambda: CrewExecutor(AGENT, store=any_(5)), "store: not a store: 5; use 'runs.db'"),
        (lambda: CrewExecutor(AGENT, limits=any_({"rounds": 3})), r"limits must be Limits\(...\), not {'rounds': 3}"),
        (lambda: CrewExecutor(AGENT, parameters=any_(5)), "parameters must be RequestParameters"),
        (lambda: CrewExecutor(AGENT, observers=any_([42])), "an observer must be a function .* not 42"),
        (lambda: CrewExecutor(AGENT, observers=any_([Odd])), "an observer must be a function .* not <class"),
        (lambda: CrewExecutor(AGENT, observers=[Waits()]), "events are not awaited; <.*Waits object .* is async"),
        (
            lambda: CrewExecutor(AGENT, observers=[Waits().__call__]),
            "events are not awaited; <bound method .* is async",
        ),
        (lambda: CrewExecutor(AGENT, observers=any_(print)), "observers must be a list such as .* not <built-in"),
        (lambda: CrewExecutor(AGENT, history=any_(5)), "a policy has a name and a method 'prune'"),
        (lambda: CrewExecutor(AGENT, history=any_(Rolling)), r"Rolling is a class; pass an object: Rolling\(\)"),
        (
            lambda: CrewExecutor(AGENT, history={"name": "rolling", "limit": "x"}),
            "limit must be a positive integer .* not 'x'",
        ),
        (lambda: CrewExecutor(AGENT, history={"name": "head_tail", "prune_to": "9"}), "prune_to must .* not '9'"),
        (lambda: CrewExecutor(AGENT, history=any_(Odd())), "(?s)'odd'.*limit must .* not 'many'"),
        (lambda: CrewExecutor(AGENT, history=any_(Vague())), "(?s)'vague'.*must be a PolicyOptions, not {'limit': 5}"),
        (lambda: CrewExecutor(Agent("a", model=any_(5))), "model must be a name such as .* not 5"),
        (lambda: CrewExecutor(Agent("a", model=any_(ScriptedProvider))), "model must be a name .* not <class"),
        (lambda: CrewExecutor(Agent("a", model=MODEL, backup=any_(7))), "backup must be a name .* not 7"),
        (lambda: Crew("c", agents=[Agent("a", model=MODEL, output=any_("x"))]), "output='x' is a value, not a type"),
        (lambda: Agent("a", model=MODEL, tools=any_(recall)), "tools must be a list, not Tool"),
        (
            lambda: Agent("a", settings=any_({"temperature": 1})),
            r"Agent 'a': settings must be ModelSettings\(...\), not {'t",
        ),
        (
            lambda: Agent("a", tools=any_(["x"])),
            r"Agent 'a': tools\[0\] must be a function, a tool or a toolset, not 'x'",
        ),
        (lambda: Agent("a", tools=any_([AGENT])), r"tools\[0\] must .* not an agent; pass agent.as_tool\(\)"),
        (
            lambda: Agent("a", handoffs=any_([AGENT, 3])),
            r"Agent 'a': handoffs\[1\] must be an agent, a group, a handoff or a name, not 3",
        ),
        (
            lambda: Agent("a", then=any_(["x"])),
            r"Agent 'a': then must be an agent, a group, choose\(...\) or a name, not \['x'\]",
        ),
        (lambda: Agent("a", routes=any_(["[DONE]"])), r"Agent 'a': routes\[0\] must be Route\(...\), not '\[DONE\]'"),
        (lambda: Route("[DONE]", to=any_(3)), "Route: to must be an agent, a group, a name or None, not 3"),
        (lambda: Route(any_(3), to=None), "Route: signal must be a string, not 3"),
        (lambda: handoff(any_(3)), "Handoff: to must be an agent, a group or a name, not 3"),
        (lambda: Parallel("g", branches=any_("ab")), "Parallel 'g': branches must be a list, not str"),
        (lambda: Parallel("g", branches=any_([3])), r"Parallel 'g': branches\[0\] must be an agent or a name, not 3"),
        (
            lambda: Parallel("g", branches=["a"], then=any_(3)),
            r"then must be an agent, .* or a name, not 3",
        ),
        (lambda: Crew("c", agents=any_(AGENT)), r"Crew 'c': agents must be a list, not Agent\(name='a'"),
        (lambda: Crew("c", agents=[AGENT], groups=any_("g")), "Crew 'c': groups must be a list, not 'g'"),
        (lambda: Crew("c", agents=[AGENT], entry=any_(3)), "entry must be an agent, a group or a name, not 3"),
        (lambda: Crew(any_(3), agents=[AGENT]), "Crew 3: name must be a string, not 3"),
        (lambda: CrewExecutor(AGENT, retry=any_(3)), r"retry must be RetryPolicy\(...\), not 3"),
        (
            lambda: CrewExecutor(AGENT, counter=any_(len)),
            r"counter must be an object with a method count\(text\), not <b",
        ),
        (lambda: CrewExecutor(AGENT, telemetry=any_("otlp")), r"telemetry must be Telemetry\(...\), not 'otlp'"),
        (lambda: CrewExecutor(AGENT, sanitize_output=any_("no")), "sanitize_output must be true or false, not 'no'"),
        (lambda: CrewExecutor(AGENT, clock=any_(5.0)), "clock must be a function such as time.time, not 5.0"),
        (lambda: Agent("a", retry=any_(3)), r"Agent 'a': retry must be RetryPolicy\(...\), not 3"),
        (
            lambda: CrewExecutor(any_([AGENT])),
            r'crew must be a Crew or an Agent, not a list; use Crew\("name", agents=\[…\]\)',
        ),
        (lambda: CrewExecutor(AGENT, secrets="abcdefghij"), "secrets must be a list of strings, not a str$"),
        (lambda: CrewExecutor(AGENT, secrets=any_([5])), r"secrets\[0\] must be a string or a SecretStr, not a int$"),
        (lambda: Agent("a", model=MODEL, handoffs="b"), "handoffs must be a list, not str"),
        (lambda: Agent("a", model=MODEL, routes=any_({"[B]": "b"})), "routes must be a list, not dict"),
        (
            lambda: Agent("a", model=MODEL, instructions=any_(5)),
            "instructions must be a text or a function of the context, not 5",
        ),
        (lambda: RequestParameters(compression_strategy=any_(WholeHistory)), "compression_strategy must be"),
        (
            lambda: RequestParameters(compression_strategy=Chunked(0)),
            "Chunked: size must be a positive integer, not 0",
        ),
        (
            lambda: RequestParameters(compression_strategy=LastNMessages(any_("3"))),
            "LastNMessages: n must be 0 or a positive integer, not '3'",
        ),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused(make: Callable[[], object], words: str) -> None:
    """When the object is built, not later as an AttributeError."""
    with pytest.raises(DefinitionError, match=words):
        make()


def test_reprs_in_errors_are_short() -> None:
    """The repr of an agent contains its whole configuration, and that of the agents it refers to."""
    agent = Agent("a", instructions="word " * 1_000, model=MODEL)

    for make in (lambda: Agent("b", settings=any_(agent)), lambda: CrewExecutor(AGENT, store=any_(agent))):
        with pytest.raises(DefinitionError) as caught:
            make()

        assert len(str(caught.value)) < 200


def test_items_of_an_iterator_are_kept() -> None:
    """They can be read once, and are checked and used."""
    agent = Agent("a", model=MODEL, handoffs=any_(name for name in "bc"), tools=any_(used for used in [recall]))
    assert (agent.handoffs, agent.tools) == (("b", "c"), (recall,))
    assert Crew("c", agents=any_({"a": AGENT}.values())).entry_name == "a"


async def test_parameters_and_answers_of_a_run_are_checked() -> None:
    """They are input of a run, so the error is `InvalidInput`."""
    executor = CrewExecutor(AGENT)

    with pytest.raises(InvalidInput, match=r"mapping such as {result.pauses\[0\].id: True}, not True"):
        await executor.resume("run", any_(True))

    with pytest.raises(InvalidInput, match="parameters must be RequestParameters"):
        await executor.execute("Go.", parameters=any_({"max_tokens": 5}))
