"""The agent of a run as it was prepared: its tools, its overhead, and what identifies the head of its requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from crew.fast_replace import fast_replace
from crew.interfaces import HistoryBudget
from crew.runs.prepared import Preparation, PreparedTool
from crew.runs.state import RunFields, RunState
from crew.transitions.plan import Plan, overhead_parts


def current_head(plan: Plan, state: RunFields) -> str:
    """Identifies the instructions and tools in the requests of the current agent."""
    prepared = state.prepared.get(state.agent)
    return plan.toolkits[state.agent].head if prepared is None else prepared.head


def tool_effect(plan: Plan, state: RunFields, name: str) -> Literal["read", "write"] | None:
    """The effect of a tool of the current agent; None if it has no tool of this name."""
    toolkit = plan.toolkits.get(state.agent)

    if toolkit is not None and (tool := toolkit.tools.get(name)) is not None:
        return tool.effect

    listed = toolset_tool(plan, state, name)
    return None if listed is None else listed.effect


def toolset_tool(plan: Plan, state: RunFields, name: str) -> PreparedTool | None:
    """The tool of this name that a toolset of the current agent listed, if the agent still has the toolset."""
    prepared, agent = state.prepared.get(state.agent), plan.agents.get(state.agent)
    found = None if prepared is None or agent is None else prepared.tool(name)
    return found if found and agent and any(one.name == found.toolset for one in agent.toolsets) else None


def current_overhead_parts(plan: Plan, state: RunFields) -> list[tuple[str, int]]:
    """What every request of the current agent holds beside messages, each part with its tokens."""
    parts, prepared = overhead_parts(plan.toolkits[state.agent]), state.prepared.get(state.agent)

    if prepared is None:
        return parts

    instructions = ("instructions", prepared.instructions_tokens) if prepared.instructions else parts[0]
    return [instructions, *parts[1:], *((f"tool {tool.name}", tool.tokens) for tool in prepared.tools)]


def with_listed_touches(budget: HistoryBudget, state: RunFields) -> HistoryBudget:
    """The budget with the parameters that name a file or resource, also those of the tools of toolsets."""
    listed = {tool.name: tool.touches for one in state.prepared.values() for tool in one.tools if tool.touches}
    return fast_replace(budget, touches={**listed, **budget.touches}) if listed else budget


def without_unused(preparation: Preparation, root: RunState) -> Preparation:
    """The preparation without the texts and specs that no agent of the tree refers to any more."""
    texts, specs = set[str](), set[str]()

    for run in _tree(root):
        for prepared in run.prepared.values():
            texts.add(prepared.instructions)
            specs.update(tool.digest for tool in prepared.tools)

    specs.update(tool.digest for tools in preparation.toolsets.values() for tool in tools)
    return Preparation(
        texts={key: text for key, text in preparation.texts.items() if key in texts},
        specs={key: spec for key, spec in preparation.specs.items() if key in specs},
        toolsets=preparation.toolsets,
        consents=preparation.consents,
    )


def _tree(state: RunState) -> Iterator[RunState]:
    yield state

    for child in state.children.values():
        yield from _tree(child)
