"""How a run ends before its work is done: cancelled, at a limit, out of time."""

from __future__ import annotations

from dataclasses import replace

from crew.execution.advance.draft import Draft
from crew.execution.advance.fork import archive, evaluate
from crew.messages import ToolMessage, ToolResult
from crew.runs import CallTools, Finished, RunBranches
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
    """Branches that have not ended when their group's time is over have failed."""
    now = draft.state.next

    if not isinstance(now, RunBranches):
        return

    children = dict(draft.state.children)

    for key in now.branches:
        if not isinstance(children[key].next, Finished):
            late = Finished(stop_reason="failed", error=f"timed out after {event.seconds:g} s")
            children[key] = replace(children[key], next=late)

    draft.set(children=children)
    evaluate(draft)
