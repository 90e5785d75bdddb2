"""`@tool`: a function that a model may call."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, overload

from pydantic_core import to_json

from crew.errors import DefinitionError
from crew.interfaces import ToolSpec
from crew.messages import replace_surrogates
from crew.tools.schema import Signature, read_signature

Approval = Literal["never", "always"] | Callable[..., bool]

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tool:
    """A function, what the model is told of it, and how it is called.

    `effect="read"` may be called again after a crash without asking; `"write"` (the default) may not.
    `approval` pauses the run before the call: always, or where a function of the arguments says so.
    `touches` names the parameter that holds the file or thing which a call reads or writes.
    """

    function: Callable[..., Any]
    signature: Signature
    timeout: float
    retries: int
    approval: Approval
    effect: Literal["read", "write"]
    touches: str | None
    max_output_chars: int

    @property
    def name(self) -> str:
        return self.signature.spec.name

    @property
    def spec(self) -> ToolSpec:
        return self.signature.spec

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function; others run on a thread."""
        call = getattr(self.function, "__call__", None)  # noqa: B004 - an object with an async __call__ counts too
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(call)

    def needs_approval(self, arguments: dict[str, Any]) -> bool:
        """Whether a person must agree to this call."""
        if callable(self.approval):
            return bool(self.approval(**arguments))

        return self.approval == "always"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
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
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
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
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a sync or async function; its schema comes from the signature and the docstring."""

    def make(function: Callable[..., Any]) -> Tool:
        called = name if name is not None else str(getattr(function, "__name__", ""))
        signature = read_signature(function, called, description)
        made = Tool(
            function=function,
            signature=signature,
            timeout=timeout,
            retries=retries,
            approval={True: "always", False: "never"}[approval] if isinstance(approval, bool) else approval,  # type: ignore[arg-type]
            effect=effect,
            touches=touches,
            max_output_chars=max_output_chars,
        )
        _check_tool(made)
        return made

    return make if function is None else make(function)


def _check_tool(tool: Tool) -> None:
    problems = []

    if not TOOL_NAME.fullmatch(tool.name):
        problems.append(f"the name {tool.name!r} must be 1–64 of A–Z a–z 0–9 _ -; give one with name=")

    if not isinstance(tool.timeout, int | float) or isinstance(tool.timeout, bool) or not tool.timeout > 0:
        problems.append(f"timeout must be a number of seconds above 0, not {tool.timeout!r}")

    if not _whole(tool.retries) or tool.retries < 0:
        problems.append(f"retries must be 0 or a positive integer, not {tool.retries!r}")

    if tool.effect not in ("read", "write"):
        problems.append(f"effect must be 'read' or 'write', not {tool.effect!r}")

    if not callable(tool.approval) and tool.approval not in ("never", "always"):
        problems.append(f"approval must be 'never', 'always' or a function of the arguments, not {tool.approval!r}")
    elif inspect.iscoroutinefunction(tool.approval):
        problems.append("approval must be a plain function, not an async one: it only decides, and does so at once")

    if tool.touches is not None and tool.touches not in tool.signature.parameter_names:
        problems.append(
            f"touches names {tool.touches!r}, which is not one of its parameters {tool.signature.parameter_names!r}"
        )

    if not _whole(tool.max_output_chars) or tool.max_output_chars < 1:
        problems.append(f"max_output_chars must be a positive integer, not {tool.max_output_chars!r}")

    if problems:
        raise DefinitionError(f"Tool {tool.name!r}", problems)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def to_text(value: Any) -> str:
    """A string as it is, nothing as `null`, anything else as JSON; raises where there is no JSON for it."""
    if isinstance(value, str):
        return replace_surrogates(value)

    if isinstance(value, Iterator):
        # It may never end, and reading it could take any time: that is the tool's own work.
        raise TypeError(f"a {type(value).__name__} is no result; return a list")

    return to_json(value, inf_nan_mode="strings").decode()


def truncate_middle(text: str, limit: int) -> str:
    """The text, or its beginning and end with a marker between them, never longer than the limit."""
    if len(text) <= limit:
        return text

    marker = f"\n[… {len(text) - limit} or more of {len(text)} characters cut …]\n"

    if len(marker) >= limit:
        return text[:limit]

    room = limit - len(marker)
    head = room - room // 4
    return text[:head] + marker + text[len(text) - (room - head) :]
