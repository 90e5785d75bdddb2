"""Whether a summary is made before a model is asked: explicit compression first, then the policy's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from crew.execution.advance.draft import Draft
from crew.history import spans, survey
from crew.runs import Compact

LEAST_EVICTED = 10
"""At most one summary for so many messages evicted."""


def compact_first(draft: Draft, again: Literal["", "empty", "output"] = "") -> bool:
    """Whether a summary comes before the model is asked; if not, what it is about to be shown is noted down."""
    state, backlog = draft.state, draft.state.backlog
    strategy = state.parameters.compression_strategy

    if strategy is not None:
        parts = spans(survey(state.history.entries, state.history.goal), strategy, backlog.verbatim)

        if parts:
            draft.set(next=Compact(parts=parts, strategy=strategy.kind, again=again))
            return True

    if backlog.ids and backlog.since >= LEAST_EVICTED and backlog.says_something:
        draft.set(next=Compact(parts=(backlog.ids,), again=again))
        return True

    if draft.plan.summarizes or backlog.ids or backlog.left:
        draft.set(backlog=replace(backlog, left=(), asked=state.agent, newest=len(state.transcript) - 1))

    return False
