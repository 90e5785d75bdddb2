"""Counters of a run: usage, rounds, prunings, tokens and cost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from crew.messages import Usage, add_costs


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCounters:
    """How often a tool was called, and how often it returned an error."""

    calls: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounters:
    """Counters of a run, finished children included.

    known_cost        the sum of all costs that are known, in dollars; `usage.cost` is None if one is unknown.
    prunings          the sizes of the history before and after each pruning.
    by_policy         how often each policy or rule pruned the history or a view.
    tokens_appended   the estimate of everything that was ever appended.
    tokens_saved      how much of it the requests left out.
    cost_saved        what that saved in dollars, minus the cost of summaries; None if a price is unknown.
    tokens_estimated  the sum of the estimates of all requests; `cached_predicted` of their cached prefixes.
    prefix_breaks     how many requests did not extend the prefix of the request before.
    """

    usage: Usage = field(default_factory=Usage)
    known_cost: float = 0.0
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


def merge_counters(mine: RunCounters, other: RunCounters) -> RunCounters:
    """The counters of a run plus those of a finished child, without the messages that the child inherited."""
    agents, tools, policies = dict(mine.by_agent), dict(mine.by_tool), dict(mine.by_policy)

    for name, usage in other.by_agent.items():
        agents[name] = agents.get(name, Usage()) + usage

    for name, tool in other.by_tool.items():
        known = tools.get(name, ToolCounters())
        tools[name] = ToolCounters(calls=known.calls + tool.calls, errors=known.errors + tool.errors)

    for name, times in other.by_policy.items():
        policies[name] = policies.get(name, 0) + times

    return replace(
        mine,
        usage=mine.usage + other.usage,
        known_cost=mine.known_cost + other.known_cost,
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
