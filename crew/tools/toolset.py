"""Toolsets: groups of tools that are listed when an agent becomes active, with a filter, approvals and a lifetime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from inspect import iscoroutinefunction
from typing import Any, Literal, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from crew.errors import DefinitionError, abbreviate
from crew.interfaces import ToolSpec
from crew.tools.context import Context
from crew.tools.tool import TOOL_NAME, Approval, Tool, tool

ToolFilter = Callable[[Context[Any], Tool], bool]
"""Whether a tool is enabled for an agent that becomes active."""

ToolsetApproval = Literal["never", "writes", "always"] | Callable[[Tool, Mapping[str, object]], bool]
"""Which calls wait for a person: none, those of tools with `effect="write"`, all, or those that a function selects."""


@runtime_checkable
class Toolset(Protocol):
    """A group of tools. `list_tools` is called whenever an agent that has the toolset becomes active.

    What it returns first is frozen for the run: a later list adds no tool and changes no description. A `list_tools`
    that raises leaves the agent without these tools, with a warning; `ConsentRequired` pauses the run instead.
    """

    @property
    def name(self) -> str: ...

    async def list_tools(self, context: Context[Any]) -> Sequence[Tool]: ...


@runtime_checkable
class FilteredToolset(Protocol):
    """A toolset that enables its tools by the context of each activation."""

    def is_enabled(self, context: Context[Any], tool: Tool) -> bool: ...


@runtime_checkable
class ToolsetWithLifetime(Protocol):
    """A toolset that opens something, such as a connection.

    The context manager is entered once for each event loop, before the first `list_tools`, and left when the last
    executor that uses the toolset there is closed, or with the loop; both in one task, which belongs to no run. None:
    there is nothing to open.
    """

    def lifetime(self) -> AbstractAsyncContextManager[object] | None: ...


@runtime_checkable
class ToolsetWithTimeout(Protocol):
    """A toolset that knows how many seconds opening it and listing its tools may take; others may take 60."""

    @property
    def list_seconds(self) -> float: ...


@runtime_checkable
class TracedToolset(Protocol):
    """A toolset that adds attributes to the spans of its calls."""

    def span_attributes(self, tool: str) -> Mapping[str, str | int]: ...


class ConsentRequired(Exception):
    """Raised by `list_tools`: the run pauses until a person answers the question.

    After an approval `list_tools` is called again, with the key in `context.consents`. After a refusal the toolset is
    left out of the run, with a warning.
    """

    def __init__(self, *, key: str, question: str) -> None:
        self.key, self.question = key, question
        super().__init__(question)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FunctionToolset:
    """A toolset made of functions by `toolset`."""

    name: str
    tools: tuple[Tool, ...] | Callable[[Any], Sequence[Tool | Callable[..., object]]]
    prefix: str = ""
    filter: ToolFilter | None = None
    approval: ToolsetApproval = "never"
    opens: Callable[[], AbstractAsyncContextManager[Any]] | None = None
    _opened: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[Tool, ...]] = field(default_factory=WeakKeyDictionary)

    async def list_tools(self, context: Context[Any]) -> Sequence[Tool]:
        """All tools; each activation filters them."""
        if isinstance(self.tools, tuple):
            return self.tools

        return self._opened[asyncio.get_running_loop()]

    def is_enabled(self, context: Context[Any], tool: Tool) -> bool:
        """Whether the filter accepts this tool, which has its prefix."""
        return self.filter is None or bool(self.filter(context, tool))

    def lifetime(self) -> AbstractAsyncContextManager[object] | None:
        """Opens what the tools need, and makes the tools with it."""
        return None if self.opens is None else self._open(self.opens)

    @asynccontextmanager
    async def _open(self, opens: Callable[[], AbstractAsyncContextManager[Any]]) -> AsyncIterator[None]:
        async with opens() as opened:
            if not isinstance(self.tools, tuple):
                tools = _adapted(self.tools(opened), self.prefix, self.approval)
                self._opened[asyncio.get_running_loop()] = tools

            yield


def toolset(
    name: str,
    tools: Sequence[Tool | Callable[..., object]] | Callable[[Any], Sequence[Tool | Callable[..., object]]],
    *,
    prefix: str = "",
    filter: ToolFilter | None = None,
    approval: ToolsetApproval = "never",
    lifetime: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
) -> FunctionToolset:
    """A group of functions and tools for the `tools=` of an agent.

    `prefix` is put before the name of each tool. `filter` decides for each activation of an agent which tools it has.
    `approval` adds to the `approval=` of each tool. `lifetime` is a function that returns an async context manager,
    such as one of `contextlib.asynccontextmanager`; then `tools` may be a function of what it opens.
    """
    if problems := [*_problems(name, tools, prefix, filter, approval, lifetime)]:
        raise DefinitionError(f"Toolset {abbreviate(name)}", problems)

    made = tools if callable(tools) else _adapted(tools, prefix, approval)
    return FunctionToolset(name=name, tools=made, prefix=prefix, filter=filter, approval=approval, opens=lifetime)


def _problems(
    name: object, tools: object, prefix: object, filter: object, approval: object, lifetime: object
) -> Iterator[str]:
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        yield f"the name must be 1–64 of A–Z a–z 0–9 _ -, not {abbreviate(name)}"

    if callable(tools):
        if lifetime is None:
            yield "tools is a function, which needs lifetime=: it gets what the lifetime opens; or pass a list of tools"
    elif not isinstance(tools, Sequence) or isinstance(tools, str):
        yield f"tools must be a list of functions and tools, not {abbreviate(tools)}"
    else:
        wrong = (item for item in tools if not isinstance(item, Tool) and not callable(item))
        yield from (f"tools must hold functions and tools, not {abbreviate(item)}" for item in wrong)

    if not isinstance(prefix, str):
        yield f"prefix must be a text, not {abbreviate(prefix)}"

    if filter is not None and (not callable(filter) or iscoroutinefunction(filter)):
        yield f"filter must be a synchronous function of context and tool, not {abbreviate(filter)}"

    if approval not in ("never", "writes", "always") and (not callable(approval) or iscoroutinefunction(approval)):
        accepted = "'never', 'writes', 'always' or a synchronous function of tool and arguments"
        yield f"approval must be {accepted}, not {abbreviate(approval)}"

    if lifetime is not None and not callable(lifetime):
        yield f"lifetime must be a function that returns an async context manager, not {abbreviate(lifetime)}"


def _adapted(tools: Sequence[Tool | Callable[..., object]], prefix: str, approval: ToolsetApproval) -> tuple[Tool, ...]:
    """The tools with prefix and approvals."""
    made = (item if isinstance(item, Tool) else tool(item) for item in tools)
    return tuple(replace(renamed(one, f"{prefix}{one.name}"), approval=_approval(one, approval)) for one in made)


def renamed(one: Tool, name: str) -> Tool:
    """The tool with another name."""
    spec = ToolSpec(name=name, description=one.spec.description, parameters=one.spec.parameters)
    return replace(one, signature=replace(one.signature, spec=spec))


def _approval(one: Tool, policy: ToolsetApproval) -> Approval:
    """The approval of a tool in a toolset with this policy: a call is held if either asks for it."""
    own = one.approval

    if own == "always" or policy == "never":
        return own

    if not callable(policy):
        return "always" if policy == "always" or one.effect == "write" else own

    decide = policy
    return lambda **arguments: (callable(own) and bool(own(**arguments))) or bool(decide(one, arguments))
