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
    RequestParameters,
    ScriptedProvider,
    WholeHistory,
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
        (lambda: CrewExecutor(AGENT, store=any_("runs.db")), r"SQLiteStore\('runs.db'\), not 'runs.db'"),
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
        (lambda: CrewExecutor(AGENT, history=any_(Rolling)), "not <class"),
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
        (lambda: Crew("c", agents=[Agent("a", model=MODEL, output=any_("x"))]), "output must be a subclass .* not 'x'"),
        (lambda: Agent("a", model=MODEL, tools=any_(recall)), "tools must be a list, not Tool"),
        (lambda: Agent("a", model=MODEL, handoffs="b"), "handoffs must be a list, not str"),
        (lambda: Agent("a", model=MODEL, routes=any_({"[B]": "b"})), "routes must be a list, not dict"),
        (lambda: Agent("a", model=MODEL, instructions=any_(5)), "instructions must be a string, not 5"),
        (lambda: RequestParameters(compression_strategy=any_(WholeHistory)), "compression_strategy must be"),
        (
            lambda: RequestParameters(compression_strategy=Chunked(0)),
            "compression_strategy.size must be a positive integer .*not 0",
        ),
        (
            lambda: RequestParameters(compression_strategy=LastNMessages(any_("3"))),
            "compression_strategy.n must be 0 or a positive integer, not '3'",
        ),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused(make: Callable[[], object], words: str) -> None:
    """When the object is built, not later as an AttributeError."""
    with pytest.raises(DefinitionError, match=words):
        make()


async def test_parameters_and_answers_of_a_run_are_checked() -> None:
    """They are input of a run, so the error is `InvalidInput`."""
    executor = CrewExecutor(AGENT)

    with pytest.raises(InvalidInput, match=r"mapping such as {result.pauses\[0\].id: True}, not True"):
        await executor.resume("run", any_(True))

    with pytest.raises(InvalidInput, match="parameters must be RequestParameters"):
        await executor.execute("Go.", parameters=any_({"max_tokens": 5}))
