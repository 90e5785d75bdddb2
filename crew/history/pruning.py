"""What prunes a view, and what one pruning did."""

from __future__ import annotations

from dataclasses import dataclass

from crew.interfaces import Policy, PolicyOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """What one pruning of a history or of a view did; `policy` is the policy or the limit that caused it.

    `limit` is the number that was exceeded: messages, readable results, or tokens; 0 for a policy without one.
    """

    policy: str
    reason: str
    limit: int
    before: int
    after: int
    tokens_before: int
    tokens_after: int
    evicted: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewPolicy:
    """A policy that prunes one agent's view, with its options."""

    policy: Policy
    options: PolicyOptions


def view_limit(options: PolicyOptions, bound: int | None) -> int | None:
    """The most messages that a policy lets a view show. Summaries of a view count in the bound of the history too."""
    limits = [options.explicit_limit, bound if options.summarizes else None]
    return min((limit for limit in limits if limit is not None), default=None)
