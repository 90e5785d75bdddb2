"""Child runs: parallel branches of a group from start to join, and the records that remain of finished children."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from crew.agents.agent import Parallel, Quorum, node_name
from crew.history.token_budget import carry_over_budgets
from crew.history.view import View
from crew.messages import UserMessage
from crew.runs.counters import RunCounters, merge_counters
from crew.runs.events import AgentStarted, BranchFinished, BranchStarted, BranchTimedOut
from crew.runs.parameters import Limits
from crew.runs.state import Branch, CallInDoubt, CallTools, Finished, RunBranches, RunState, is_blocked, total_usage
from crew.tools.tool import truncate_middle
from crew.transitions.before_request import ask_model_next
from crew.transitions.markdown import section
from crew.transitions.plan import Plan
from crew.transitions.step import Step


def calls_in_doubt(plan: Plan, state: RunState) -> Iterator[CallInDoubt]:
    """The writes of this run and of its children that were started and have no result."""
    yield from state.in_doubt
    now = state.next_before_failure or state.next
    toolkit = plan.toolkits.get(state.agent)

    if isinstance(now, CallTools) and toolkit is not None:
        for open in now.calls:
            if open.status in ("started", "in_doubt") and toolkit.is_write(open.call.name):
                yield CallInDoubt(key=open.key, run_id=state.run_id, agent=state.agent, call=open.call)

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


MAX_JOIN_CHARS = 20_000


def start_branches(step: Step, group: Parallel, handed_over: View | None = None) -> None:
    """Start the branches of a group, each with the current history and an equal share of the remaining limits."""
    forks = step.counters.forks + 1
    keys = _branch_keys(step, group.branch_names, forks)
    limits = share_limits(step, len(keys))
    step.counters = replace(step.counters, forks=forks)
    children = dict(step.children)

    for key, name in zip(keys, group.branch_names, strict=True):
        child = replace(
            new_child(step, key, name, limits),
            history=step.history,
            transcript=step.transcript,
            inherited_messages=len(step.transcript),
            views={name: handed_over} if handed_over else {},
            pending_summary=step.pending_summary.for_branch(),
            counters=RunCounters(tokens_appended=step.counters.tokens_appended),
        )
        step.emit(BranchStarted, branch=child.run_id, group=group.name)
        started = step.child_step(child)
        started.emit(AgentStarted)
        started.append_framework_message(
            f"[You are {name}, one of the parallel branches of {group.name}. Do your part of the user's request.]",
            "branch",
        )
        ask_model_next(started)
        children[key] = started.freeze()

    step.children = children
    step.next = RunBranches(group=group.name, branch_keys=keys)
    evaluate_group(step)


def _branch_keys(step: Step, names: Sequence[str], forks: int) -> tuple[str, ...]:
    """A new key for each branch: a group may run again, and an agent may serve two branches."""
    prefix = "" if forks == 1 else f"{forks}."
    keys: list[str] = []

    for name in names:
        key, number = f"{prefix}{name}", 1

        while key in keys or key in step.children:
            number += 1
            key = f"{prefix}{name}.{number}"

        keys.append(key)

    return tuple(keys)


def share_limits(step: Step, parts: int) -> Limits:
    """The remaining limits in equal parts; the remainder of a division is not used."""
    limits, used = step.limits, step.counters
    rounds = None if limits.rounds is None else max(0, limits.rounds - used.rounds) // parts
    tokens = None if limits.tokens is None else max(0, limits.tokens - used.usage.total_tokens) // parts
    money = None if limits.cost_usd is None else max(0.0, limits.cost_usd - (used.usage.cost or 0.0)) / parts
    handoffs = None if limits.handoffs is None else max(0, limits.handoffs - used.handoffs)
    # Time is not divided: branches run at the same time, and children share the clock of the root.
    return replace(limits, rounds=rounds, tokens=tokens, cost_usd=money, handoffs=handoffs)


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
    text = _join_text(group, {_branch_label(step, key): child_output(step.children[key])[0] for key in keys})
    archive_children(step, now.branch_keys, group.name)
    step.append(UserMessage(text, origin="join"))

    if group.then is None:
        step.finish("completed", text)
        return

    target = node_name(group.then)

    if target in step.plan.groups:
        start_branches(step, step.plan.groups[target])
        return

    step.agent = target
    step.emit(AgentStarted)
    ask_model_next(step)


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
