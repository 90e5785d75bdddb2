"""Views: which part of the shared history one agent's requests hold."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from crew.history.cuts import cut_message
from crew.history.history import History
from crew.history.tokens import estimate_message_tokens
from crew.interfaces import HistoryEntry
from crew.messages import (
    AssistantMessage,
    Message,
    SummaryMessage,
    SystemMessage,
    ToolMessage,
    UserMessage,
    mask_results,
    message_size,
    without_calls,
)

MARKER_TOKENS = 14
MARKER_POSITION = -1
# A code holds the level of a cut above its position and form.
_CUT_CODE = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSummary:
    """A summary that one view shows. Its entry has the position of the summary itself in the transcript.

    `after` is the position of the last message that it covers: the summary is shown there.
    """

    entry: HistoryEntry
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSummaries:
    """The summaries that only this view shows, and the messages that left the view and still need one.

    shown                  the summaries, oldest first.
    pending                the ids of the messages without a summary, oldest first, with their positions.
    left_since_attempt     the number of messages that left since the last attempt to summarize.
    has_text               whether there is text in the pending messages.
    evicted_since_request  the entries that left the history since the last request; with them it can be rebuilt.
    """

    shown: tuple[ViewSummary, ...] = ()
    pending: dict[str, int] = field(default_factory=dict)
    left_since_attempt: int = 0
    has_text: bool = False
    evicted_since_request: tuple[HistoryEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Which messages of the history one agent sees, as positions in the transcript.

    Goal and system messages are always visible. Only a policy, a limit or a handoff changes a view, so that consecutive
    requests share their prefix.

    turn                  the number of the agent's requests so far.
    handoff_position      messages before it were added before the agent got control.
    handoff_visible       of those, the ones that the handoff passed on.
    handoff_text_only     of those, the ones that it passed on without their tool calls.
    handoff_ids           the ids of the messages that it passed on whole; after `text_only`, of the summaries alone.
    handoff_mode          whether it also passes on the texts of messages that had left the history: for `recall`.
    hidden_before         messages before it are hidden …
    still_visible         … except these.
    truncated_count       the number of hidden messages that a marker states; 0: no marker.
    masked_before         tool results before it are masked.
    masked_positions      tool results after that which are masked too.
    cut                   messages whose texts are cut, because they did not fit: each position with its level.
    active_model          the agent's model, or its backup after a failure.
    overflow_count        how often the model rejected the next request as too long.
    last_request          the codes (`entry_codes`) of the last request that was answered.
    last_model            the model that answered it.
    last_head             the instructions and tools of that request, as a hash; "" if it is not known.
    last_tokens_appended  the tokens appended to the transcript until then.
    moved_by              the rule that changed the view since then.
    summaries             the summaries of this view; None: the agent's policies make none.
    """

    turn: int = 0
    handoff_position: int = 0
    handoff_visible: tuple[int, ...] = ()
    handoff_text_only: tuple[int, ...] = ()
    handoff_ids: tuple[str, ...] = ()
    handoff_mode: Literal["chosen", "text_only"] = "chosen"
    hidden_before: int = 0
    still_visible: tuple[int, ...] = ()
    truncated_count: int = 0
    masked_before: int = 0
    masked_positions: tuple[int, ...] = ()
    cut: tuple[tuple[int, int], ...] = ()
    active_model: Literal["primary", "backup"] = "primary"
    overflow_count: int = 0
    last_request: tuple[int, ...] = ()
    last_model: str = ""
    last_head: str = ""
    last_tokens_appended: int = 0
    moved_by: str = ""
    summaries: ViewSummaries | None = None

    @property
    def own_summaries(self) -> tuple[ViewSummary, ...]:
        """The summaries that only this view shows."""
        return self.summaries.shown if self.summaries is not None else ()

    @property
    def shows_everything(self) -> bool:
        """Whether nothing was hidden, masked, cut, filtered or summarized yet."""
        return not (
            self.handoff_position
            or self.hidden_before
            or self.masked_before
            or self.masked_positions
            or self.truncated_count
            or self.cut
            or self.own_summaries
        )

    def for_next_run(self) -> View:
        """The view at the start of the conversation's next run, which tries the primary model again."""
        return replace(self, active_model="primary", overflow_count=0)


# ------------------------------------------------------------------------------------------ visible messages


def visible_entries(history: History, view: View) -> tuple[HistoryEntry, ...]:
    """The entries that this view shows, masked or shortened as the view says."""
    own, cut = view.own_summaries, dict(view.cut)

    if not (own or cut or view.handoff_position or view.hidden_before or view.masked_before or view.masked_positions):
        return history.entries

    handed_over, text_only, still_visible, masked = map(
        frozenset, (view.handoff_visible, view.handoff_text_only, view.still_visible, view.masked_positions)
    )
    visible: list[HistoryEntry] = []

    for entry in history.entries:
        message, position = entry.message, entry.position
        always = isinstance(message, SystemMessage) or message.id == history.goal

        if position < view.hidden_before and position not in still_visible and not always:
            continue

        if position < view.handoff_position and position not in handed_over and not always:
            if position in text_only and isinstance(message, AssistantMessage):
                visible.append(_with_message(entry, without_calls(message)))
        elif isinstance(message, ToolMessage) and (position < view.masked_before or position in masked):
            visible.append(_with_message(entry, mask_results(message)))
        else:
            visible.append(_with_message(entry, cut_message(message, cut[position])) if position in cut else entry)

    if not own:
        return tuple(visible)

    passed = [s for s in own if s.after >= view.handoff_position or s.entry.position in handed_over]
    return insert_summaries(visible, passed)


def insert_summaries(entries: Sequence[HistoryEntry], summaries: Sequence[ViewSummary]) -> tuple[HistoryEntry, ...]:
    """The entries with these summaries, each in the place of the messages that it covers."""
    merged: list[HistoryEntry] = []
    waiting = sorted(summaries, key=lambda summary: summary.after)

    for entry in entries:
        while waiting and waiting[0].after < entry.position:
            merged.append(waiting.pop(0).entry)

        merged.append(entry)

    return (*merged, *(summary.entry for summary in waiting))


def _with_message(entry: HistoryEntry, message: Message) -> HistoryEntry:
    return HistoryEntry(
        message=message, position=entry.position, tokens=min(entry.tokens, estimate_message_tokens(message))
    )


def with_marker(entries: tuple[HistoryEntry, ...], view: View) -> tuple[HistoryEntry, ...]:
    """Insert the marker in place of truncated messages, if the view has one."""
    if not view.truncated_count:
        return entries

    index = next((i for i, entry in enumerate(entries) if entry.position >= view.hidden_before), len(entries))
    return (*entries[:index], _truncation_marker(view.truncated_count), *entries[index:])


def entries_size(entries: tuple[HistoryEntry, ...], history: History) -> int:
    """The size of these entries, in messages; a view of the whole history needs no counting."""
    return history.size if entries is history.entries else sum(message_size(entry.message) for entry in entries)


@lru_cache(maxsize=1024)
def _truncation_marker(count: int) -> HistoryEntry:
    text = f"[{count} earlier messages truncated to fit context window]"
    return HistoryEntry(
        message=UserMessage(text, origin="marker", id=f"truncated.{count}"),
        position=MARKER_POSITION,
        tokens=MARKER_TOKENS,
    )


def entry_codes(entries: Sequence[HistoryEntry], view: View) -> tuple[int, ...]:
    """A request as numbers, one for each message: its position and its form. Equal codes mean equal messages."""
    if not (view.truncated_count or view.masked_before or view.masked_positions or view.cut or view.handoff_text_only):
        return tuple([e.position * 4 + (3 if e.message.role == "summary" else 0) for e in entries])

    cut = dict(view.cut)
    return tuple(_entry_code(entry, view, cut) for entry in entries)


def _entry_code(entry: HistoryEntry, view: View, cut: Mapping[int, int]) -> int:
    match entry.message:
        case _ if entry.position == MARKER_POSITION:
            return -view.truncated_count
        case ToolMessage() if entry.position < view.masked_before or entry.position in view.masked_positions:
            return entry.position * 4 + 2
        case AssistantMessage() if entry.position in view.handoff_text_only:
            return entry.position * 4 + 1
        case SummaryMessage():
            return entry.position * 4 + 3
        case _ if entry.position in cut:
            return entry.position * 4 + (cut[entry.position] + 1) * _CUT_CODE
        case _:
            return entry.position * 4


def code_position(code: int) -> int:
    """The position of the message with this code; negative for a marker."""
    return MARKER_POSITION if code < 0 else code % _CUT_CODE // 4


def is_cut(code: int) -> bool:
    """Whether the message with this code is cut."""
    return code >= _CUT_CODE


def rebuild_entry(code: int, known: Mapping[tuple[int, bool], HistoryEntry]) -> HistoryEntry | None:
    """The entry with this code, from the known entries by position and by whether they are summaries."""
    if code < 0:
        return _truncation_marker(-code)

    entry = known.get((code_position(code), code % 4 == 3))

    match entry:
        case HistoryEntry(message=AssistantMessage() as message) if code % 4 == 1:
            return _with_message(entry, without_calls(message))
        case HistoryEntry(message=ToolMessage() as message) if code % 4 == 2:
            return _with_message(entry, mask_results(message))
        case HistoryEntry() if is_cut(code):
            return _with_message(entry, cut_message(entry.message, code // _CUT_CODE - 1))
        case _:
            return entry


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """The messages of one request: computed once, then used for the request, its manifest and its bill.

    `entries` are the visible entries of the history, `sent` the same with the truncation marker, `codes` identify each
    of them and its form. Never stored: after a resume it is computed again.
    """

    entries: tuple[HistoryEntry, ...]
    sent: tuple[HistoryEntry, ...]
    codes: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, history: History, view: View) -> RequestView:
        """What this view shows of this history."""
        if view.shows_everything:
            entries = history.entries
            return cls(entries=entries, sent=entries, codes=entry_codes(entries, view), size=history.size)

        entries = visible_entries(history, view)
        sent = with_marker(entries, view)
        return cls(entries=entries, sent=sent, codes=entry_codes(sent, view), size=entries_size(sent, history))

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple([entry.message for entry in self.sent])


# ------------------------------------------------------------------------------------------ changes


def hide_positions(view: View, entries: Sequence[HistoryEntry], positions: Collection[int]) -> View:
    """Hide the entries at these positions; `entries` are those that the view shows."""
    if not positions:
        return view

    if view.summaries is not None:
        own = {summary.entry.position for summary in view.summaries.shown}
        shown = tuple(summary for summary in view.summaries.shown if summary.entry.position not in positions)
        view = replace(view, summaries=replace(view.summaries, shown=shown))
        entries = [entry for entry in entries if entry.position not in own]
        positions = {position for position in positions if position not in own}

    hidden_before = max(view.hidden_before, max(positions, default=-1) + 1)
    still_visible = tuple(
        e.position
        for e in entries
        if e.position < hidden_before and e.position not in positions and not isinstance(e.message, SystemMessage)
    )
    return replace(view, hidden_before=hidden_before, still_visible=still_visible)


def mask_messages(view: View, entries: Sequence[HistoryEntry], ids: Collection[str]) -> View:
    """Mask these tool messages. Those before the first readable result are stored as one position, `masked_before`."""
    results = [entry for entry in entries if isinstance(entry.message, ToolMessage)]
    masked = {e.position for e in results if e.message.id in ids or e.position < view.masked_before}
    first = min(entry.position for entry in entries)  # a summary of the view has a later position than its neighbours
    masked.update(position for position in view.masked_positions if position >= first)
    readable = [entry.position for entry in results if entry.position not in masked]
    first_readable = readable[0] if readable else max(masked, default=-1) + 1
    before = max([view.masked_before, *(position + 1 for position in masked if position < first_readable)])
    return replace(view, masked_before=before, masked_positions=tuple(sorted(p for p in masked if p >= before)))


def cut_messages(view: View, entries: Sequence[HistoryEntry], level: int) -> View:
    """Cut the texts of these entries."""
    return replace(view, cut=tuple(sorted((dict(view.cut) | {entry.position: level for entry in entries}).items())))
