"""What is counted along the way, added up."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from crew.messages import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCounters:
    """How often a tool was called, and how often that went wrong."""

    calls: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounters:
    """What is counted along the way, branches included.

    `by_policy` tells how often each policy or rule pruned the history or moved a view. `seen_tokens` is the estimate of
    everything that was ever appended, `saved_tokens` how much of it the requests so far left out, `saved_cost` what
    that spared in dollars, less what summaries cost; None as soon as one price is unknown. `estimated_tokens` and
    `cached_tokens` sum up what was predicted for the requests, `prefix_breaks` counts those whose front had moved.
    """

    usage: Usage = field(default_factory=Usage)
    rounds: int = 0
    handoffs: int = 0
    forks: int = 0
    messages_pruned: int = 0
    prunings: tuple[tuple[int, int], ...] = ()
    by_agent: dict[str, Usage] = field(default_factory=dict)
    by_tool: dict[str, ToolCounters] = field(default_factory=dict)
    by_policy: dict[str, int] = field(default_factory=dict)
    tokens_appended: int = 0
    tokens_saved: int = 0
    cost_saved: float | None = 0.0
    tokens_estimated: int = 0
    cached_predicted: int = 0
    prefix_breaks: int = 0


def add_costs(mine: float | None, other: float | None) -> float | None:
    """The sum of two amounts; None as soon as one is unknown."""
    return None if mine is None or other is None else mine + other


def merge_counters(mine: RunCounters, other: RunCounters) -> RunCounters:
    """A run's tally with that of a child which ended; what the child saw of the past is the parent's already."""
    agents, tools, policies = dict(mine.by_agent), dict(mine.by_tool), dict(mine.by_policy)

    for name, usage in other.by_agent.items():
        agents[name] = agents.get(name, Usage()) + usage

    for name, tally in other.by_tool.items():
        known = tools.get(name, ToolCounters())
        tools[name] = ToolCounters(calls=known.calls + tally.calls, errors=known.errors + tally.errors)

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
        tokens_saved=mine.tokens_saved + other.tokens_saved,
        cost_saved=add_costs(mine.cost_saved, other.cost_saved),
        tokens_estimated=mine.tokens_estimated + other.tokens_estimated,
        cached_predicted=mine.cached_predicted + other.cached_predicted,
        prefix_breaks=mine.prefix_breaks + other.prefix_breaks,
    )
