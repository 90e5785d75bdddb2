"""Summaries of one agent's view: which messages wait for one, when it is due, and how it takes their place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from crew.fast_replace import fast_replace
from crew.history.history import History
from crew.history.summaries import has_text
from crew.history.view import (
    RequestView,
    View,
    ViewSummaries,
    ViewSummary,
    code_position,
    hide_positions,
    rebuild_entry,
    visible_entries,
)
from crew.interfaces import HistoryEntry, MessageGroup
from crew.messages import AssistantMessage, SummaryMessage, SystemMessage, Transcript, message_size


def shows_position(view: View, position: int) -> bool:
    """Whether the view shows the message at this position while the history holds it."""
    hidden = position < view.hidden_before and position not in view.still_visible
    return not hidden and _passes_handoff(view, position)


def _passes_handoff(view: View, position: int) -> bool:
    return position >= view.handoff_position or position in view.handoff_visible or position in view.handoff_text_only


# ------------------------------------------------------------------------------------------ what waits for a summary


def note_hidden(view: View, gone: Iterable[HistoryEntry]) -> View:
    """Note the entries that a rule hides from a view with summaries: the next summary covers them."""
    summaries = view.summaries

    if summaries is None:
        return view

    places = {summary.entry.position: summary.after for summary in summaries.shown}
    left = [entry for entry in gone if not isinstance(entry.message, SystemMessage)]
    return fast_replace(
        view,
        summaries=fast_replace(
            summaries,
            pending=summaries.pending | {e.message.id: places.get(e.position, e.position) for e in left},
            left_since_attempt=summaries.left_since_attempt + sum(message_size(entry.message) for entry in left),
            has_text=summaries.has_text or any(has_text(entry.message) for entry in left),
        ),
    )


def note_evicted(view: View, evicted: Iterable[MessageGroup], agent: str, *, is_active: bool) -> View:
    """Note what the shared history evicted, as far as this view showed it.

    The active agent's view shows all that passes its filters. Any other agent's view shows the messages of that
    agent's last request, and its reply to it.
    """
    shown = set() if is_active else {code_position(code) for code in view.last_request}
    left = [
        entry
        for g in evicted
        if is_active or g.entries[0].position in shown or _is_reply_of(agent, g)
        for entry in g.entries
        if shows_position(view, entry.position)
    ]

    if not left:
        return view

    view = note_hidden(view, left)
    assert view.summaries is not None
    kept = (*view.summaries.evicted_since_request, *left)
    return fast_replace(view, summaries=fast_replace(view.summaries, evicted_since_request=kept))


def _is_reply_of(agent: str, group: MessageGroup) -> bool:
    first = group.entries[0].message
    return isinstance(first, AssistantMessage) and first.agent == agent


def messages_to_summarize(view: View, entries: Sequence[HistoryEntry], *, replaces: bool) -> tuple[str, ...]:
    """The ids that the next summary of a view covers: what waits for one and, with `replaces`, all summaries shown.

    Messages from before a handoff that did not pass them on continue to wait.
    """
    assert view.summaries is not None
    older = [entry.message.id for entry in entries if replaces and isinstance(entry.message, SummaryMessage)]
    waiting = [id for id, position in view.summaries.pending.items() if _passes_handoff(view, position)]
    return tuple(dict.fromkeys((*older, *waiting)))


# ------------------------------------------------------------------------------------------ what a summary changes


def insert_view_summary(view: View, history: History, entry: HistoryEntry, rule: str) -> View:
    """The view with a new summary in the place of all that it covers."""
    summaries, message = view.summaries, entry.message
    assert summaries is not None
    assert isinstance(message, SummaryMessage)
    covered = set(message.covers)
    entries = visible_entries(history, view)
    own = {summary.entry.message.id: summary.after for summary in summaries.shown}
    shared = {e.message.id: e.position for e in entries if e.message.id not in own}
    places = shared | summaries.pending | own
    view = hide_positions(view, entries, {e.position for e in entries if e.message.id in covered})
    assert view.summaries is not None
    waiting = {id: position for id, position in summaries.pending.items() if id not in covered}
    new = ViewSummary(entry=entry, after=max(places[id] for id in message.covers))
    return fast_replace(
        view,
        moved_by=rule,
        summaries=fast_replace(
            view.summaries,
            shown=(*view.summaries.shown, new),
            pending=waiting,
            # A backlog that one request can't hold is summarized in parts.
            left_since_attempt=len(waiting),
            has_text=bool(waiting),
        ),
    )


def note_shared_summary(
    view: View, before: History, after: History, position: int, covers: Collection[str], transcript: Transcript
) -> View:
    """The view after a summary of these messages entered the shared history at this position.

    A view without summaries shows it even where it hides the position: the summary covers more than the view hides. A
    view with summaries shows it unless its own summaries cover, or will cover, the same messages.
    """
    summaries = view.summaries

    if summaries is not None:
        if not _passes_handoff(view, position):
            # The new summary may cover what the handoff withheld. The view's own next summary covers the rest.
            return note_hidden(view, [e for e in visible_entries(before, view) if e.message.id in covers])

        covered = expand_summaries(transcript, covers)
        own = [*summaries.pending, *(summary.entry.message.id for summary in summaries.shown)]

        if covered <= expand_summaries(transcript, own):
            return hide_positions(view, visible_entries(after, view), {position})

        waiting = {
            id: place for id, place in summaries.pending.items() if not expand_summaries(transcript, [id]) <= covered
        }
        view = fast_replace(view, summaries=fast_replace(summaries, pending=waiting, has_text=bool(waiting)))

    if view.hidden_before <= position:
        return view

    return fast_replace(view, still_visible=tuple(sorted({*view.still_visible, position})))


def expand_summaries(transcript: Transcript, ids: Iterable[str]) -> set[str]:
    """These messages; in place of each summary those that it covers, through any number of summaries."""
    summaries = {message.id: message.covers for message in transcript if isinstance(message, SummaryMessage)}
    found: set[str] = set()
    waiting = [*ids]

    while waiting:
        id = waiting.pop()

        if id in summaries:
            waiting.extend(summaries[id])
        else:
            found.add(id)

    return found


def recount_summaries(view: View, tokens_by_position: Mapping[int, int]) -> View:
    """The view with the tokens of its summaries as billed."""
    assert view.summaries is not None

    def correct(summary: ViewSummary) -> ViewSummary:
        entry = summary.entry
        tokens = tokens_by_position.get(entry.position, entry.tokens)
        return fast_replace(summary, entry=fast_replace(entry, tokens=tokens))

    shown = tuple(map(correct, view.summaries.shown))
    return fast_replace(view, summaries=fast_replace(view.summaries, shown=shown))


def last_request(view: View, history: History) -> RequestView | None:
    """The agent's last request again; None where a message of it is no longer known."""
    summaries = view.summaries or ViewSummaries()
    known = (*history.entries, *summaries.evicted_since_request, *(summary.entry for summary in summaries.shown))
    by_code = {(e.position, isinstance(e.message, SummaryMessage)): e for e in known}
    sent: list[HistoryEntry] = []

    for code in view.last_request:
        entry = rebuild_entry(code, by_code)

        if entry is None:
            return None

        sent.append(entry)

    size = sum(message_size(entry.message) for entry in sent)
    return RequestView(entries=tuple(sent), sent=tuple(sent), codes=view.last_request, size=size)
