"""What comes before a model is asked."""

from __future__ import annotations

from typing import Literal

from crew.execution.advance.compact import compact_first
from crew.execution.advance.draft import Draft
from crew.runs import AskModel


def ask(draft: Draft, again: Literal["", "empty", "output"] = "") -> None:
    """The agent's model is next, unless a limit says otherwise."""
    limits, tally = draft.state.limits, draft.state.tally
    spent: list[tuple[str, float | None, float | None]] = [
        ("rounds", tally.rounds, limits.rounds),
        ("tokens", tally.usage.total_tokens, limits.tokens),
        ("cost_usd", tally.usage.cost, limits.cost_usd),
        ("seconds", draft.state.active_seconds, limits.seconds),
    ]

    for name, value, limit in spent:
        if limit is not None and value is not None and value >= limit:
            draft.stop_at(name, limit)
            return

    if not compact_first(draft, again):
        draft.set(next=AskModel(again=again))
