"""`@tool`: turns a function into a tool that a model can call."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from types import MethodType
from typing import Any, Concatenate, Generic, Literal, overload

from pydantic_core import to_json
from typing_extensions import ParamSpec, TypeVar

from crew.errors import DefinitionError, abbreviate
from crew.interfaces import ToolSpec
from crew.messages import replace_surrogates
from crew.settings import NonNegativeInt, PositiveInt, Seconds, setting_problems
from crew.tools.schema import Signature, read_signature

Parameters = ParamSpec("Parameters", default=...)
BoundParameters = ParamSpec("BoundParameters")
Result_co = TypeVar("Result_co", covariant=True, default=Any)
Owner = TypeVar("Owner")

Approval = Literal["never", "always"] | Callable[..., bool]

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tool(Generic[Parameters, Result_co]):
    """A function, its schema, and how it is called. Call it like the function itself.

    A call with `effect="read"` may be repeated after a crash without asking; one with `"write"` (the default) may not.
    `approval` pauses the run before the call: always, or if a function of the arguments returns True.
    `touches` names the parameter that holds the file or resource which a call reads or writes. With `asks` it may ask a
    person with `Context.ask_user`. `model_retries` is how often in a row it may ask the model to call it again with
    `ToolRetry`; a further one is an error.
    """

    function: Callable[Parameters, Result_co]
    signature: Signature
    timeout: Seconds
    retries: NonNegativeInt
    approval: Approval
    effect: Literal["read", "write"]
    touches: str | None
    max_output_chars: PositiveInt
    asks: bool = False
    model_retries: NonNegativeInt = 3

    def __post_init__(self) -> None:
        if problems := [*setting_problems(self), *_tool_problems(self)]:
            raise DefinitionError(f"Tool {self.name!r}", problems)

    @property
    def name(self) -> str:
        return self.signature.spec.name

    @property
    def spec(self) -> ToolSpec:
        return self.signature.spec

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function; others run on a thread."""
        # An object with an async __call__ counts too.
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(type(self.function).__call__)

    def needs_approval(self, arguments: dict[str, object]) -> bool:
        """Whether a person must approve this call."""
        if callable(self.approval):
            return bool(self.approval(**arguments))

        return self.approval == "always"

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result_co:
        return self.function(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Tool[Parameters, Result_co]: ...
    @overload
    def __get__(
        self: Tool[Concatenate[Owner, BoundParameters], Result_co], instance: Owner, owner: type | None = None
    ) -> Tool[BoundParameters, Result_co]: ...
    def __get__(self, instance: object, owner: type | None = None) -> Tool[..., Result_co]:
        """The tool bound to an object, where `@tool` decorates a method: `tools=[service.lookup]`."""
        if instance is None or not self.signature.is_unbound:
            return self

        bound = replace(self.signature, is_unbound=False)
        return replace(self, function=MethodType(self.function, instance), signature=bound)


@overload
def tool(function: Callable[Parameters, Result_co], /) -> Tool[Parameters, Result_co]: ...
@overload
def tool(
    *,
    name: str | None = ...,
    description: str | None = ...,
    timeout: float = ...,
    retries: int = ...,
    approval: Approval | bool = ...,
    effect: Literal["read", "write"] = ...,
    touches: str | None = ...,
    max_output_chars: int = ...,
    asks: bool = ...,
    model_retries: int = ...,
) -> Callable[[Callable[Parameters, Result_co]], Tool[Parameters, Result_co]]: ...
def tool(
    function: Callable[..., object] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float = 30.0,
    retries: int = 0,
    approval: Approval | bool = "never",
    effect: Literal["read", "write"] = "write",
    touches: str | None = None,
    max_output_chars: int = 20_000,
    asks: bool = False,
    model_retries: int = 3,
) -> Tool | Callable[[Callable[..., object]], Tool]:
    """Make a tool of a sync or async function. Its schema is built from the signature and the docstring."""

    def make(function: Callable[..., object]) -> Tool:
        own_name = getattr(function, "__name__", "")  # foreign: a callable of the user, which may have no name
        tool_name = name if name is not None else str(own_name)

        return Tool(
            function=function,
            signature=read_signature(function, tool_name, description),
            timeout=timeout,
            retries=retries,
            approval=("always" if approval else "never") if isinstance(approval, bool) else approval,
            effect=effect,
            touches=touches,
            max_output_chars=max_output_chars,
            asks=asks,
            model_retries=model_retries,
        )

    return make if function is None else make(function)


def _tool_problems(tool: Tool) -> Iterator[str]:
    if not TOOL_NAME.fullmatch(tool.name):
        yield f"the name {tool.name!r} must be 1–64 of A–Z a–z 0–9 _ -; pass another one with name="

    if not callable(tool.approval) and tool.approval not in ("never", "always"):
        yield f"approval must be 'never', 'always' or a function of the arguments, not {abbreviate(tool.approval)}"
    elif inspect.iscoroutinefunction(tool.approval):
        yield f"approval must be a synchronous function; {abbreviate(tool.approval)} is async"

    if tool.asks and tool.signature.context_parameter is None:
        yield "asks=True needs a parameter that is annotated with Context, whose ask_user asks"

    parameters = tool.signature.parameter_names

    if isinstance(tool.touches, str) and tool.touches not in parameters:
        yield f"touches must name one of the parameters {', '.join(map(repr, parameters))}, not {tool.touches!r}"


def to_text(value: object) -> str:
    """A string unchanged, None as `null`, anything else as JSON. Raises if the value has no JSON form."""
    return replace_surrogates("".join(text_pieces(value)))


_PIECE_ITEMS, _PIECE_CHARS = 500, 100_000
_MAX_DEPTH = 20
_CONTAINERS = (dict, list, tuple)
_SIZED = (str, bytes, *_CONTAINERS)


def text_pieces(value: object) -> Iterator[str]:
    """The text of a value in pieces, each of which takes some milliseconds. Surrogates are not replaced."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Iterator):
        # An iterator may be endless or slow to read: the tool must do that work.
        raise TypeError(f"a {type(value).__name__} can't be sent to a model; return a list")
    else:
        yield from _json_pieces(value, depth=0)


def _json_pieces(value: object, depth: int) -> Iterator[str]:
    # A value that contains itself is never small: at the greatest depth, `to_json` refuses it.
    if type(value) not in (dict, list) or depth == _MAX_DEPTH or _is_small(value):
        yield to_json(value, inf_nan_mode="strings").decode()
        return

    parts = _parts(value)
    yield "{" if isinstance(value, dict) else "["

    for number, part in enumerate(parts):
        yield "," if number else ""

        if _is_small(part):
            yield to_json(part, inf_nan_mode="strings").decode()[1:-1]
        elif isinstance(part, dict):
            for n, (key, item) in enumerate(part.items()):
                yield ("," if n else "") + to_json({key: 0}).decode()[1:-2]
                yield from _json_pieces(item, depth + 1)
        else:
            for n, item in enumerate(part):
                yield "," if n else ""
                yield from _json_pieces(item, depth + 1)

    yield "}" if isinstance(value, dict) else "]"


def _parts(value: Any) -> Iterator[Any]:
    """The items of a list or a dict in lists or dicts of 500."""
    items = iter(value.items() if isinstance(value, dict) else value)
    kind = type(value)

    while part := kind(islice(items, _PIECE_ITEMS)):
        yield part


def _is_small(value: object) -> bool:
    """Whether the JSON of a value has at most some 100,000 characters."""
    left, waiting = _PIECE_CHARS, [value]

    while waiting and left > 0:
        item = waiting.pop()
        left -= len(item) if isinstance(item, _SIZED) else 10

        if left > 0 and isinstance(item, _CONTAINERS):
            waiting.extend(item.values() if isinstance(item, dict) else item)

    return left > 0


def truncate_middle(text: str, limit: int) -> str:
    """The text, or its beginning and end with a marker between them; never longer than the limit."""
    return text if len(text) <= limit else join_ends(text, text, limit, len(text))


def join_ends(head: str, tail: str, limit: int, length: int) -> str:
    """The beginning of `head` and the end of `tail`, with a marker between them; both are of a text of this length."""
    marker = f"\n[… {length - limit} or more of {length} characters cut …]\n"

    if len(marker) >= limit:
        return head[:limit]

    kept = limit - len(marker)
    return head[: kept - kept // 4] + marker + tail[max(0, len(tail) - kept // 4) :]
