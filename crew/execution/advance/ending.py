"""How a run ends before its work is done: cancelled, at a limit, out of time."""

from __future__ import annotations

from dataclasses import replace

from crew.execution.advance.draft import Draft
from crew.execution.advance.fork import evaluate
from crew.execution.advance.records import archive
from crew.messages import ToolMessage, ToolResult
from crew.runs import CallTools, Finished, RunBranches, is_blocked
from crew.runs.events import BranchTimedOut, Cancelled, LimitReached


def on_end(draft: Draft, event: Cancelled | LimitReached) -> None:
    """The whole tree stops here. Calls that are open are answered, so that the history stays valid."""
    now = draft.state.next
    archive(draft, [*draft.state.children])

    if isinstance(now, CallTools):
        why = "the run was cancelled" if isinstance(event, Cancelled) else f"the run reached its limit of {event.limit}"
        results = [
            open.result
            or ToolResult(call_id=open.call.id, name=open.call.name, text=f"[Stopped: {why}.]", outcome="error")
            for open in now.calls
        ]
        draft.append(ToolMessage(tuple(results)))

    draft.finish("cancelled" if isinstance(event, Cancelled) else "limit", draft.last_words())


def on_timeout(draft: Draft, event: BranchTimedOut) -> None:
    """Branches that still work when their group's time is over have failed; one that waits for a person may wait."""
    now = draft.state.next

    if not isinstance(now, RunBranches):
        return

    children = dict(draft.state.children)

    for key in now.branches:
        child = children[key]

        if not isinstance(child.next, Finished) and not is_blocked(child):
            late = Finished(stop_reason="failed", error=f"timed out after {event.seconds:g} s")
            children[key] = replace(child, next=late, failed_at=child.next)

    draft.set(children=children)
    evaluate(draft)
