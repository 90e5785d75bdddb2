"""What the policies of this room share: reading a history's groups, and writing a decision down."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from crew.doors import Group, Policy, Provider, Pruned
from crew.errors import DefinitionError
from crew.messages import Message, SummaryMessage
from crew.tools import Tool

Summarizer = str | Provider | Tool | Callable[[Sequence[Message]], str | Awaitable[str]] | None
"""Who writes summaries: None is the agent's own model; else a model's name, a provider, a tool, or a function."""


def is_summary(group: Group) -> bool:
    """Whether the group is a summary."""
    return isinstance(group.entries[0].message, SummaryMessage)


def size_of(history: Sequence[Group]) -> int:
    """How many messages these groups hold."""
    return sum(g.size for g in history)


def verdict(history: Sequence[Group], gone: set[int], reason: str, to_summarise: set[int] | None = None) -> Pruned:
    """The decision that these groups leave; and that a summary shall stand for those."""
    named = to_summarise or set()
    return Pruned(
        kept=tuple(g for i, g in enumerate(history) if i not in gone),
        evicted=tuple(g for i, g in enumerate(history) if i in gone),
        to_summarise=tuple(e.message.id for i, g in enumerate(history) if i in named for e in g.entries),
        reason=reason if gone else "",
    )


def whole_numbers(policy: str, least: int, **values: object) -> None:
    """Refuse what is not a whole number from `least` on."""
    problems = [
        f"{name} must be a whole number from {least} on, not {value!r}"
        for name, value in values.items()
        if not isinstance(value, int) or isinstance(value, bool) or value < least
    ]

    if problems:
        raise DefinitionError(f"History policy {policy!r}", problems)


def shares(policy: str, *, target: object, threshold: object) -> None:
    """Refuse what are not two shares of the window, the smaller one first."""
    numbers = [v for v in (target, threshold) if isinstance(v, int | float) and not isinstance(v, bool)]

    if len(numbers) < 2 or not 0 < numbers[0] < numbers[1] <= 1:
        raise DefinitionError(
            f"History policy {policy!r}",
            f"target and threshold are shares of the window with 0 < target < threshold <= 1, not "
            f"target={target!r} and threshold={threshold!r}",
        )


def a_policy(spec: Any, instead: str) -> Policy:
    """This, if it is one; else the error says what to give instead."""
    if isinstance(spec, type) or not isinstance(getattr(spec, "name", None), str) or not hasattr(spec, "prune"):
        text = f"a policy has a name and a method 'prune'; give {instead}, not {spec!r}"
        raise DefinitionError("History policy", text)

    policy: Policy = spec
    return policy
