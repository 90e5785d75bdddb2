"""`MemoryStore`: runs in the memory of this process."""

from __future__ import annotations

from collections.abc import Sequence

from crew.errors import RunConflict, RunExists, UnknownRun
from crew.runs.events import Event
from crew.runs.interfaces import StoredRun
from crew.runs.state import Finished, RunState

REMEMBERED_IDS = 100_000


class MemoryStore:
    """Keeps resumable runs (paused, interrupted, failed) and drops finished ones.

    The newest 100,000 ids of finished runs stay taken.
    """

    def __init__(self) -> None:
        self._runs: dict[str, StoredRun] = {}
        self._finished: dict[str, None] = {}

    def commits_immediately(self) -> bool:
        """True unless a subclass overrides `commit`: its version may suspend."""
        return type(self).commit is MemoryStore.commit

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        """Replace the stored state."""
        known = self._runs.get(run_id)

        if version == 0 and (known is not None or run_id in self._finished):
            raise RunExists(run_id)

        if version and (known is None or known.version != version):
            raise RunConflict(run_id, version, known.version if known else 0)

        if isinstance(state.next, Finished):
            self._runs.pop(run_id, None)
            self._finished[run_id] = None

            if len(self._finished) > REMEMBERED_IDS:
                del self._finished[next(iter(self._finished))]
        else:
            self._runs[run_id] = StoredRun(version=version + 1, state=state)

    async def load(self, run_id: str) -> StoredRun:
        """The newest state."""
        if run_id not in self._runs:
            raise UnknownRun(run_id)

        return self._runs[run_id]

    def __len__(self) -> int:
        return len(self._runs)
