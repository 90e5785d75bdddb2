"""`crew check`: checks crews and lists their agents, models, guardrails and tools, also those of MCP servers."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from crew.agents.agent import Agent, AgentTool, agent_handoffs
from crew.agents.crew import Crew
from crew.agents.guardrail import Guardrail
from crew.cli.executor_setup import build_executor, printed_warnings
from crew.cli.signals import run_until_signalled
from crew.cli.target import load_crews
from crew.engine.run_sync import run_sync
from crew.engine.toolsets import list_seconds
from crew.errors import describe
from crew.mcp.server import MCPServer
from crew.tools.context import Context
from crew.tools.tool import Tool
from crew.tools.toolset import ConsentRequired, Toolset, ToolsetWithLifetime


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """The tools of a toolset and what was left out, or why they can't be listed."""

    tools: Sequence[Tool] = ()
    problem: str = ""
    notes: Sequence[str] = ()


def check_command(args: argparse.Namespace) -> int:
    """Print what the crews consist of, and return the exit code."""
    crews = load_crews(args.target, args.allow_modules)

    with printed_warnings(args):
        executors = [build_executor(crew, args, None, None) for crew in crews]

    toolsets = {id(one): one for crew in crews for agent in _agents(crew) for one in agent.toolsets}
    listed = {} if args.offline else run_until_signalled(_list_all(toolsets))

    for crew in crews:
        print("\n".join(_crew_lines(crew, listed)))

    for executor in executors:
        run_sync(executor.aclose)

    return 1 if any(one.problem for one in listed.values()) else 0


def _agents(crew: Crew) -> Sequence[Agent]:
    return [*crew.agents_by_name.values()]


async def _list_all(toolsets: Mapping[int, Toolset]) -> dict[int, _Listed]:
    """List all toolsets at the same time."""
    listed = await asyncio.gather(*(_list_tools(toolset) for toolset in toolsets.values()))
    return dict(zip(toolsets, listed, strict=True))


async def _list_tools(toolset: Toolset) -> _Listed:
    lifetime = toolset.lifetime() if isinstance(toolset, ToolsetWithLifetime) else None

    try:
        async with asyncio.timeout(list_seconds(toolset)), lifetime or nullcontext():
            tools = await toolset.list_tools(Context(deps=None, run_id="check", agent=""))
            notes = toolset.left_out() if isinstance(toolset, MCPServer) else ()
            return _Listed(tools=tools, notes=notes)
    except ConsentRequired as required:
        return _Listed(problem=f"{required.question}\nTo answer, run the crew: it asks before the agent starts.")
    except TimeoutError:
        return _Listed(problem=f"it did not list its tools within {list_seconds(toolset):g} s")
    except Exception as error:  # the toolset boundary: it may raise anything
        return _Listed(problem=describe(error))


def _crew_lines(crew: Crew, listed: Mapping[int, _Listed]) -> Iterator[str]:
    yield f"crew {crew.name} (starts with {crew.entry_name})"

    if crew.guardrails:
        yield f"  guardrails: {_guardrails_text(crew.guardrails)}"

    for agent in _agents(crew):
        yield f"  agent {agent.name}: {_model_text(agent)}"
        tools = [tool for tool in agent.tools if isinstance(tool, Tool)]
        called = [f"{tool.name} (agent {tool.agent.name})" for tool in agent.tools if isinstance(tool, AgentTool)]

        if tools or called:
            yield f"    tools: {', '.join([*map(_tool_text, tools), *called])}"

        if agent.guardrails:
            yield f"    guardrails: {_guardrails_text(agent.guardrails)}"

        if targets := [handoff.target for handoff in agent_handoffs(agent)]:
            yield f"    handoffs: {', '.join(targets)}"

        for toolset in agent.toolsets:
            yield from _toolset_lines(toolset, listed.get(id(toolset)))

    for group in crew.groups:
        yield f"  group {group.name}: {', '.join(group.branch_names)}"


def _toolset_lines(toolset: Toolset, listed: _Listed | None) -> Iterator[str]:
    if listed is None:
        yield f"    toolset {toolset.name}: not opened"
    elif listed.problem:
        first, *rest = listed.problem.splitlines()
        yield f"    ! toolset {toolset.name}: {first}"
        yield from (f"      {line}" for line in rest)
    else:
        yield f"    toolset {toolset.name}: {', '.join(map(_tool_text, listed.tools)) or 'no tools'}"
        yield from (f"      left out: {note}" for note in listed.notes)


def _guardrails_text(guardrails: Sequence[Guardrail]) -> str:
    return ", ".join(f"{one.name} ({one.on})" for one in guardrails)


def _model_text(agent: Agent) -> str:
    models = [agent.model, *([] if agent.backup is None else [agent.backup])]
    return ", backup ".join(m if isinstance(m, str) else f"{m.name}:{m.model}" for m in models)


def _tool_text(tool: Tool) -> str:
    asks = {"always": ", needs approval", "never": ""}.get(str(tool.approval), ", may need approval")
    return f"{tool.name} ({tool.effect}{asks})"
