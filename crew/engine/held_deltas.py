"""`HeldDeltas`: pieces of streamed replies that appear only after guardrails accepted the input or the reply."""

from __future__ import annotations

from dataclasses import dataclass, field

from crew.runs.events import TextDelta


@dataclass(slots=True)
class HeldDeltas:
    """The pieces that are held back, by run."""

    _held: dict[str, list[TextDelta]] = field(default_factory=dict)

    def hold(self, run_id: str) -> None:
        """Hold back the pieces of this run from now on."""
        self._held.setdefault(run_id, [])

    def keep(self, delta: TextDelta) -> bool:
        """Keep a piece, if those of its run are held back; whether they are."""
        if (held := self._held.get(delta.run_id)) is None:
            return False

        held.append(delta)
        return True

    def take(self, run_id: str) -> list[TextDelta]:
        """The pieces of this run, which are not held back any more."""
        return self._held.pop(run_id, [])

    def restart(self, run_id: str) -> bool:
        """Drop the pieces so far, if those of this run are held back; whether they are."""
        if run_id not in self._held:
            return False

        self._held[run_id] = []
        return True
