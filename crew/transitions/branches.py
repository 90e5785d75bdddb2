"""What is kept of a run within a run once it has ended: its record, its words, and what it spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from crew.agents.agent import Parallel, Quorum, node_name
from crew.history.token_budget import carry_over_budgets
from crew.history.view import View
from crew.messages import UserMessage
from crew.runs.counters import RunCounters, merge_counters
from crew.runs.events import AgentStarted, BranchFinished, BranchStarted, BranchTimedOut
from crew.runs.parameters import Limits
from crew.runs.state import Branch, Finished, RunBranches, RunState, is_blocked, total_usage
from crew.tools.tool import truncate_middle
from crew.transitions.before_request import ask_model_next
from crew.transitions.step import Step


def archive_children(step: Step, keys: Sequence[str], group: str = "") -> None:
    """Children that have ended, or are cut off here, leave the tree; what they did and spent stays on record."""
    children = dict(step.state.children)
    records: list[Branch] = []

    for key in keys:
        child = children.pop(key)
        record = branch_record(child)
        records.append(record)
        _emit_finished(step, child, step.state, group)
        _add_counters(step, child)

    step.set(children=children, branches=(*step.state.branches, *records))


def _add_counters(step: Step, child: RunState) -> None:
    for inner in child.children.values():
        _add_counters(step, inner)

    step.set(
        counters=merge_counters(step.state.counters, child.counters),
        token_budgets=carry_over_budgets(step.state.token_budgets, child.token_budgets),
        warnings_sent=tuple(dict.fromkeys((*step.state.warnings_sent, *child.warnings_sent))),
    )


def _emit_finished(step: Step, child: RunState, parent: RunState, group: str) -> None:
    """Whoever was told that a run began is told that it ended, the innermost first."""
    for inner in child.children.values():
        _emit_finished(step, inner, child, getattr(child.next, "group", ""))

    record = branch_record(child)
    step.emitted.append(
        BranchFinished(
            run_id=parent.run_id,
            agent=parent.agent,
            at=step.event.at,
            branch=child.run_id,
            outcome=record.outcome,
            error=record.error,
            group=group,
        )
    )


def branch_record(child: RunState) -> Branch:
    """A child as it is kept: what it came to, and its own part of the transcript."""
    end = child.next if isinstance(child.next, Finished) else Finished(stop_reason="cancelled")
    outcome = "cancelled" if end.stop_reason == "paused" else end.stop_reason
    return Branch(
        run_id=child.run_id,
        agent=child.agent,
        outcome=outcome,
        output=end.output,
        error=end.error,
        usage=total_usage(child),
        transcript=tuple(child.transcript[child.inherited_messages :]),
        branches=(*child.branches, *(branch_record(inner) for inner in child.children.values())),
    )


def child_output(child: RunState) -> tuple[str, bool]:
    """What a child that has ended has to say to whoever waits for it, and whether it came to its end."""
    assert isinstance(child.next, Finished)

    match child.next.stop_reason:
        case "completed":
            return child.next.output or "(no answer)", True
        case "limit":
            return f"(stopped at its limit) {child.next.output}".strip(), False
        case _:
            return f"(failed) {child.next.error}", False


MAX_JOIN_CHARS = 20_000


def start_branches(step: Step, group: Parallel, crossing: View | None = None) -> None:
    """The branches of a group begin, each on the history as it stands, with an equal share of what is left."""
    state = step.state
    forks = state.counters.forks + 1
    keys = _branch_keys(group.branch_names, forks, state)
    share = share_limits(state, len(keys))
    step.count(forks=forks)
    children = dict(state.children)

    for key, name in zip(keys, group.branch_names, strict=True):
        child = new_child(state, key, name, share)
        child = replace(
            child,
            history=state.history,
            transcript=state.transcript,
            inherited_messages=len(state.transcript),
            views={name: crossing} if crossing else {},
            counters=RunCounters(tokens_appended=state.counters.tokens_appended),
        )
        begun = Step(step.plan, child, step.event)
        step.emit(BranchStarted, branch=child.run_id, group=group.name)
        begun.emit(AgentStarted)
        begun.append_framework_message(
            f"[You are {name}, one of the branches of {group.name}, which work at the same time. "
            "Do your part of the user's request.]",
            "branch",
        )
        ask_model_next(begun)
        children[key] = begun.state
        step.emitted.extend(begun.emitted)

    step.set(children=children, next=RunBranches(group=group.name, branch_keys=keys))
    evaluate_group(step)


def _branch_keys(names: Sequence[str], forks: int, state: RunState) -> tuple[str, ...]:
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


def share_limits(state: RunState, parts: int) -> Limits:
    """What is left, in equal parts; the rest of a division is not handed out."""
    limits, tally = state.limits, state.counters
    rounds = None if limits.rounds is None else max(0, limits.rounds - tally.rounds) // parts
    tokens = None if limits.tokens is None else max(0, limits.tokens - tally.usage.total_tokens) // parts
    money = None if limits.cost_usd is None else max(0.0, limits.cost_usd - (tally.usage.cost or 0.0)) / parts
    handoffs = None if limits.handoffs is None else max(0, limits.handoffs - tally.handoffs)
    # Time is not divided: branches run at the same time, and a child's clock is the root's.
    return replace(limits, rounds=rounds, tokens=tokens, cost_usd=money, handoffs=handoffs)


def new_child(state: RunState, key: str, agent: str, limits: Limits) -> RunState:
    run_id, before = f"{state.run_id}/{key}", {record.run_id for record in state.branches}
    number = next(n for n in range(1, len(before) + 2) if (run_id if n == 1 else f"{run_id}.{n}") not in before)
    return RunState(
        run_id=run_id if number == 1 else f"{run_id}.{number}",
        conversation_id=state.conversation_id,
        crew=state.crew,
        agent=agent,
        limits=limits,
        parameters=state.parameters,
        last_event_at=state.last_event_at,
        active_seconds=state.active_seconds,
        token_budgets=state.token_budgets,
        calibrations=state.calibrations,
        billed_until=state.billed_until,
        warnings_sent=state.warnings_sent,
    )


# ---------------------------------------------------------------------------------------------------- joining


def evaluate_group(step: Step) -> None:
    """Whether the group has come to what its policy asks for; then its results join."""
    now = step.state.next
    assert isinstance(now, RunBranches)
    group = step.plan.groups[now.group]
    ended = {
        key: child.next for key in now.branch_keys if isinstance((child := step.state.children[key]).next, Finished)
    }
    good = [key for key, end in ended.items() if end.stop_reason == "completed"]
    bad = [key for key, end in ended.items() if end.stop_reason == "failed"]
    open_ = len(now.branch_keys) - len(ended)

    failed = ""

    match group.on_error:
        case "collect":
            joined = now.branch_keys if not open_ else ()
        case "fail_fast":
            failed = f"the branch {_branch_label(step, bad[0])!r} failed" if bad else ""
            joined = now.branch_keys if not open_ else ()
        case "first_success" | Quorum():
            wanted = group.on_error.n if isinstance(group.on_error, Quorum) else 1
            failed = f"{len(good)} of {wanted} branches succeeded" if len(good) + open_ < wanted else ""
            joined = tuple(good[:wanted]) if len(good) >= wanted else ()

    if failed:
        _fail_group(step, group, ended, failed)
    elif joined:
        _join_group(step, group, joined)


def _fail_group(step: Step, group: Parallel, ended: dict[str, Finished], why: str) -> None:
    """The group has failed. What its branches came to stays; a resume tries those that failed once more."""
    now = step.state.next
    assert isinstance(now, RunBranches)
    reasons = "; ".join(
        f"{_branch_label(step, key)}: {end.error or end.stop_reason}"
        for key, end in ended.items()
        if end.stop_reason != "completed"
    )
    step.set(next=replace(now, failure=f"The group {group.name!r} failed: {why} ({reasons})."))


def _join_group(step: Step, group: Parallel, keys: Sequence[str]) -> None:
    now = step.state.next
    assert isinstance(now, RunBranches)
    text = _join_text(group, {_branch_label(step, key): child_output(step.state.children[key])[0] for key in keys})
    archive_children(step, now.branch_keys, group.name)
    step.append(UserMessage(text, origin="join"))

    if group.then is None:
        step.finish("completed", text)
        return

    target = node_name(group.then)

    if target in step.plan.groups:
        start_branches(step, step.plan.groups[target])
        return

    step.set(agent=target)
    step.emit(AgentStarted)
    ask_model_next(step)


def _branch_label(step: Step, key: str) -> str:
    """The branch as a reader is told of it: without the number of the fan-out."""
    forks = step.state.counters.forks
    return key.removeprefix(f"{forks}.") if forks > 1 else key


def _join_text(group: Parallel, words: dict[str, str]) -> str:
    """The results in declared order, an equal share of the cap for each."""
    heading = f"[Results of {group.name}]"
    room = MAX_JOIN_CHARS - len(heading) - sum(len(label) + 6 for label in words)
    share = max(1, room // len(words))
    parts = [f"## {label}\n{truncate_middle(text, share)}" for label, text in words.items()]
    return truncate_middle(f"{heading}\n" + "\n\n".join(parts), MAX_JOIN_CHARS)


def on_branch_timed_out(step: Step, event: BranchTimedOut) -> None:
    """Branches that still work when their group's time is over have failed; one that waits for a person may wait."""
    now = step.state.next

    if not isinstance(now, RunBranches):
        return

    children = dict(step.state.children)

    for key in now.branch_keys:
        child = children[key]

        if not isinstance(child.next, Finished) and not is_blocked(child):
            late = Finished(stop_reason="failed", error=f"timed out after {event.seconds:g} s")
            children[key] = replace(child, next=late, next_before_failure=child.next)

    step.set(children=children)
    evaluate_group(step)
