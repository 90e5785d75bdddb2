"""What is kept of a run within a run once it has ended: its record, its words, and what it spent."""

from __future__ import annotations

from collections.abc import Sequence

from crew.execution.advance.draft import Draft, spent
from crew.execution.advance.tallies import together
from crew.execution.gauges import remembered
from crew.runs import Branch, Finished, RunState, Tally
from crew.runs.events import BranchFinished


def archive(draft: Draft, keys: Sequence[str], group: str = "") -> None:
    """Children that have ended, or are cut off here, leave the tree; what they did and spent stays on record."""
    children = dict(draft.state.children)
    records: list[Branch] = []

    for key in keys:
        child = children.pop(key)
        record = record_of(child)
        records.append(record)
        _tell(draft, child, draft.state, group)
        _add(draft, child)

    draft.set(children=children, branches=(*draft.state.branches, *records))


def _add(draft: Draft, child: RunState) -> None:
    for inner in child.children.values():
        _add(draft, inner)

    draft.set(
        tally=together(draft.state.tally, child.tally),
        gauges=remembered(draft.state.gauges, child.gauges),
        warned=tuple(dict.fromkeys((*draft.state.warned, *child.warned))),
    )


def _tell(draft: Draft, child: RunState, parent: RunState, group: str) -> None:
    """Whoever was told that a run began is told that it ended, the innermost first."""
    for inner in child.children.values():
        _tell(draft, inner, child, getattr(child.next, "group", ""))

    record = record_of(child)
    draft.out.append(
        BranchFinished(
            run_id=parent.run_id,
            agent=parent.agent,
            at=draft.event.at,
            branch=child.run_id,
            outcome=record.outcome,
            error=record.error,
            group=group,
        )
    )


def record_of(child: RunState) -> Branch:
    """A child as it is kept: what it came to, and its own part of the transcript."""
    end = child.next if isinstance(child.next, Finished) else Finished(stop_reason="cancelled")
    outcome = "cancelled" if end.stop_reason == "paused" else end.stop_reason
    return Branch(
        run_id=child.run_id,
        agent=child.agent,
        outcome=outcome,
        output=end.output,
        error=end.error,
        usage=spent(child),
        transcript=tuple(child.transcript[child.forked_at :]),
        branches=(*child.branches, *(record_of(inner) for inner in child.children.values())),
    )


def words_of(child: RunState) -> tuple[str, bool]:
    """What a child that has ended has to say to whoever waits for it, and whether it came to its end."""
    assert isinstance(child.next, Finished)

    match child.next.stop_reason:
        case "completed":
            return child.next.output or "(no answer)", True
        case "limit":
            return f"(stopped at its limit) {child.next.output}".strip(), False
        case _:
            return f"(failed) {child.next.error}", False


def total(state: RunState) -> Tally:
    """What this run and everything that it started have counted."""
    tally = state.tally

    for child in state.children.values():
        tally = together(tally, total(child))

    return tally
