"""Which groups may leave a history, in which order, and how any policy's decision is kept lawful."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal

from crew.interfaces import HistoryEntry, MessageGroup, PruneDecision
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

_ORIGINS_WITHOUT_REPLY = ("user", "join", "marker")


def group_entries(entries: Sequence[HistoryEntry], goal: str) -> tuple[MessageGroup, ...]:
    """The history as groups, the mandatory ones marked: goal, system messages (identical ones once), frontier."""
    seen: set[str] = set()
    found: list[MessageGroup] = []

    for span in group_spans([entry.message for entry in entries]):
        members = tuple(entries[span])
        first = members[0].message
        must = False

        if isinstance(first, SystemMessage):
            must = first.text not in seen
            seen.add(first.text)

        found.append(
            MessageGroup(
                entries=members,
                size=sum(message_size(entry.message) for entry in members),
                tokens=sum(entry.tokens for entry in members),
                kind=_group_kind(first),
                mandatory=must or (bool(goal) and first.id == goal),
            )
        )

    for index in _newest_groups(found):
        found[index] = replace(found[index], mandatory=True)

    return tuple(found)


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
    """The newest group; for what the framework or a pause's answer adds to a reply, that reply too."""
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


def eviction_order(groups: Sequence[MessageGroup]) -> Iterator[tuple[int, ...]]:
    """What may leave, oldest first: the groups of a turn, and with the last of them the message that opened it.

    So a cut inside a turn leaves that turn's user message standing, and the history always opens with one.
    """
    for opener, members in _turns(groups):
        leaving = [(index,) for index in members if not groups[index].mandatory]

        if opener is not None and not groups[opener].mandatory and not _turn_must_stay(groups, members):
            leaving = [*leaving[:-1], (*(leaving[-1] if leaving else ()), opener)]

        yield from leaving


def last_resort_order(groups: Sequence[MessageGroup]) -> Iterator[int]:
    """User messages whose own turn has to stay: they leave only when nothing else is left to make room."""
    for opener, members in _turns(groups):
        if opener is not None and not groups[opener].mandatory and _turn_must_stay(groups, members):
            yield opener


def _turn_must_stay(groups: Sequence[MessageGroup], members: Sequence[int]) -> bool:
    return any(groups[index].mandatory and groups[index].kind != "system" for index in members)


def _turns(groups: Sequence[MessageGroup]) -> Iterator[tuple[int | None, list[int]]]:
    opener: int | None = None
    members: list[int] = []

    for index, candidate in enumerate(groups):
        if candidate.opens_turn:
            yield opener, members
            opener, members = index, []
        else:
            members.append(index)

    yield opener, members


def evict(groups: Sequence[MessageGroup], gone: set[int], *, target: int, limit: int) -> set[int]:
    """The indexes that leave, beside those already gone, so that `target` messages stay, or at the most `limit`."""
    size = sum(g.size for index, g in enumerate(groups) if index not in gone)
    gone = set(gone)

    for floor, units in ((target, eviction_order(groups)), (limit, ((index,) for index in last_resort_order(groups)))):
        for unit in units:
            if size <= floor:
                break

            fresh = [index for index in unit if index not in gone]
            gone.update(fresh)
            size -= sum(groups[index].size for index in fresh)

    return gone


def protect(groups: Sequence[MessageGroup], spared: Collection[int]) -> tuple[MessageGroup, ...]:
    """The groups, with some more that `evict` leaves alone."""
    return tuple(replace(g, mandatory=True) if i in spared else g for i, g in enumerate(groups))


def enforce_bounds(groups: Sequence[MessageGroup], verdict: PruneDecision, limit: int | None) -> PruneDecision:
    """A policy's decision made lawful: the mandatory part stays, the bound holds, a user's message comes first.

    A summary may stand for what leaves, and for an older summary that it replaces; room for it is made here.
    """
    bound = sum(g.size for g in groups) if limit is None else limit
    kept = {g.entries[0].position for g in verdict.kept if g.entries}
    chosen = {i for i, g in enumerate(groups) if not g.mandatory and g.entries[0].position not in kept}
    gone = _evict_to_limit(groups, chosen, bound)
    wanted = _messages_to_summarize(groups, verdict, gone, chosen)

    if wanted and sum(g.size for i, g in enumerate(groups) if i not in gone) > bound - 1:
        gone = _evict_to_limit(groups, gone, bound - 1)
        wanted = _messages_to_summarize(groups, verdict, gone, chosen)

    shown = {entry.message.id for i, g in enumerate(groups) if i not in gone for entry in g.entries}
    return replace(
        verdict,
        kept=tuple(g for i, g in enumerate(groups) if i not in gone),
        evicted=tuple(g for i, g in enumerate(groups) if i in gone),
        masked=tuple(id for id in verdict.masked if id in shown),
        to_summarize=wanted,
    )


def _evict_to_limit(groups: Sequence[MessageGroup], gone: set[int], limit: int) -> set[int]:
    return _keep_opening_turn(groups, evict(groups, gone, target=limit, limit=limit), limit)


def _messages_to_summarize(
    groups: Sequence[MessageGroup], verdict: PruneDecision, gone: set[int], chosen: set[int]
) -> tuple[str, ...]:
    """What a summary shall stand for, in order: what was named and leaves, older summaries, what left beside it."""
    named = set(verdict.to_summarize)

    def stands(index: int, message: Message) -> bool:
        if index in gone:
            return message.id in named or index not in chosen

        return message.id in named and isinstance(message, SummaryMessage)

    members = [(i, entry.message) for i, g in enumerate(groups) if g.kind != "system" for entry in g.entries]
    found = [message.id for i, message in members if stands(i, message)]
    return tuple(found) if gone and named.intersection(found) else ()


def _keep_opening_turn(groups: Sequence[MessageGroup], gone: set[int], limit: int) -> set[int]:
    """Bring the opener of the first turn back, or let that turn's beginning go with it."""
    for opener, members in _turns(groups):
        staying = [i for i in members if i not in gone and groups[i].kind != "system"]

        if opener is not None and opener not in gone:
            return gone

        if not staying:
            continue

        size = sum(g.size for i, g in enumerate(groups) if i not in gone)

        if opener is not None and size + groups[opener].size <= limit:
            return gone - {opener}

        gone = gone | {i for i in staying if not groups[i].mandatory}

    return gone


def is_summary(group: MessageGroup) -> bool:
    """Whether the group is a summary."""
    return isinstance(group.entries[0].message, SummaryMessage)


def groups_size(history: Sequence[MessageGroup]) -> int:
    """How many messages these groups hold."""
    return sum(g.size for g in history)


def prune_decision(
    history: Sequence[MessageGroup], gone: set[int], reason: str, to_summarise: set[int] | None = None
) -> PruneDecision:
    """The decision that these groups leave; and that a summary shall stand for those."""
    named = to_summarise or set()
    return PruneDecision(
        kept=tuple(g for i, g in enumerate(history) if i not in gone),
        evicted=tuple(g for i, g in enumerate(history) if i in gone),
        to_summarize=tuple(e.message.id for i, g in enumerate(history) if i in named for e in g.entries),
        reason=reason if gone else "",
    )


Unit = Literal["tokens", "size"]


def drop(groups: Sequence[MessageGroup], *, target: float, ceiling: float, by: Unit = "tokens") -> set[int]:
    """The indexes that leave, so that no more than `target` stays; of what should stay, only down to `ceiling`."""
    total = sum(_amount(g, by) for g in groups)
    gone: set[int] = set()
    steps = chain(
        ((target, unit) for unit in eviction_order(groups)), ((ceiling, (i,)) for i in last_resort_order(groups))
    )

    for floor, unit in steps:
        if total <= floor:
            continue

        gone.update(unit)
        total -= sum(_amount(groups[index], by) for index in unit)

    return gone


def _amount(group: MessageGroup, by: Unit) -> int:
    return group.tokens if by == "tokens" else group.size
