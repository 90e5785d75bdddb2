"""`MemoryStore`: the newest runs, in the memory of this process."""

from __future__ import annotations

import logging
import sys
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from pydantic import JsonValue

from crew.errors import ConversationBusy, DefinitionError, RunConflict, RunExists, RunExpired, UnknownRun
from crew.messages import Message
from crew.runs.events import Event, RunFailed
from crew.runs.interfaces import Cursor, FoundMessage, RunPage, RunRecord, StoredEvent, StoredRun, StoredRunInfo
from crew.runs.state import Finished, RunState, is_blocked, run_status
from crew.settings import NonNegativeInt, PositiveInt, Seconds, value_problems
from crew.store.codec import message_sections
from crew.store.event_waiters import EventWaiters
from crew.store.rows import check_page, continued_error, message_text, metadata_rows

log = logging.getLogger("crew")

REMEMBERED_IDS = 100_000


class MemoryStore:
    """Keeps a bounded number of runs, so that a long-lived process does not grow.

    max_finished       how many finished runs it keeps, for `run`, beside those that a service still needs (`hold`).
    max_unfinished     how many runs it keeps that can be resumed: paused, interrupted and failed ones, and active ones.
    max_conversations  how many conversations it keeps: of each, the last run with all messages.
    max_age            for how many seconds after its last commit it keeps a run or a conversation; None: no limit.

    Each commit drops what is too much or too old, by the times of the commits. The run whose last commit is the oldest
    leaves first. An active run that left returns with its next commit; to resume another one raises `RunExpired`. The
    newest 100,000 ids of runs that finished or left stay taken; those of runs that `forget` erased are free.
    """

    def __init__(
        self,
        max_finished: int = 100,
        max_unfinished: int = 1_000,
        max_conversations: int = 1_000,
        max_age: float | None = None,
    ) -> None:
        problems = value_problems(NonNegativeInt, {"max_finished": max_finished})
        problems += value_problems(
            PositiveInt, {"max_unfinished": max_unfinished, "max_conversations": max_conversations}
        )

        if max_age is not None:
            problems += value_problems(Seconds, {"max_age": max_age})

        if problems:
            raise DefinitionError("MemoryStore", problems)

        self._max_finished, self._max_unfinished = max_finished, max_unfinished
        self._max_conversations, self._max_age = max_conversations, max_age
        # Both are in the order of the last commits.
        self._unfinished: OrderedDict[str, StoredRun] = OrderedDict()
        self._finished: OrderedDict[str, StoredRun] = OrderedDict()
        self._held: Counter[str] = Counter()
        self._events: dict[str, list[StoredEvent]] = {}
        self._waiters = EventWaiters()
        self._created: dict[str, float] = {}
        self._failed: dict[str, int] = {}
        """The versions of the runs that failed."""
        self._conversations: OrderedDict[str, StoredRun] = OrderedDict()
        self._past_conversations: dict[int, int] = {}
        self._past_versions: dict[int, int] = {}
        """By the hash of its id, which takes half of the memory: the version of an unfinished run that left, else 0."""

    def hold(self, run_id: str) -> Callable[[], None]:
        """Keep a run beyond its end until the returned function is called, and the next commit drops it."""
        self._held[run_id] += 1
        is_released = False

        def release() -> None:
            nonlocal is_released

            if is_released:
                return

            is_released = True
            self._held[run_id] -= 1

            if not self._held[run_id]:
                del self._held[run_id]

        return release

    def commits_immediately(self) -> bool:
        """True unless a subclass overrides `commit`: its version may suspend."""
        return type(self).commit is MemoryStore.commit

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        """Replace the stored state."""
        known = self._unfinished.get(run_id)
        newest = known.version if known is not None else self._past_versions.get(hash(run_id))

        if version == 0 and newest is not None:
            raise RunExists(run_id)

        if version and newest != version:
            raise RunConflict(run_id, version, newest or 0)

        last = self._last_run(state.conversation_id) if version == 0 and state.turn else None

        if last is not None and last.state.run_id != state.parent_run:
            raise ConversationBusy(state.conversation_id, last.state.run_id)

        stored = StoredRun(version=version + 1, state=state)
        self._created.setdefault(run_id, state.last_event_at)
        self._log(run_id, version + 1, events)
        self._note_turn(stored)

        if isinstance(state.next, Finished):
            self._unfinished.pop(run_id, None)
            self._remember(run_id, 0)
            self._finished[run_id] = stored
        else:
            self._unfinished[run_id] = stored
            self._unfinished.move_to_end(run_id)

        self._drop_surplus(state.last_event_at)

    def _drop_surplus(self, now: float) -> None:
        if self._has_surplus(self._finished, self._max_finished, now):
            self._drop_finished(now)

        while self._has_surplus(self._unfinished, self._max_unfinished, now):
            self._expire(next(iter(self._unfinished)))

        while self._has_surplus(self._conversations, self._max_conversations, now):
            left, _ = self._conversations.popitem(last=False)
            self._past_conversations = _remembered(self._past_conversations, left, 0)

    def _drop_finished(self, now: float) -> None:
        """Drop the oldest of the finished runs that nothing holds."""
        while not self._held and self._has_surplus(self._finished, self._max_finished, now):
            self._drop(self._finished.popitem(last=False)[0])

        if not self._held:
            return

        # A copy of a copy: runs of other threads may finish in the meantime.
        free = OrderedDict((run_id, run) for run_id, run in [*self._finished.items()] if run_id not in self._held)

        while self._has_surplus(free, self._max_finished, now):
            self._drop(free.popitem(last=False)[0])

    def _has_surplus(self, kept: OrderedDict[str, StoredRun], most: int, now: float) -> bool:
        """Whether these are too many, or the first one is too old; they are in the order of their last commits."""
        if len(kept) > most or not kept or self._max_age is None:
            return len(kept) > most

        return now - next(iter(kept.values())).state.last_event_at > self._max_age

    def _expire(self, run_id: str) -> None:
        stored = self._unfinished[run_id]
        self._remember(run_id, stored.version)
        self._drop(run_id)

        if is_blocked(stored.state):
            age = "" if self._max_age is None else f", max_age={self._max_age:g}"
            log.warning(
                "Run %s, which waits for an answer, left the memory: MemoryStore(max_unfinished=%s%s) keeps the newest "
                "ones. To keep all, raise these bounds or use a file: CrewExecutor(store='runs.db').",
                run_id,
                self._max_unfinished,
                age,
            )

    def _note_turn(self, stored: StoredRun) -> None:
        """Keep the newest run of a conversation."""
        state, id = stored.state, stored.state.conversation_id
        known = self._conversations.get(id)
        follows = state.turn > 0 if known is None else stored.version == 1 or known.state.run_id == state.run_id

        if follows:
            self._conversations[id] = stored
            self._conversations.move_to_end(id)

    def _remember(self, run_id: str, version: int) -> None:
        self._past_versions = _remembered(self._past_versions, run_id, version)

    def _last_run(self, conversation_id: str) -> StoredRun | None:
        if conversation_id in self._conversations:
            return self._conversations[conversation_id]

        if hash(conversation_id) in self._past_conversations:
            raise RunExpired(
                conversation_id,
                self._max_conversations,
                what="Conversation",
                option="max_conversations",
                max_age=self._max_age,
            )

        runs = (*self._unfinished.values(), *self._finished.values())
        found = [stored for stored in runs if stored.state.conversation_id == conversation_id]
        return max(found, key=lambda stored: stored.state.last_event_at, default=None)

    async def last_turn(self, conversation_id: str) -> StoredRun | None:
        """The newest run of a conversation, with its whole transcript."""
        return self._last_run(conversation_id)

    async def load(self, run_id: str) -> StoredRun:
        """The newest state of a run that can be resumed."""
        if run_id in self._unfinished:
            return self._unfinished[run_id]

        if run_id in self._finished:
            raise UnknownRun(run_id, is_finished=True)

        if self._past_versions.get(hash(run_id)):
            raise RunExpired(run_id, self._max_unfinished, max_age=self._max_age)

        raise UnknownRun(run_id)

    # ------------------------------------------------------------------------------------------ reading

    async def append_events(self, run_id: str, version: int, events: Sequence[Event]) -> None:
        """Append events to the newest commit."""
        known = self._unfinished.get(run_id) or self._finished.get(run_id)

        if known is not None and known.version == version:
            self._log(run_id, version, events)

            if any(isinstance(event, RunFailed) and event.run_id == run_id for event in events):
                self._failed[run_id] = version

    async def runs(
        self,
        *,
        crew: str | None = None,
        status: str | None = None,
        conversation: str | None = None,
        since: float | None = None,
        limit: int = 50,
        cursor: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> RunPage:
        """The runs that match, newest first, a page of them."""
        check_page(status, limit, cursor, metadata)
        wanted = {*metadata_rows(metadata or {})}
        infos = sorted(
            (self._info(stored) for stored in self._all()), key=lambda info: (info.updated, info.run_id), reverse=True
        )
        before = None if cursor is None else (float(cursor.partition(" ")[0]), cursor.partition(" ")[2])
        found = [
            info
            for info in infos
            if crew in (None, info.crew)
            and status in (None, info.status)
            and conversation in (None, info.conversation_id)
            and (since is None or info.updated >= since)
            and (not wanted or wanted <= {*metadata_rows(info.metadata)})
            and (before is None or (info.updated, info.run_id) < before)
        ]
        last = found[limit - 1] if len(found) > limit else None
        return RunPage(runs=tuple(found[:limit]), cursor=None if last is None else f"{last.updated!r} {last.run_id}")

    async def info(self, run_id: str) -> StoredRunInfo:
        """The facts of a run, also if it has finished."""
        return self._info(await self._find(run_id))

    async def run(self, run_id: str) -> RunRecord:
        """A run with its newest state, also if it has finished."""
        stored = await self._find(run_id)
        return RunRecord(info=self._info(stored), state=stored.state)

    async def events(self, run_id: str, after: Cursor | None = None, limit: int = 1_000) -> tuple[StoredEvent, ...]:
        """The events of a run after a cursor, in order."""
        check_page(limit=limit)
        await self._find(run_id)
        events = self._events.get(run_id, [])
        start = 0 if after is None else bisect_right(events, after, key=lambda one: one.cursor)
        return tuple(events[start : start + limit])

    async def wait_for_events(self, run_id: str, after: Cursor | None = None, timeout: float | None = None) -> bool:
        """Wait until the run has a stored event after this cursor; False after `timeout` seconds."""

        async def is_stored() -> bool:
            events = self._events.get(run_id, [])
            return bool(events) and (after is None or events[-1].cursor > after)

        return await self._waiters.wait(run_id, is_stored, timeout)

    async def transcript(self, run_id: str) -> tuple[Message, ...]:
        """Every message of a run, or of the newest run of a conversation."""
        in_conversation = [stored for stored in self._all() if stored.state.conversation_id == run_id]
        is_run = run_id in self._finished or run_id in self._unfinished
        stored = await self._find(run_id) if is_run or not in_conversation else in_conversation[-1]
        return tuple(stored.state.transcript)

    async def conversation(self, conversation_id: str) -> tuple[StoredRunInfo, ...]:
        """The runs of a conversation, oldest first."""
        infos = [self._info(stored) for stored in self._all() if stored.state.conversation_id == conversation_id]
        return tuple(sorted(infos, key=lambda info: info.created))

    async def search(self, words: str, *, limit: int = 20) -> tuple[FoundMessage, ...]:
        """The messages that contain all these words, newest first."""
        check_page(limit=limit)
        wanted = [word.casefold() for word in words.split()]
        found: list[FoundMessage] = []

        for info in (await self.runs(limit=sys.maxsize)).runs if wanted else ():
            stored = await self._find(info.run_id)

            for section in message_sections(stored.state):
                for position, message in reversed([*section.numbered()]):
                    is_own = section.path != info.run_id or position >= stored.state.inherited_messages
                    text = message_text(message).casefold()

                    if is_own and all(word in text for word in wanted):
                        found.append(FoundMessage(run_id=section.path, position=position, message=message))

        found.sort(key=lambda one: one.message.time, reverse=True)
        return tuple(found[:limit])

    async def forget(self, id: str, *, conversation: bool = False) -> int:
        """Erase a run or a conversation; the number of runs erased."""
        runs = [stored.state for stored in self._all()]
        erased = set() if conversation else {state.run_id for state in runs if state.run_id == id}
        erased = erased or {state.run_id for state in runs if state.conversation_id == id}

        if not erased:
            raise UnknownRun(id)

        if later := [state for state in runs if state.parent_run in erased and state.run_id not in erased]:
            raise continued_error(id, later[0].run_id, later[0].conversation_id)

        for run_id in erased:
            self._drop(run_id)
            self._past_versions.pop(hash(run_id), None)

        kept = {key: stored for key, stored in self._conversations.items() if stored.state.run_id not in erased}
        self._conversations = OrderedDict(kept)
        return len(erased)

    def _all(self) -> Iterator[StoredRun]:
        heads = (stored for stored in self._conversations.values() if stored.state.run_id not in self._created)
        yield from (*heads, *self._finished.values(), *self._unfinished.values())

    async def _find(self, run_id: str) -> StoredRun:
        if run_id in self._finished:
            return self._finished[run_id]

        heads = (stored for stored in self._conversations.values() if stored.state.run_id == run_id)
        return next(heads, None) or await self.load(run_id)

    def _info(self, stored: StoredRun) -> StoredRunInfo:
        state = stored.state
        failed = self._failed.get(state.run_id) == stored.version
        return StoredRunInfo(
            run_id=state.run_id,
            conversation_id=state.conversation_id,
            crew=state.crew,
            agent=state.agent,
            status="failed" if failed else run_status(state),
            version=stored.version,
            messages=len(state.transcript),
            created=self._created.get(state.run_id, state.last_event_at),
            updated=state.last_event_at,
            metadata=state.metadata,
        )

    def _log(self, run_id: str, version: int, events: Sequence[Event]) -> None:
        logged = self._events.setdefault(run_id, [])
        first = logged[-1].cursor.number + 1 if logged and logged[-1].cursor.version == version else 0
        logged += (StoredEvent(cursor=Cursor(version, first + n), event=event) for n, event in enumerate(events))
        self._waiters.notify(run_id)

    def _drop(self, run_id: str) -> None:
        for kept in (self._finished, self._unfinished, self._events, self._created, self._failed):
            kept.pop(run_id, None)

    def __len__(self) -> int:
        """The number of runs that can be resumed."""
        return len(self._unfinished)


def _remembered(past: dict[int, int], id: str, version: int) -> dict[int, int]:
    """The ids of the past with one more, by their hashes; the newest 100,000 or so stay."""
    past[hash(id)] = version
    surplus = len(past) - REMEMBERED_IDS
    # Not one by one: to find the first key of a dict takes longer the more keys were deleted before it.
    return dict(islice(past.items(), surplus, None)) if surplus > REMEMBERED_IDS // 100 else past
