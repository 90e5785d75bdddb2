"""Which policies bound the shared history, and which shape a view of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from crew.doors import Policy
from crew.history.policies.rolling import Rolling


def members(policy: Policy) -> Iterator[Policy]:
    """The policy itself, or where it is a chain those that it is made of."""
    chained = getattr(policy, "policies", None)

    if chained is None:
        yield policy
        return

    for member in chained:
        yield from members(member)


def staged(policy: Policy) -> tuple[Policy, tuple[Policy, ...]]:
    """An executor's policy as the one that bounds the shared history, and those that shape every agent's view."""
    views = tuple(member for member in members(policy) if getattr(member, "stage", "history") == "view")

    if not views:
        return policy, ()

    rest = tuple(member for member in members(policy) if member not in views)
    chained: Any = policy
    return (replace(chained, policies=rest) if len(rest) > 1 else rest[0] if rest else Rolling()), views
