"""`JournalRun`: a run that keeps a journal of the events that it records and emits, instead of storing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from crew.engine.event_stamps import AnyEvent
from crew.engine.run import ActiveRun
from crew.errors import UnknownRun
from crew.fast_replace import fast_replace
from crew.runs.events import Event, TextDelta, ToolProgress
from crew.runs.interfaces import StoredRun
from crew.runs.state import RunState


@dataclass(slots=True, kw_only=True)
class JournalEntry:
    """An event with its number and time. An input event changes the state; any other one only reports something.

    `source` is the key of the effect that produced the event, and its index in the outcome of that effect.
    """

    event: Event
    is_input: bool = False
    source: tuple[str, int] | None = None


class JournalStore:
    """The store of a `JournalRun`: a commit marks its input event in the journal, and nothing is written."""

    def __init__(self) -> None:
        self.journal: list[JournalEntry] = []

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        """Mark the newest entry, which is the input event of this commit."""
        self.journal[-1].is_input = True

    def commits_immediately(self) -> bool:
        """A commit never suspends, so that no event is numbered between an input event and its commit."""
        return True

    async def load(self, run_id: str) -> StoredRun:
        """Nothing is stored here."""
        raise UnknownRun(run_id)


@dataclass(slots=True, kw_only=True, eq=False)
class JournalRun(ActiveRun):
    """A run whose events are in `journal`. `sources` are those of the events that are about to be recorded, by `id`.

    `since` is the time of the input event before the first one that is recorded here.
    """

    journal: list[JournalEntry]
    sources: dict[int, tuple[str, int]] = field(default_factory=dict)
    since: float | None = None

    def __post_init__(self) -> None:
        # Not super(): a dataclass with slots is another class than the one that super() refers to.
        ActiveRun.__post_init__(self)
        self._last_input_at = self.since

    def restart_time(self) -> None:
        """Do not count the time until the next input event: the run waits for a person."""
        self._last_input_at = None

    def _stamp(self, event: AnyEvent, run: RunState, since: float | None = None) -> AnyEvent:
        stamped = ActiveRun._stamp(self, event, run, since)
        source = self.sources.pop(id(event), None)

        if source is not None and since is None and event.at:
            # Reported by an effect elsewhere, when it happened there; the order of the events stays.
            newest = self.journal[-1].event.at if self.journal else self.state.last_event_at
            stamped = fast_replace(stamped, at=min(max(event.at, newest), stamped.at))

        if not isinstance(stamped, TextDelta | ToolProgress):
            self.journal.append(JournalEntry(event=stamped, source=source))  # type: ignore[arg-type]  # all are events

        return stamped
