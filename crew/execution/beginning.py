"""How a run begins: on what another one left, with messages that each have a name of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from crew.execution.outcome import at_rest
from crew.history import History
from crew.messages import Message, weight
from crew.runs import RunState, Tally


def continued(state: RunState, before: RunState) -> RunState:
    """A new run that goes on where another one stood: its history at rest, its transcript, its views."""
    entries = at_rest(before.history.entries)
    history = History(entries=entries, size=sum(weight(entry.message) for entry in entries))
    return replace(
        state,
        conversation_id=before.conversation_id,
        history=history,
        transcript=before.transcript,
        forked_at=len(before.transcript),
        views={name: view.afresh() for name, view in before.views.items()},
        gauges=before.gauges,
        calibrations=before.calibrations,
        known=before.known,
        backlog=before.backlog,
        tally=Tally(seen_tokens=before.tally.seen_tokens),
    )


def unique(messages: Sequence[Message]) -> list[Message]:
    """The messages, each id used once: a second one under the same id is named anew."""
    seen: set[str] = set()
    out: list[Message] = []

    for message in messages:
        out.append(replace(message, id="") if message.id and message.id in seen else message)
        seen.add(message.id)

    return out
