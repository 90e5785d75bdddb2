"""Edges that code decides: `choose`, and what its function knows of the agent or group that has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Generic, Protocol, runtime_checkable

from pydantic import JsonValue
from typing_extensions import TypeVar

from crew.agents.function_arity import accepts_arguments
from crew.errors import DefinitionError, abbreviate
from crew.messages import Message

NodeOutput_co = TypeVar("NodeOutput_co", covariant=True, default=Any)


@runtime_checkable
class Named(Protocol):
    """An agent or a group."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult(Generic[NodeOutput_co]):
    """What an agent or a group produced, for the functions that decide what follows it.

    agent       the name of the agent or group; empty for the input of a run that starts with a group.
    output      the answer, as a value of the agent's output type; of a group, the tuple of its branches' outputs.
    text        the same as text; of a group, its join.
    payload     the payload of the handoff that led here; None if there is none.
    rounds      how many model replies the run has had so far.
    transcript  the messages before this answer; of a stored conversation those of this run and of its history.
    metadata    a copy of what was passed to `execute`.
    """

    agent: str
    output: NodeOutput_co
    text: str
    payload: Any = None
    rounds: int = 0
    transcript: Sequence[Message] = field(default=(), repr=False)
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)


Chooser = Callable[[NodeResult[Any]], Named | str | None]
"""A pure function that selects the next agent or group; None ends the run."""

ItemSource = str | Callable[[NodeResult[Any]], Iterable[object]]
"""The items of a fan-out: a field of the payload or of the output that leads to the group, or a pure function."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """A function that selects what follows, among `targets`; None, which ends the run, is always allowed."""

    function: Chooser
    targets: Sequence[Named | str]

    def __post_init__(self) -> None:
        if problems := [*function_problems("the function", self.function), *_target_problems(self.targets)]:
            raise DefinitionError("choose", problems)

    @property
    def name(self) -> str:
        """The name of the function, for people."""
        return function_name(self.function)

    @property
    def target_names(self) -> tuple[str, ...]:
        return tuple(target if isinstance(target, str) else target.name for target in self.targets)


def choose(function: Chooser, *, targets: Sequence[Named | str]) -> Choice:
    """`then=choose(function, targets=[…])`: the function of the `NodeResult` returns one of the targets, or None.

    It must be pure: it is not called again when a run is resumed, but a simulation or a replay may call it.
    """
    return Choice(function=function, targets=targets)


def function_name(function: object) -> str:
    """The name of a function; of another callable, that of its class."""
    if isinstance(function, partial):
        return function_name(function.func)

    name = getattr(function, "__name__", None)  # foreign: a callable of the user, which may have no name
    return str(name or type(function).__name__)


def function_problems(what: str, function: object) -> Iterator[str]:
    """Why this can't be called by a transition, which never awaits."""
    if not callable(function) or isinstance(function, type):
        yield f"{what} must be a function of a NodeResult, not {abbreviate(function)}"
    elif iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__):
        yield f"{what} must be a synchronous function; {abbreviate(function)} is async"
    elif not accepts_arguments(function, 1):
        yield f"{what} must accept one argument, the NodeResult; {abbreviate(function)} does not"


def _target_problems(targets: object) -> Iterator[str]:
    if not isinstance(targets, Sequence) or isinstance(targets, str):
        yield f"targets must be a list, not {abbreviate(targets)}"
        return

    if not targets:
        yield "targets is empty; list every agent and group that the function may return"

    for index, target in enumerate(targets):
        if target is None:
            yield f"targets[{index}] is None, which is always allowed: leave it out"
        elif not isinstance(target, str) and (isinstance(target, type) or not isinstance(target, Named)):
            yield f"targets[{index}] must be an agent, a group or a name, not {abbreviate(target)}"
