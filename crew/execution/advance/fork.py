"""Runs within a run: the branches of a group and agents called as tools; how they begin and how they join."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from crew.agents import AgentTool, Parallel, Quorum, name_of
from crew.execution.advance.asking import ask
from crew.execution.advance.draft import Draft
from crew.execution.advance.records import archive, words_of
from crew.history import History, View
from crew.messages import ToolCall, ToolResult, Transcript, UserMessage
from crew.runs import CallTools, Finished, Limits, RunBranches, RunState, Tally, ToolTally
from crew.runs.events import AgentStarted, BranchStarted
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
    # Time is not divided: branches run at the same time, and a child's clock is the root's.
    return replace(limits, rounds=rounds, tokens=tokens, cost_usd=money, handoffs=handoffs)


def _child(state: RunState, key: str, agent: str, limits: Limits) -> RunState:
    run_id, before = f"{state.run_id}/{key}", {record.run_id for record in state.branches}
    number = next(n for n in range(1, len(before) + 2) if (run_id if n == 1 else f"{run_id}.{n}") not in before)
    return RunState(
        run_id=run_id if number == 1 else f"{run_id}.{number}",
        conversation_id=state.conversation_id,
        crew=state.crew,
        agent=agent,
        limits=limits,
        parameters=state.parameters,
        seen_at=state.seen_at,
        active_seconds=state.active_seconds,
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
        draft.say(BranchStarted, branch=child.run_id, tool=call.name)
        begun.say(AgentStarted)
        goal = UserMessage(request, id=f"{child.run_id}:0", time=draft.event.at)
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
    text, ok = words_of(child)
    result = ToolResult(call_id=key, name=name, text=cut(text, JOIN_CHARS), outcome="ok" if ok else "error")
    archive(draft, [key])
    calls = tuple(replace(open, status="done", result=result) if open.call.id == key else open for open in now.calls)
    by_tool = draft.state.tally.by_tool
    tally = by_tool.get(name, ToolTally())
    draft.count(by_tool={**by_tool, name: ToolTally(calls=tally.calls + 1, errors=tally.errors + (not ok))})
    draft.set(next=replace(now, calls=calls))
    return result


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

    failed = ""

    match group.on_error:
        case "collect":
            joined = now.branches if not open_ else ()
        case "fail_fast":
            failed = f"the branch {_label(draft, bad[0])!r} failed" if bad else ""
            joined = now.branches if not open_ else ()
        case "first_success" | Quorum():
            wanted = group.on_error.n if isinstance(group.on_error, Quorum) else 1
            failed = f"{len(good)} of {wanted} branches succeeded" if len(good) + open_ < wanted else ""
            joined = tuple(good[:wanted]) if len(good) >= wanted else ()

    if failed:
        _give_up(draft, group, ended, failed)
    elif joined:
        _join(draft, group, joined)


def _give_up(draft: Draft, group: Parallel, ended: dict[str, Finished], why: str) -> None:
    """The group has failed. What its branches came to stays; a resume tries those that failed once more."""
    now = draft.state.next
    assert isinstance(now, RunBranches)
    reasons = "; ".join(
        f"{_label(draft, key)}: {end.error or end.stop_reason}"
        for key, end in ended.items()
        if end.stop_reason != "completed"
    )
    draft.set(next=replace(now, failed=f"The group {group.name!r} failed: {why} ({reasons})."))


def _join(draft: Draft, group: Parallel, keys: Sequence[str]) -> None:
    now = draft.state.next
    assert isinstance(now, RunBranches)
    text = _joined(group, {_label(draft, key): words_of(draft.state.children[key])[0] for key in keys})
    archive(draft, now.branches, group.name)
    draft.append(UserMessage(text, origin="join"))

    if group.then is None:
        draft.finish("completed", text)
        return

    target = name_of(group.then)

    if target in draft.plan.groups:
        fork(draft, draft.plan.groups[target])
        return

    draft.set(agent=target)
    draft.say(AgentStarted)
    ask(draft)


def _label(draft: Draft, key: str) -> str:
    """The branch as a reader is told of it: without the number of the fan-out."""
    forks = draft.state.tally.forks
    return key.removeprefix(f"{forks}.") if forks > 1 else key


def _joined(group: Parallel, words: dict[str, str]) -> str:
    """The results in declared order, an equal share of the cap for each."""
    heading = f"[Results of {group.name}]"
    room = JOIN_CHARS - len(heading) - sum(len(label) + 6 for label in words)
    share = max(1, room // len(words))
    parts = [f"## {label}\n{cut(text, share)}" for label, text in words.items()]
    return cut(f"{heading}\n" + "\n\n".join(parts), JOIN_CHARS)
