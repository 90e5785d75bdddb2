"""Toolsets of an executor: opens them once for each event loop, lists their tools, and finds the tool of a call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import Context as Variables
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from crew.engine.concurrency import USER_CODE_ERRORS, TimedOut, is_failure, run_or_abandon
from crew.engine.contexts import run_context
from crew.engine.run import ActiveRun
from crew.errors import describe, suggest
from crew.runs.state import RunState
from crew.tools.context import Context
from crew.tools.tool import Tool
from crew.tools.toolset import ConsentRequired, Toolset, ToolsetWithLifetime, ToolsetWithTimeout
from crew.transitions.prepared_agents import toolset_tool

LIST_SECONDS = 60.0
"""How long a toolset may take to open and to list its tools, unless it is a `ToolsetWithTimeout`."""


@dataclass(slots=True, kw_only=True, eq=False)
class _OpenToolset:
    """A toolset that is open in one event loop, and the executors that use it there.

    One task enters and leaves its context manager: many of them can't be left in another task.
    """

    toolset: Toolset
    ready: asyncio.Future[None]
    stop: asyncio.Event
    users: WeakSet[OpenToolsets] = field(default_factory=WeakSet)
    task: asyncio.Task[None] | None = None

    async def keep_open(self, lifetime: AbstractAsyncContextManager[object]) -> None:
        try:
            async with lifetime:
                self.ready.set_result(None)
                await self.stop.wait()
        except USER_CODE_ERRORS as error:  # the toolset boundary: listing the tools raises the error
            if not self.ready.done():
                self.ready.set_exception(RuntimeError(describe(error)))

            if not is_failure(error):
                raise


_OPEN: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, _OpenToolset]] = WeakKeyDictionary()


class OpenToolsets:
    """The toolsets that one executor uses. They stay open between runs, as connections do."""

    async def open(self, toolset: Toolset) -> None:
        """Open this toolset in the running event loop, unless it is open there already."""
        lifetime = toolset.lifetime() if isinstance(toolset, ToolsetWithLifetime) else None

        if lifetime is None:
            return

        loop = asyncio.get_running_loop()
        opened = _OPEN.setdefault(loop, {})

        while (found := opened.get(id(toolset))) is not None and found.stop.is_set() and found.task is not None:
            await asyncio.wait([found.task])  # its last user closes it

        if found is None:
            found = opened[id(toolset)] = _OpenToolset(
                toolset=toolset, ready=loop.create_future(), stop=asyncio.Event()
            )
            # Not in the context of the run that comes first: the toolset belongs to no run.
            found.task = loop.create_task(
                found.keep_open(lifetime), name=f"crew-toolset-{toolset.name}", context=Variables()
            )
            found.task.add_done_callback(lambda _: opened.pop(id(toolset)))

        found.users.add(self)
        await asyncio.shield(found.ready)

    async def aclose(self) -> None:
        """Close the toolsets that no other executor uses; those of other event loops are closed there."""
        here = asyncio.get_running_loop()
        closing: list[asyncio.Task[None]] = []

        for loop, opened in tuple(_OPEN.items()):
            for found in tuple(opened.values()):
                if self not in found.users:
                    continue

                found.users.discard(self)

                if found.users or loop.is_closed():
                    continue

                if loop is here:
                    found.stop.set()
                    closing.extend([found.task] if found.task is not None else [])
                else:
                    loop.call_soon_threadsafe(found.stop.set)

        if closing:
            await asyncio.wait(closing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What a toolset listed: its tools by name, or the consent that it asks for, or why it has none."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    consent: ConsentRequired | None = None
    problem: str = ""


def list_seconds(toolset: Toolset) -> float:
    """How long this toolset may take to open and to list its tools."""
    return toolset.list_seconds if isinstance(toolset, ToolsetWithTimeout) else LIST_SECONDS


async def list_toolset(run: ActiveRun, state: RunState, toolset: Toolset, context: Context[Any]) -> Listing:
    """List the tools of a toolset, which is opened first; whatever it raises is data."""

    def abandon(outcome: asyncio.Future[Any]) -> None:
        run.abandon(state.run_id, f"the toolset {toolset.name}", outcome)

    async def work() -> Listing:
        await run.toolsets.open(toolset)
        tools = await toolset.list_tools(context)
        wrong = next((item for item in tools if not isinstance(item, Tool)), None)
        problem = "" if wrong is None else f"list_tools must return tools, not a {type(wrong).__name__}"
        return Listing(tools={} if problem else {tool.name: tool for tool in tools}, problem=problem)

    try:
        listing = await run_or_abandon(work(), abandon, list_seconds(toolset))
    except ConsentRequired as required:
        return Listing(consent=required)
    except TimedOut:
        return Listing(problem=f"it did not list its tools within {list_seconds(toolset):g} s")
    except USER_CODE_ERRORS as error:  # the toolset boundary: a toolset that fails never ends a run
        if not is_failure(error):
            raise

        return Listing(problem=describe(error))

    if not listing.problem:
        run.bound_tools[toolset.name] = listing.tools

    return listing


async def find_tool(run: ActiveRun, state: RunState, name: str) -> Tool | str:
    """The tool of this name of the current agent, or why there is none, in words for the model.

    After a resume in another process, its toolset is listed again: only names and specs are stored.
    """
    toolkit = run.toolkit(state)
    tool = toolkit.tools.get(name)

    if tool is not None:
        return tool

    listed = toolset_tool(run.plan, state, name)

    if listed is None:
        return f"Unknown tool {name!r}. {suggest(name, toolkit.names)}"

    problem = ""

    if listed.toolset not in run.bound_tools:
        toolset = next(one for one in run.plan.agents[state.agent].toolsets if one.name == listed.toolset)
        listing = await list_toolset(run, state, toolset, run_context(run, state))
        problem = f"it asks for a consent: {listing.consent.question}" if listing.consent else listing.problem

    found = run.bound_tools.get(listed.toolset, {}).get(name)

    if found is None:
        reason = problem or f"{listed.toolset!r} no longer has it"
        return f"The tool {name!r} is not available: {reason}. Continue without it."

    return found
