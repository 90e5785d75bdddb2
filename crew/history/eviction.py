"""Eviction: how messages form groups, in which order groups are evicted, and which bounds every decision must keep."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from crew.errors import CrewError, RunError, describe
from crew.interfaces import HistoryBudget, HistoryEntry, MessageGroup, Policy, PruneDecision
from crew.message_rules.validate import group_spans
from crew.messages import (
    AssistantMessage,
    Message,
    SummaryMessage,
    SystemMessage,
    ToolMessage,
    UserMessage,
    message_size,
)

# User messages of other origins (a route, a pause's answer, …) continue the reply before them.
_ORIGINS_WITHOUT_REPLY = ("user", "join", "marker")

Unit = Literal["tokens", "size"]


# ------------------------------------------------------------------------------------------ groups


def group_entries(entries: Sequence[HistoryEntry], goal: str) -> tuple[MessageGroup, ...]:
    """Group a history. Mandatory are the goal, the system messages (identical ones once) and the newest group."""
    groups = _groups(tuple(entries))
    system_texts: set[str] = set()

    for index in [i for i, g in enumerate(groups) if g.kind == "system" or (goal and g.entries[0].message.id == goal)]:
        first = groups[index].entries[0].message

        if isinstance(first, SystemMessage):
            if first.text in system_texts and first.id != goal:
                continue

            system_texts.add(first.text)

        groups[index] = replace(groups[index], mandatory=True)

    for index in _newest_groups(groups):
        groups[index] = replace(groups[index], mandatory=True)

    return tuple(groups)


def prepare_newest_group(entries: tuple[HistoryEntry, ...]) -> None:
    """Build the newest group once it is complete, so that a pruning need not build a thousand groups at once."""
    start = len(entries) - 1

    while start > 0 and isinstance(entries[start].message, ToolMessage):
        start -= 1

    _groups(entries[start:])


def _groups(entries: tuple[HistoryEntry, ...]) -> list[MessageGroup]:
    """The groups; each is kept with its first message, since the next pruning needs it again."""
    groups: list[MessageGroup] = []

    for span in group_spans([entry.message for entry in entries]):
        members = entries[span]
        cache = members[0].message.cache()
        group = cache.get("group")

        if group is None or group.entries != members:
            group = cache["group"] = _build_group(members)

        groups.append(group)

    return groups


def _build_group(entries: tuple[HistoryEntry, ...]) -> MessageGroup:
    size = tokens = 0

    for entry in entries:
        size += message_size(entry.message)
        tokens += entry.tokens

    return MessageGroup(entries=entries, size=size, tokens=tokens, kind=_group_kind(entries[0].message))


def _group_kind(first: Message) -> Literal["system", "user", "reply", "exchange", "results"]:
    match first:
        case SystemMessage():
            return "system"
        case AssistantMessage():
            return "exchange" if first.calls else "reply"
        case ToolMessage():
            return "results"
        case _:
            return "user"


def _newest_groups(groups: Sequence[MessageGroup]) -> Iterator[int]:
    """The index of the newest group, and of the reply before it if the newest is a user message that continues it."""
    last = len(groups) - 1

    if last < 0:
        return

    yield last
    newest = groups[last].entries[0].message

    if (
        isinstance(newest, UserMessage)
        and newest.origin not in _ORIGINS_WITHOUT_REPLY
        and last
        and groups[last - 1].kind == "reply"
    ):
        yield last - 1


def is_summary(group: MessageGroup) -> bool:
    return isinstance(group.entries[0].message, SummaryMessage)


def groups_size(groups: Sequence[MessageGroup]) -> int:
    """The number of messages in these groups."""
    return sum([g.size for g in groups])


def protect(groups: Sequence[MessageGroup], protected: Collection[int]) -> tuple[MessageGroup, ...]:
    """The same groups, those at the indexes `protected` mandatory too."""
    return tuple(replace(g, mandatory=True) if i in protected else g for i, g in enumerate(groups))


# ------------------------------------------------------------------------------------------ order of eviction


def eviction_order(groups: Sequence[MessageGroup]) -> Iterator[tuple[int, ...]]:
    """Indexes of the groups that may be evicted, oldest first; a turn's user message goes with the turn's last group.

    So a cut inside a turn keeps its user message, and the history always starts with one. Summaries are not among them.
    """
    for opener, members in _turns(groups):
        units = [(index,) for index in members if not groups[index].mandatory]

        # Without a mandatory group in the turn, which is the usual case, the members need not be looked at again.
        stays = len(units) < len(members) and _has_mandatory(groups, members)

        if opener is None or stays or not _may_leave(groups[opener]):
            yield from units
        else:
            yield from units[:-1]
            yield (*(units[-1] if units else ()), opener)


def last_resort_order(groups: Sequence[MessageGroup]) -> Iterator[tuple[int, ...]]:
    """User messages whose turn has a mandatory group: evicted only if no other verbatim message is left to evict."""
    for opener, members in _turns(groups):
        if opener is not None and _may_leave(groups[opener]) and _has_mandatory(groups, members):
            yield (opener,)


def _may_leave(opener: MessageGroup) -> bool:
    return not (opener.mandatory or isinstance(opener.entries[0].message, SummaryMessage))


def _older_summaries(groups: Sequence[MessageGroup]) -> Iterator[tuple[int, ...]]:
    """All summaries but the newest, oldest first."""
    yield from _summaries(groups)[:-1]


def _newest_summary(groups: Sequence[MessageGroup]) -> Iterator[tuple[int, ...]]:
    yield from _summaries(groups)[-1:]


def _summaries(groups: Sequence[MessageGroup]) -> list[tuple[int, ...]]:
    return [(index,) for index, g in enumerate(groups) if is_summary(g) and not g.mandatory]


def _has_mandatory(groups: Sequence[MessageGroup], members: Sequence[int]) -> bool:
    return any(groups[index].mandatory and groups[index].kind != "system" for index in members)


def _turns(groups: Sequence[MessageGroup]) -> Iterator[tuple[int | None, list[int]]]:
    """Each turn: the index of the user message that opens it (None before the first), and those of its groups."""
    opener: int | None = None
    members: list[int] = []

    for index, group in enumerate(groups):
        if group.opens_turn:
            yield opener, members
            opener, members = index, []
        else:
            members.append(index)

    yield opener, members


def evict(
    groups: Sequence[MessageGroup],
    evicted: Collection[int] = (),
    *,
    target: float,
    limit: float,
    by: Unit = "size",
) -> set[int]:
    """Evict in order until at most `target` remains; groups of the last resort only while more than `limit` remains.

    Summaries leave after every verbatim message that may leave, oldest first; the newest one is a last resort too.
    Returns the indexes of all evicted groups, including those in `evicted`, which are gone already.
    """
    amounts = [g.tokens if by == "tokens" else g.size for g in groups]
    gone = set(evicted)
    remaining = sum(amounts) - sum([amounts[index] for index in gone])

    for floor, order in (
        (target, eviction_order),
        (limit, last_resort_order),
        (target, _older_summaries),
        (limit, _newest_summary),
    ):
        if remaining <= floor:
            continue

        for unit in order(groups):
            for index in unit:
                if index not in gone:
                    gone.add(index)
                    remaining -= amounts[index]

            if remaining <= floor:
                break

    return gone


def prune_decision(
    groups: Sequence[MessageGroup], gone: Collection[int], reason: str, to_summarize: Collection[int] = ()
) -> PruneDecision:
    """The decision to evict the groups at the indexes `gone`, and to summarize those at `to_summarize`."""
    kept, evicted = _partition(groups, gone)
    return PruneDecision(
        kept=kept,
        evicted=evicted,
        to_summarize=tuple(e.message.id for i, g in enumerate(groups) if i in to_summarize for e in g.entries),
        reason=reason if gone else "",
    )


def _partition(
    groups: Sequence[MessageGroup], gone: Collection[int]
) -> tuple[tuple[MessageGroup, ...], tuple[MessageGroup, ...]]:
    """The groups that stay, and those at the indexes `gone`."""
    kept: list[MessageGroup] = []
    evicted: list[MessageGroup] = []

    for index, group in enumerate(groups):
        (evicted if index in gone else kept).append(group)

    return tuple(kept), tuple(evicted)


# ------------------------------------------------------------------------------------------ bounds


def call_policy(policy: Policy, groups: Sequence[MessageGroup], budget: HistoryBudget) -> PruneDecision:
    """The decision of a policy. Raises `RunError` with the policy's name if it fails or returns something else."""
    try:
        decision: object = policy.prune(groups, budget)
    except CrewError:
        raise
    except Exception as error:  # the policy boundary: user code may raise anything
        raise RunError(f"The history policy {policy.name!r} failed: {describe(error)}") from error

    if not isinstance(decision, PruneDecision):
        kind = type(decision).__name__
        raise RunError(f"The history policy {policy.name!r} must return a PruneDecision, not {kind}")

    return decision


def enforce_bounds(groups: Sequence[MessageGroup], decision: PruneDecision, limit: int | None) -> PruneDecision:
    """Correct a policy's decision: mandatory groups stay, the limit holds, and a user message comes first.

    A summary covers messages that are evicted, and the older summary that it replaces. One message is reserved for it.
    """
    bound = groups_size(groups) if limit is None else limit
    kept = {g.entries[0].position for g in decision.kept if g.entries}
    chosen = {i for i, g in enumerate(groups) if not g.mandatory and g.entries[0].position not in kept}
    gone = _evict_to_limit(groups, chosen, bound)
    to_summarize = _messages_to_summarize(groups, decision, gone, chosen)

    if to_summarize and sum(g.size for i, g in enumerate(groups) if i not in gone) > bound - 1:
        gone = _evict_to_limit(groups, gone, bound - 1)
        to_summarize = _messages_to_summarize(groups, decision, gone, chosen)

    staying, evicted = _partition(groups, gone)
    ids = {entry.message.id for g in staying for entry in g.entries} if decision.masked else ()
    return replace(
        decision,
        kept=staying,
        evicted=evicted,
        masked=tuple(id for id in decision.masked if id in ids),
        to_summarize=to_summarize,
    )


def _evict_to_limit(groups: Sequence[MessageGroup], evicted: set[int], limit: int) -> set[int]:
    return _keep_opening_turn(groups, evict(groups, evicted, target=limit, limit=limit), limit)


def _messages_to_summarize(
    groups: Sequence[MessageGroup], decision: PruneDecision, gone: set[int], chosen: set[int]
) -> tuple[str, ...]:
    """The ids that a summary covers, in order.

    These are the evicted messages that the policy names or did not choose to evict itself, and the older summaries
    that it names. None if nothing that the policy names is among them.
    """
    if not decision.to_summarize or not gone:
        return ()

    named = set(decision.to_summarize)

    def is_covered(index: int, message: Message) -> bool:
        if index in gone:
            return message.id in named or index not in chosen

        return message.id in named and isinstance(message, SummaryMessage)

    members = [(i, entry.message) for i, g in enumerate(groups) if g.kind != "system" for entry in g.entries]
    covered = [message.id for i, message in members if is_covered(i, message)]
    return tuple(covered) if named.intersection(covered) else ()


def _keep_opening_turn(groups: Sequence[MessageGroup], gone: set[int], limit: int) -> set[int]:
    """Make the history start with a user message: restore that of the first turn, or evict more of the turn."""
    first = next((g for i, g in enumerate(groups) if i not in gone and g.kind != "system"), None)

    if first is None or first.opens_turn:
        return gone

    for opener, members in _turns(groups):
        if opener is not None and opener not in gone:
            return gone

        staying = [i for i in members if i not in gone and groups[i].kind != "system"]

        if not staying:
            continue

        size = sum(g.size for i, g in enumerate(groups) if i not in gone)

        if opener is not None and size + groups[opener].size <= limit:
            return gone - {opener}

        gone = gone | {i for i in staying if not groups[i].mandatory}

    return gone
