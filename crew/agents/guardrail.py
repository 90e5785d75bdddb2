"""Guardrails: functions that check the input of a run, the calls of tools and the output, before they take effect."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from crew.agents.function_arity import accepts_arguments
from crew.errors import DefinitionError, abbreviate
from crew.settings import Seconds, setting_problems
from crew.tools.tool import TOOL_NAME

GuardrailStage = Literal["input", "tool", "output"]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Continue with this instead: a text for input and output, all arguments for a call."""

    value: str | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """Do not continue. The caller gets the words for an input, the model for a call or an output."""

    words: str


@dataclass(frozen=True, slots=True)
class NeedsApproval:
    """Pause until a person approves or refuses."""

    question: str


Decision = Rewritten | Refused | NeedsApproval | None
"""What a guardrail returns; None: it passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedCall:
    """A call that a guardrail checks: the tool, and the arguments as JSON values."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Guardrail:
    """A function of the context and of what it checks: a text, or a `GuardedCall`.

    on        what it checks: the input of a run, a call of a tool or of an agent, or the output of an agent.
    parallel  for input: check it beside the first model request. Neither tools nor text appear before it has passed.
    timeout   the seconds that one check may take.
    on_error  a check that fails or takes too long: "refuse" ends the run with an error, which a resume tries again, and
              is an error result for a call; "pass" continues with a warning.
    """

    function: Callable[..., Any]
    name: str
    on: GuardrailStage
    parallel: bool = False
    timeout: Seconds = 30.0
    on_error: Literal["refuse", "pass"] = "refuse"

    def __post_init__(self) -> None:
        if problems := [*setting_problems(self), *_guardrail_problems(self)]:
            raise DefinitionError(f"Guardrail {abbreviate(self.name)}", problems)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self.function(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function; others run on a thread."""
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(type(self.function).__call__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """Guardrails by what they check; those of the input that wait for nothing, and those beside the first request."""

    input: tuple[Guardrail, ...] = ()
    parallel: tuple[Guardrail, ...] = ()
    tool: tuple[Guardrail, ...] = ()
    output: tuple[Guardrail, ...] = ()

    @classmethod
    def of(cls, guardrails: Sequence[Guardrail]) -> Checks:
        """These guardrails, each kind in declared order."""
        return cls(
            input=tuple(one for one in guardrails if one.on == "input" and not one.parallel),
            parallel=tuple(one for one in guardrails if one.on == "input" and one.parallel),
            tool=tuple(one for one in guardrails if one.on == "tool"),
            output=tuple(one for one in guardrails if one.on == "output"),
        )

    def find(self, name: str) -> Guardrail | None:
        """The guardrail of this name."""
        return next((g for g in (*self.input, *self.parallel, *self.tool, *self.output) if g.name == name), None)


NO_CHECKS = Checks()


def guardrail(
    on: GuardrailStage,
    *,
    name: str | None = None,
    parallel: bool = False,
    timeout: float = 30.0,
    on_error: Literal["refuse", "pass"] = "refuse",
) -> Callable[[Callable[..., Any]], Guardrail]:
    """Make a guardrail of a sync or async function of the context and of what it checks."""
    stage: object = on

    if callable(stage):
        advice = 'write @guardrail("input"), @guardrail("tool") or @guardrail("output")'
        raise DefinitionError(f"Guardrail {abbreviate(stage)}", f"what it checks is missing; {advice}")

    def make(function: Callable[..., Any]) -> Guardrail:
        own_name = getattr(function, "__name__", "")  # foreign: a callable of the user, which may have no name
        return Guardrail(
            function=function,
            name=str(own_name) if name is None else name,
            on=on,
            parallel=parallel,
            timeout=timeout,
            on_error=on_error,
        )

    return make


def _guardrail_problems(guardrail: Guardrail) -> Iterator[str]:
    function: object = guardrail.function

    if not callable(function):
        yield f"it must be a function of the context and of what it checks, not {abbreviate(function)}"
    elif not accepts_arguments(function, 2):
        value = "call" if guardrail.on == "tool" else "text"
        yield f"it must accept two arguments, such as def {guardrail.name}(context, {value})"

    if not TOOL_NAME.fullmatch(guardrail.name):
        yield f"the name {guardrail.name!r} must be 1–64 of A–Z a–z 0–9 _ -; pass another one with name="

    if guardrail.parallel and guardrail.on != "input":
        yield f"parallel=True is for input, not for {guardrail.on}: only an input is checked beside a model request"


def guardrail_problems(guardrails: object) -> Iterator[str]:
    """Why these are not the guardrails of an agent or a crew."""
    if not isinstance(guardrails, Sequence) or isinstance(guardrails, str):
        yield f"guardrails must be a list, not {type(guardrails).__name__}"
        return

    names: list[str] = []

    for index, item in enumerate(guardrails):
        if not isinstance(item, Guardrail):
            text = f"guardrails[{index}] must be a guardrail, not {abbreviate(item)}"
            yield f'{text}; decorate the function with @guardrail("input"), "tool" or "output"'
        elif item.name in names:
            yield f"two guardrails are named {item.name!r}; their names must be unique"
        else:
            names.append(item.name)
