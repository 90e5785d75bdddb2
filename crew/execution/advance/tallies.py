"""What is counted along the way, added up."""

from __future__ import annotations

from dataclasses import replace

from crew.messages import Usage
from crew.runs import Tally, ToolTally


def added(mine: float | None, other: float | None) -> float | None:
    """The sum of two amounts; None as soon as one is unknown."""
    return None if mine is None or other is None else mine + other


def together(mine: Tally, other: Tally) -> Tally:
    """A run's tally with that of a child which ended; what the child saw of the past is the parent's already."""
    agents, tools, policies = dict(mine.by_agent), dict(mine.by_tool), dict(mine.by_policy)

    for name, usage in other.by_agent.items():
        agents[name] = agents.get(name, Usage()) + usage

    for name, tally in other.by_tool.items():
        known = tools.get(name, ToolTally())
        tools[name] = ToolTally(calls=known.calls + tally.calls, errors=known.errors + tally.errors)

    for name, times in other.by_policy.items():
        policies[name] = policies.get(name, 0) + times

    return replace(
        mine,
        usage=mine.usage + other.usage,
        rounds=mine.rounds + other.rounds,
        handoffs=mine.handoffs + other.handoffs,
        messages_pruned=mine.messages_pruned + other.messages_pruned,
        prunings=(*mine.prunings, *other.prunings),
        by_agent=agents,
        by_tool=tools,
        by_policy=policies,
        saved_tokens=mine.saved_tokens + other.saved_tokens,
        saved_cost=added(mine.saved_cost, other.saved_cost),
        estimated_tokens=mine.estimated_tokens + other.estimated_tokens,
        cached_tokens=mine.cached_tokens + other.cached_tokens,
        prefix_breaks=mine.prefix_breaks + other.prefix_breaks,
    )
