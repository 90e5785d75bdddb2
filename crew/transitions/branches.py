"""Child runs: parallel branches of a group from start to join, and the records that remain of finished children."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from crew.agents.agent import AnyAgent, Parallel, Quorum, node_name
from crew.agents.choice import Choice, NodeResult
from crew.history.token_budget import carry_over_budgets
from crew.history.view import View
from crew.messages import UserMessage
from crew.runs.counters import RunCounters, merge_counters
from crew.runs.events import AgentStarted, BranchFinished, BranchStarted, BranchTimedOut, Routed
from crew.runs.parameters import Limits
from crew.runs.state import (
    Branch,
    CallInDoubt,
    CallTools,
    CheckOutput,
    ChooseNext,
    Finished,
    RunBranches,
    RunState,
    is_blocked,
    total_usage,
)
from crew.tools.tool import truncate_middle
from crew.transitions.activation import activate_agent
from crew.transitions.checks import output_checks
from crew.transitions.choices import choose_target, group_items, join_result, newest_text
from crew.transitions.markdown import section
from crew.transitions.plan import Plan
from crew.transitions.prepared_agents import tool_effect
from crew.transitions.shared_limits import share_limits, warn_of_small_share
from crew.transitions.step import USER_ERRORS, Step


def calls_in_doubt(plan: Plan, state: RunState) -> Iterator[CallInDoubt]:
    """The writes of this run and of its children that were started and have no result."""
    yield from state.in_doubt
    now = state.next_before_failure or state.next

    if isinstance(now, CallTools):
        for open in now.calls:
            if open.status in ("started", "in_doubt") and tool_effect(plan, state, open.call.name) == "write":
                call = open.effective_call
                yield CallInDoubt(key=open.key, run_id=state.run_id, agent=state.agent, call=call)

    for child in state.children.values():
        yield from calls_in_doubt(plan, child)


def archive_children(step: Step, keys: Sequence[str], group: str = "") -> None:
    """Remove children that have finished, or are stopped here; their records, usage and warnings stay."""
    children = dict(step.children)
    records: list[Branch] = []

    for key in keys:
        child = children.pop(key)
        records.append(branch_record(child))
        step.in_doubt = (*step.in_doubt, *calls_in_doubt(step.plan, child))
        _emit_finished(step, child, group)
        _add_counters(step, child)

    step.children = children
    step.branches = (*step.branches, *records)


def _add_counters(step: Step, child: RunState) -> None:
    for inner in child.children.values():
        _add_counters(step, inner)

    step.counters = merge_counters(step.counters, child.counters)
    step.token_budgets = carry_over_budgets(step.token_budgets, child.token_budgets)
    step.warnings_sent = tuple(dict.fromkeys((*step.warnings_sent, *child.warnings_sent)))


def _emit_finished(step: Step, child: RunState, group: str) -> None:
    """Emit BranchFinished for this child in the name of its parent and, before it, for the children within it."""
    inner_step = step.child_step(child)
    inner_group = child.next.group if isinstance(child.next, RunBranches) else ""

    for inner in child.children.values():
        _emit_finished(inner_step, inner, inner_group)

    record = branch_record(child)
    step.emit(BranchFinished, branch=child.run_id, outcome=record.outcome, error=record.error, group=group)


def branch_record(child: RunState) -> Branch:
    """The record of a child: its outcome, and its part of the transcript."""
    end = child.next if isinstance(child.next, Finished) else Finished(stop_reason="cancelled")
    outcome = "cancelled" if end.stop_reason == "paused" else end.stop_reason
    return Branch(
        run_id=child.run_id,
        agent=child.agent,
        outcome=outcome,
        finish_reason=end.finish_reason,
        output=end.output,
        error=end.error,
        usage=total_usage(child),
        transcript=tuple(child.transcript[child.inherited_messages :]),
        inherited_messages=child.inherited_messages,
        branches=(*child.branches, *(branch_record(inner) for inner in child.children.values())),
    )


def child_output(child: RunState) -> tuple[str, bool]:
    """The text that a finished child gives to its parent, and whether it completed its work."""
    assert isinstance(child.next, Finished)

    match child.next.stop_reason:
        case "completed":
            return child.next.output or "(no answer)", True
        case "limit":
            return f"(stopped at its limit) {child.next.output}".strip(), False
        case _:
            return f"(failed) {child.next.error}", False


MakeResult = Callable[[], NodeResult[Any]]
"""What ended, for a function of the crew; made only if there is one."""

MAX_JOIN_CHARS = 20_000


def start_branches(
    step: Step, group: Parallel, handed_over: View | None = None, items: tuple[str, ...] | None = None
) -> None:
    """Start the branches of a group, each with the current history and an equal share of the remaining limits.

    `items` are those of a fan-out, one for each branch; without any, the group joins at once.
    """
    forks = step.counters.forks + 1
    step.counters = replace(step.counters, forks=forks)

    if items is not None and not items:
        _finish_group(step, group, f"[Results of {group.name}]\n(There were no items.)", ())
        return

    names = group.branch_names * (1 if items is None else len(items))
    keys = _branch_keys(step, names, forks, numbered=items is not None)
    limits = share_limits(step, len(keys))
    warn_of_small_share(step, limits, names, f"the group {group.name!r}")
    children, payload = dict(step.children), step.payloads.get(group.name)

    for index, (key, name) in enumerate(zip(keys, names, strict=True)):
        child = replace(
            new_child(step, key, name, limits),
            history=step.history,
            transcript=step.transcript,
            inherited_messages=len(step.transcript),
            views={name: handed_over} if handed_over else {},
            payloads={name: payload} if payload else {},
            pending_summary=step.pending_summary.for_branch(),
            counters=RunCounters(tokens_appended=step.counters.tokens_appended),
        )
        step.emit(BranchStarted, branch=child.run_id, group=group.name)
        started = step.child_step(child)
        started.emit(AgentStarted)
        started.append_framework_message(_branch_text(group, name, index, items), "branch")
        activate_agent(started)
        children[key] = started.freeze()

    step.children = children
    step.next = RunBranches(group=group.name, branch_keys=keys, items=items or ())
    evaluate_group(step)


def _branch_text(group: Parallel, name: str, index: int, items: tuple[str, ...] | None) -> str:
    """The text that starts a branch: its part of the request, or its item."""
    if items is None:
        return f"[You are {name}, one of the parallel branches of {group.name}. Do your part of the user's request.]"

    number = f"branch {index + 1} of {len(items)} of {group.name}"
    return f"[You are {name}, {number}. Work only on this item of the user's request:]\n{items[index]}"


def _branch_keys(step: Step, names: Sequence[str], forks: int, *, numbered: bool) -> tuple[str, ...]:
    """A new key for each branch: a group may run again, and an agent may serve two branches."""
    prefix = "" if forks == 1 else f"{forks}."
    keys: list[str] = []

    for index, name in enumerate(names):
        key, number = f"{prefix}{name}.{index + 1}" if numbered else f"{prefix}{name}", 1

        while key in keys or key in step.children:
            number += 1
            key = f"{prefix}{name}.{number}"

        keys.append(key)

    return tuple(keys)


def new_child(step: Step, key: str, agent: str, limits: Limits) -> RunState:
    """The state of a child run that has not started."""
    run_id, before = f"{step.run_id}/{key}", {record.run_id for record in step.branches}
    number = next(n for n in range(1, len(before) + 2) if (run_id if n == 1 else f"{run_id}.{n}") not in before)
    return RunState(
        run_id=run_id if number == 1 else f"{run_id}.{number}",
        conversation_id=step.conversation_id,
        crew=step.crew,
        agent=agent,
        limits=limits,
        parameters=step.parameters,
        metadata=step.metadata,
        last_event_at=step.last_event_at,
        active_seconds=step.active_seconds,
        token_budgets=step.token_budgets,
        calibrations=step.calibrations,
        billed_until=step.billed_until,
        warnings_sent=step.warnings_sent,
    )


# ---------------------------------------------------------------------------------------------------- joining


def evaluate_group(step: Step) -> None:
    """Join the results of the group, or fail it, where its error policy allows a decision."""
    now = step.next
    assert isinstance(now, RunBranches)
    group = step.plan.groups[now.group]
    ended = {key: child.next for key in now.branch_keys if isinstance((child := step.children[key]).next, Finished)}
    good = [key for key, end in ended.items() if end.stop_reason == "completed"]
    bad = [key for key, end in ended.items() if end.stop_reason == "failed"]
    unfinished = len(now.branch_keys) - len(ended)

    failure = ""

    match group.on_error:
        case "collect":
            joined = now.branch_keys if not unfinished else ()
        case "fail_fast":
            failure = f"the branch {_branch_label(step, bad[0])!r} failed" if bad else ""
            joined = now.branch_keys if not unfinished else ()
        case "first_success" | Quorum():
            wanted = group.on_error.n if isinstance(group.on_error, Quorum) else 1
            counted = f"{len(good)} of {len(now.branch_keys)} branches succeeded, at least {wanted} must"
            failure = counted if len(good) + unfinished < wanted else ""
            joined = tuple(good[:wanted]) if len(good) >= wanted else ()

    if failure:
        _fail_group(step, group, ended, failure)
    elif joined:
        _join_group(step, group, joined)


def _fail_group(step: Step, group: Parallel, ended: dict[str, Finished], why: str) -> None:
    """Fail the group. Its branches keep their results; `executor.resume` repeats those that failed."""
    now = step.next
    assert isinstance(now, RunBranches)
    reasons = "; ".join(
        f"{_branch_label(step, key)}: {end.error or end.stop_reason}"
        for key, end in ended.items()
        if end.stop_reason != "completed"
    )
    step.next = replace(now, failure=f"The group {group.name!r} failed: {why} ({reasons}).")


def _join_group(step: Step, group: Parallel, keys: Sequence[str]) -> None:
    now = step.next
    assert isinstance(now, RunBranches)
    items = dict(zip(now.branch_keys, now.items, strict=False))
    labels = {key: _branch_label(step, key) + _item_label(items.get(key)) for key in keys}
    text = _join_text(group, {labels[key]: child_output(step.children[key])[0] for key in keys})
    joined = tuple(step.children[key].run_id for key in keys)
    archive_children(step, now.branch_keys, group.name)
    _finish_group(step, group, text, joined)


def _finish_group(step: Step, group: Parallel, text: str, joined: tuple[str, ...]) -> None:
    step.append(UserMessage(text, origin="join"))
    follow_join(step, group, joined)


def follow_join(step: Step, group: Parallel, joined: tuple[str, ...], target: str = "") -> None:
    """Continue after the join, which is the newest message; `joined` are the run ids of the branches in it."""
    text = newest_text(step)
    result = partial(join_result, step, group.name, text, joined)
    retry = ChooseNext(after=group.name, branches=joined, target=target)
    chosen = target or choose_next(step, group.then, result, retry)

    if isinstance(chosen, str):
        pass_control(step, chosen, result, retry)
    elif chosen is None and (guardrails := output_checks(step.plan, step, is_shown=True)):
        step.next = CheckOutput(guardrails=guardrails, text=text)
    elif chosen is None:
        step.finish("completed", text)


def choose_next(
    step: Step, then: AnyAgent | Parallel | Choice | str | None, result: MakeResult, retry: ChooseNext
) -> str | ChooseNext | None:
    """The agent or group that follows by `then`; None if the run ends. A failing function makes `retry` next."""
    if not isinstance(then, Choice):
        return None if then is None else node_name(then)

    try:
        target = choose_target(then, result())
    except USER_ERRORS as error:  # the function is user code
        step.fail(error)
        step.next = retry
        return retry

    step.emit(Routed, signal="", target=target, function=then.name)
    return target


def pass_control(
    step: Step, target: str, result: MakeResult, retry: ChooseNext, note: Literal["route", "then"] | None = None
) -> None:
    """Let this agent or group continue. With a `note`, a message to the agent names the one before it."""
    group, source = step.plan.groups.get(target), step.agent

    if group is not None:
        try:
            items = None if group.items is None else group_items(group, result())
        except USER_ERRORS as error:  # the function of the items is user code
            step.fail(error)
            step.next = replace(retry, target=target)
            return

        start_branches(step, group, items=items)
        return

    step.agent = target
    step.emit(AgentStarted)

    if note is not None:
        text = f"[Control passed from {source} to {target}. Continue the user's request.]"
        step.append_framework_message(text, note)

    activate_agent(step)


_ITEM_LABEL_CHARS = 60


def _item_label(item: str | None) -> str:
    """The beginning of an item, for the heading of its result."""
    words = " ".join((item or "").split())
    return "" if item is None else f": {words if len(words) <= _ITEM_LABEL_CHARS else words[:_ITEM_LABEL_CHARS] + '…'}"


def _branch_label(step: Step, key: str) -> str:
    """The name of a branch for a reader: without the number of the fan-out."""
    forks = step.counters.forks
    return key.removeprefix(f"{forks}.") if forks > 1 else key


def _join_text(group: Parallel, outputs: dict[str, str]) -> str:
    """The outputs in declared order, each with an equal share of the maximum length."""
    heading = f"[Results of {group.name}]"
    available = MAX_JOIN_CHARS - len(heading) - sum(len(label) + 10 for label in outputs)
    share = max(1, available // len(outputs))
    parts = [section(label, text, share) for label, text in outputs.items()]
    return truncate_middle(f"{heading}\n" + "\n\n".join(parts), MAX_JOIN_CHARS)


def on_branch_timed_out(step: Step, event: BranchTimedOut) -> None:
    """Fail the branches that are still running when their group times out; those that wait for a person stay."""
    now = step.next

    if not isinstance(now, RunBranches):
        return

    children = dict(step.children)

    for key in now.branch_keys:
        child = children[key]

        if not isinstance(child.next, Finished) and not is_blocked(child):
            late = Finished(stop_reason="failed", error=f"timed out after {event.seconds:g} s")
            children[key] = replace(child, next=late, next_before_failure=child.next)

    step.children = children
    evaluate_group(step)
