"""`MemoryStore`: the newest runs, in the memory of this process."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

from crew.errors import DefinitionError, RunConflict, RunExists, RunExpired, UnknownRun
from crew.runs.events import Event
from crew.runs.interfaces import StoredRun
from crew.runs.state import Finished, RunState, is_blocked
from crew.settings import NonNegativeInt, PositiveInt, value_problems

log = logging.getLogger("crew")

REMEMBERED_IDS = 100_000


class MemoryStore:
    """Keeps a bounded number of runs, so that a long-lived process does not grow.

    max_finished    how many finished runs it keeps, for `run`.
    max_unfinished  how many runs it keeps that can be resumed: paused, interrupted and failed ones, and active ones.

    The run whose last commit is the oldest leaves first. An active run that left returns with its next commit; to
    resume another one raises `RunExpired`. The newest 100,000 ids of runs that finished or left stay taken.
    """

    def __init__(self, max_finished: int = 100, max_unfinished: int = 1_000) -> None:
        problems = value_problems(NonNegativeInt, {"max_finished": max_finished})
        problems += value_problems(PositiveInt, {"max_unfinished": max_unfinished})

        if problems:
            raise DefinitionError("MemoryStore", problems)

        self._max_finished, self._max_unfinished = max_finished, max_unfinished
        # Both are in the order of the last commits.
        self._unfinished: OrderedDict[str, StoredRun] = OrderedDict()
        self._finished: OrderedDict[str, StoredRun] = OrderedDict()
        self._past_versions: dict[int, int] = {}
        """By the hash of its id, which takes half of the memory: the version of an unfinished run that left, else 0."""

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

        stored = StoredRun(version=version + 1, state=state)

        if isinstance(state.next, Finished):
            self._unfinished.pop(run_id, None)
            self._remember(run_id, 0)
            self._finished[run_id] = stored

            while len(self._finished) > self._max_finished:
                self._finished.popitem(last=False)
        else:
            self._unfinished[run_id] = stored
            self._unfinished.move_to_end(run_id)

            while len(self._unfinished) > self._max_unfinished:
                self._expire(*self._unfinished.popitem(last=False))

    def _expire(self, run_id: str, stored: StoredRun) -> None:
        self._remember(run_id, stored.version)

        if is_blocked(stored.state):
            log.warning(
                "Run %s, which waits for an answer, left the memory: MemoryStore(max_unfinished=%s) keeps the newest "
                "ones. To keep all, raise that number or use a file: CrewExecutor(store='runs.db').",
                run_id,
                self._max_unfinished,
            )

    def _remember(self, run_id: str, version: int) -> None:
        self._past_versions[hash(run_id)] = version
        surplus = len(self._past_versions) - REMEMBERED_IDS

        # Not one by one: to find the first key of a dict takes longer the more keys were deleted before it.
        if surplus > REMEMBERED_IDS // 100:
            self._past_versions = dict(islice(self._past_versions.items(), surplus, None))

    async def load(self, run_id: str) -> StoredRun:
        """The newest state of a run that can be resumed."""
        if run_id in self._unfinished:
            return self._unfinished[run_id]

        if self._past_versions.get(hash(run_id)):
            raise RunExpired(run_id, self._max_unfinished)

        raise UnknownRun(run_id)

    async def run(self, run_id: str) -> StoredRun:
        """The newest state of a run, also if it has finished."""
        return self._finished[run_id] if run_id in self._finished else await self.load(run_id)

    def __len__(self) -> int:
        """The number of runs that can be resumed."""
        return len(self._unfinished)
