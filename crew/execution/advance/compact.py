"""Whether a summary is made before a model is asked: explicit compression first, then the policy's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from crew.execution.advance.draft import Draft
from crew.history import spans, survey
from crew.messages import SummaryMessage
from crew.runs import Compact
from crew.runs.events import Warned

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


def warn_if_bare(draft: Draft, size: int) -> None:
    """Compression and limits together may leave a request with hardly anything in it: that is said, once a run."""
    strategy = draft.state.parameters.compression_strategy

    if strategy is None or size >= 2 or strategy.kind in draft.state.warned:
        return

    if any(isinstance(entry.message, SummaryMessage) for entry in draft.state.history.entries):
        draft.set(warned=(*draft.state.warned, strategy.kind))
        draft.say(Warned, text=f"{strategy.kind} and the limits leave {size} message in the request.")
