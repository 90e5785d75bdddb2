"""Runs within a run: the branches of a group and agents called as tools; how they begin and how they join."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from crew.agents import AgentTool, Parallel, Quorum
from crew.errors import BranchesFailed
from crew.execution.advance.asking import ask
from crew.execution.advance.draft import Draft, spent
from crew.execution.advance.tallies import together
from crew.execution.gauges import remembered
from crew.history import History, View
from crew.messages import ToolCall, ToolResult, Transcript, UserMessage
from crew.runs import Branch, CallTools, Finished, Limits, RunBranches, RunState, Tally, ToolTally
from crew.runs.events import AgentStarted, BranchFinished, BranchStarted
from crew.runs.state import CallStatus
from crew.tools import cut

JOIN_CHARS = 20_000


def fork(draft: Draft, group: Parallel, crossing: View | None = None) -> None:
    """The branches of a group begin, each on the history as it stands, with an equal share of what is left."""
    state = draft.state
    forks = state.tally.forks + 1
    keys = _keys(group.branch_names, forks, state)
    share = _share(state, len(keys))
    draft.count(forks=forks)
    children = dict(state.children)

    for key, name in zip(keys, group.branch_names, strict=True):
        child = _child(state, key, name, share)
        child = replace(
            child,
            history=state.history,
            transcript=state.transcript,
            forked_at=len(state.transcript),
            views={name: crossing} if crossing else {},
            tally=Tally(seen_tokens=state.tally.seen_tokens),
        )
        begun = Draft(draft.plan, child, draft.event)
        draft.say(BranchStarted, branch=child.run_id, group=group.name)
        begun.say(AgentStarted)
        begun.tell(
            f"[You are {name}, one of the branches of {group.name}, which work at the same time. "
            "Do your part of the user's request.]",
            "branch",
        )
        ask(begun)
        children[key] = begun.state
        draft.out.extend(begun.out)

    draft.set(children=children, next=RunBranches(group=group.name, branches=keys))
    evaluate(draft)


def _keys(names: Sequence[str], forks: int, state: RunState) -> tuple[str, ...]:
    """One key for each branch, unlike any before: a group may run again, an agent may serve two branches."""
    prefix = "" if forks == 1 else f"{forks}."
    keys: list[str] = []

    for name in names:
        key, number = f"{prefix}{name}", 1

        while key in keys or key in state.children:
            number += 1
            key = f"{prefix}{name}.{number}"

        keys.append(key)

    return tuple(keys)


def _share(state: RunState, parts: int) -> Limits:
    """What is left, in equal parts; the rest of a division is not handed out."""
    limits, tally = state.limits, state.tally
    rounds = None if limits.rounds is None else max(0, limits.rounds - tally.rounds) // parts
    tokens = None if limits.tokens is None else max(0, limits.tokens - tally.usage.total_tokens) // parts
    money = None if limits.cost_usd is None else max(0.0, limits.cost_usd - (tally.usage.cost or 0.0)) / parts
    handoffs = None if limits.handoffs is None else max(0, limits.handoffs - tally.handoffs)
    seconds = None if limits.seconds is None else max(0.0, limits.seconds - state.active_seconds)
    return replace(limits, rounds=rounds, tokens=tokens, cost_usd=money, handoffs=handoffs, seconds=seconds)


def _child(state: RunState, key: str, agent: str, limits: Limits) -> RunState:
    return RunState(
        run_id=f"{state.run_id}/{key}",
        conversation_id=state.conversation_id,
        crew=state.crew,
        agent=agent,
        limits=limits,
        parameters=state.parameters,
        seen_at=state.seen_at,
        gauges=state.gauges,
        calibrations=state.calibrations,
        known=state.known,
        warned=state.warned,
    )


def call_agent(draft: Draft, call: ToolCall, used: AgentTool, siblings: int) -> None:
    """An agent called as a tool begins a run of its own, with the request as its goal."""
    now = draft.state.next
    assert isinstance(now, CallTools)
    request = _request(call)
    status: CallStatus = "child"
    result: ToolResult | None = None

    if request is None:
        text = 'The arguments are not valid: {"request": "…"} is wanted, with a text that is not blank.'
        status, result = "done", ToolResult(call_id=call.id, name=call.name, text=text, outcome="error")
    else:
        child = _child(draft.state, call.id, used.agent.name, _share(draft.state, siblings))
        begun = Draft(draft.plan, child, draft.event)
        draft.say(BranchStarted, branch=child.run_id)
        begun.say(AgentStarted)
        goal = UserMessage(request, id=f"{child.run_id}:{draft.event.sequence}", time=draft.event.at)
        begun.set(history=History(goal=goal.id), transcript=Transcript(), known=0)
        begun.append(goal)
        ask(begun)
        draft.set(children={**draft.state.children, call.id: begun.state})
        draft.out.extend(begun.out)

    calls = tuple(
        replace(open, status=status, result=result) if open.call.id == call.id else open for open in now.calls
    )
    draft.set(next=replace(now, calls=calls))

    if result is None and isinstance(draft.state.children[call.id].next, Finished):
        returned(draft, call.id)


def _request(call: ToolCall) -> str | None:
    try:
        request = json.loads(call.arguments)["request"]
    except (ValueError, KeyError, TypeError):
        return None

    return request if isinstance(request, str) and request.strip() else None


def returned(draft: Draft, key: str) -> ToolResult:
    """An agent called as a tool has ended: its answer is the call's result."""
    now, child = draft.state.next, draft.state.children[key]
    assert isinstance(now, CallTools)
    assert isinstance(child.next, Finished)
    name = next(open.call.name for open in now.calls if open.call.id == key)
    text, ok = _outcome(child)
    result = ToolResult(call_id=key, name=name, text=cut(text, JOIN_CHARS), outcome="ok" if ok else "error")
    archive(draft, [key])
    calls = tuple(replace(open, status="done", result=result) if open.call.id == key else open for open in now.calls)
    by_tool = draft.state.tally.by_tool
    tally = by_tool.get(name, ToolTally())
    draft.count(by_tool={**by_tool, name: ToolTally(calls=tally.calls + 1, errors=tally.errors + (not ok))})
    draft.set(next=replace(now, calls=calls))
    return result


def _outcome(child: RunState) -> tuple[str, bool]:
    assert isinstance(child.next, Finished)

    match child.next.stop_reason:
        case "completed":
            return child.next.output or "(no answer)", True
        case "limit":
            return f"(stopped at its limit) {child.next.output}".strip(), False
        case _:
            return f"(failed) {child.next.error}", False


# ---------------------------------------------------------------------------------------------------- joining


def evaluate(draft: Draft) -> None:
    """Whether the group has come to what its policy asks for; then its results join."""
    now = draft.state.next
    assert isinstance(now, RunBranches)
    group = draft.plan.groups[now.group]
    ended = {key: child.next for key in now.branches if isinstance((child := draft.state.children[key]).next, Finished)}
    good = [key for key, end in ended.items() if end.stop_reason == "completed"]
    bad = [key for key, end in ended.items() if end.stop_reason == "failed"]
    open_ = len(now.branches) - len(ended)

    match group.on_error:
        case "collect":
            joined = [*now.branches] if not open_ else None
        case "fail_fast":
            if bad:
                _give_up(draft, group, ended, f"the branch {bad[0]!r} failed")
            joined = [*now.branches] if not open_ else None
        case "first_success":
            joined = _enough(draft, group, ended, good, 1, open_)
        case Quorum(n=n):
            joined = _enough(draft, group, ended, good, n, open_)

    if joined is not None:
        _join(draft, group, joined)


def _enough(
    draft: Draft, group: Parallel, ended: dict[str, Finished], good: list[str], wanted: int, still_open: int
) -> list[str] | None:
    if len(good) >= wanted:
        return good[:wanted]

    if len(good) + still_open < wanted:
        _give_up(draft, group, ended, f"{len(good)} of {wanted} branches succeeded")

    return None


def _give_up(draft: Draft, group: Parallel, ended: dict[str, Finished], why: str) -> None:
    reasons = "; ".join(
        f"{key}: {end.error or end.stop_reason}" for key, end in ended.items() if end.stop_reason != "completed"
    )
    raise BranchesFailed(f"The group {group.name!r} failed: {why} ({reasons}).")


def _join(draft: Draft, group: Parallel, keys: Sequence[str]) -> None:
    now = draft.state.next
    assert isinstance(now, RunBranches)
    share = JOIN_CHARS // len(keys) - 80
    parts = [f"## {key}\n{cut(_outcome(draft.state.children[key])[0], max(1, share))}" for key in keys]
    text = f"[Results of {group.name}]\n" + "\n\n".join(parts)
    archive(draft, now.branches, group.name)
    draft.append(UserMessage(text, origin="join"))

    if group.then is None:
        draft.finish("completed", text)
        return

    target = group.then if isinstance(group.then, str) else group.then.name

    if target in draft.plan.groups:
        fork(draft, draft.plan.groups[target])
        return

    draft.set(agent=target)
    draft.say(AgentStarted)
    ask(draft)


def archive(draft: Draft, keys: Sequence[str], group: str = "") -> None:
    """Children that have ended, or are cut off here, leave the tree; what they did and spent stays on record."""
    children = dict(draft.state.children)
    records: list[Branch] = []

    for key in keys:
        child = children.pop(key)
        record = record_of(child)
        records.append(record)
        draft.say(BranchFinished, branch=child.run_id, outcome=record.outcome, error=record.error, group=group)
        _add(draft, child)

    draft.set(children=children, branches=(*draft.state.branches, *records))


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


def _add(draft: Draft, child: RunState) -> None:
    for inner in child.children.values():
        _add(draft, inner)

    draft.set(
        tally=together(draft.state.tally, child.tally),
        gauges=remembered(draft.state.gauges, child.gauges),
        warned=tuple(dict.fromkeys((*draft.state.warned, *child.warned))),
    )
