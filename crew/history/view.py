"""What one agent is shown of the shared history."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from crew.agents.agent import HandoffFilter
from crew.history.history import History
from crew.history.tokens import estimate_message_tokens
from crew.interfaces import HistoryEntry
from crew.message_rules.validate import group_spans
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


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Where one agent's view stands: data that only `advance` moves, so that it holds still between its moves.

    All places are positions in the transcript. `turn` counts the agent's requests. Of the messages before
    `crossed_at`, only those at `whole` crossed, and of those at `texts` the text. Of the messages before `cut`, only
    those at `kept` are shown, beside goal and system messages; `truncated` is the number that a marker names. Tool
    results before `masked_to`, and those at `masks`, are left out. `sent` is the last request that was answered, by
    the model `sent_to`, when everything appended so far came to `seen` tokens; `moved` the rule that moved the view
    since. `too_long` counts the refusals since.
    """

    turn: int = 0
    handoff_position: int = 0
    handoff_visible: tuple[int, ...] = ()
    handoff_text_only: tuple[int, ...] = ()
    hidden_before: int = 0
    still_visible: tuple[int, ...] = ()
    truncated_count: int = 0
    masked_before: int = 0
    masked_positions: tuple[int, ...] = ()
    active_model: Literal["primary", "backup"] = "primary"
    overflow_count: int = 0
    last_request: tuple[int, ...] = ()
    last_model: str = ""
    last_tokens_appended: int = 0
    moved_by: str = ""

    @property
    def shows_everything(self) -> bool:
        """Whether nothing was hidden, masked or filtered yet."""
        return not (
            self.handoff_position
            or self.hidden_before
            or self.masked_before
            or self.masked_positions
            or self.truncated_count
        )

    def for_next_run(self) -> View:
        """This view at the beginning of another run of the conversation: the agent's own model is tried again."""
        return replace(self, active_model="primary", overflow_count=0)


# ------------------------------------------------------------------------------------------------ what crosses


def apply_handoff(view: View, history: History, at: int, what: HandoffFilter) -> View:
    """The view of an agent that takes over: what crosses of the messages before the position `at` is fixed here."""
    moved = "handoff" if view.last_request else view.moved_by

    if what == "full":
        return (
            view
            if not view.handoff_position
            else replace(view, handoff_position=0, handoff_visible=(), handoff_text_only=(), moved_by=moved)
        )

    before = [entry for entry in history.entries if entry.position < at]
    whole, texts = _handed_over(before, what)
    return replace(
        view, handoff_position=at, handoff_visible=tuple(whole), handoff_text_only=tuple(texts), moved_by=moved
    )


def _handed_over(before: list[HistoryEntry], what: HandoffFilter) -> tuple[list[int], list[int]]:
    match what:
        case "last":
            spans = group_spans([entry.message for entry in before])
            return [entry.position for entry in before[spans[-1]]] if spans else [], []
        case "text_only":
            calling = [e for e in before if isinstance(e.message, AssistantMessage) and e.message.calls]
            skipped = {e.position for e in before if isinstance(e.message, ToolMessage)} | {e.position for e in calling}
            texts = [e.position for e in calling if isinstance(e.message, AssistantMessage) and e.message.text.strip()]
            return [e.position for e in before if e.position not in skipped], texts
        case "none" | "full":
            return [], []
        case choose:
            chosen = {message.id for message in choose(tuple(entry.message for entry in before))}
            return [entry.position for entry in before if entry.message.id in chosen], []


# ------------------------------------------------------------------------------------------------ what is shown


def visible_entries(history: History, view: View) -> tuple[HistoryEntry, ...]:
    """The entries that this view shows, as it shows them; goal and system messages always."""
    if not (view.handoff_position or view.hidden_before or view.masked_before or view.masked_positions):
        return history.entries

    whole, texts, kept, masks = map(
        frozenset, (view.handoff_visible, view.handoff_text_only, view.still_visible, view.masked_positions)
    )
    found: list[HistoryEntry] = []

    for entry in history.entries:
        message, position = entry.message, entry.position
        stays = isinstance(message, SystemMessage) or message.id == history.goal

        if position < view.hidden_before and position not in kept and not stays:
            continue

        if position < view.handoff_position and position not in whole and not stays:
            if position in texts and isinstance(message, AssistantMessage):
                found.append(_with_message(entry, without_calls(message)))
        elif isinstance(message, ToolMessage) and (position < view.masked_before or position in masks):
            found.append(_with_message(entry, mask_results(message)))
        else:
            found.append(entry)

    return tuple(found)


def _with_message(entry: HistoryEntry, message: Message) -> HistoryEntry:
    return HistoryEntry(
        message=message, position=entry.position, tokens=min(entry.tokens, estimate_message_tokens(message))
    )


def with_marker(entries: tuple[HistoryEntry, ...], view: View) -> tuple[HistoryEntry, ...]:
    """What a request holds: the entries, and where messages were truncated the marker in their place."""
    if not view.truncated_count:
        return entries

    place = next((index for index, entry in enumerate(entries) if entry.position >= view.hidden_before), len(entries))
    return (*entries[:place], _truncation_marker(view.truncated_count), *entries[place:])


def entries_size(entries: tuple[HistoryEntry, ...], history: History) -> int:
    """How many messages these count for; where all of the history is shown, it knows its size."""
    return history.size if entries is history.entries else sum(message_size(entry.message) for entry in entries)


@lru_cache(maxsize=1024)
def _truncation_marker(number: int) -> HistoryEntry:
    text = f"[{number} earlier messages truncated to fit context window]"
    return HistoryEntry(
        message=UserMessage(text, origin="marker", id=f"truncated.{number}"),
        position=MARKER_POSITION,
        tokens=MARKER_TOKENS,
    )


def entry_codes(entries: Sequence[HistoryEntry], view: View) -> tuple[int, ...]:
    """A request in numbers: what stands where, and in which form; equal numbers are equal messages."""
    if not (view.truncated_count or view.masked_before or view.masked_positions or view.handoff_text_only):
        return tuple([e.position * 4 + (3 if e.message.role == "summary" else 0) for e in entries])

    return tuple(_entry_code(entry, view) for entry in entries)


def _entry_code(entry: HistoryEntry, view: View) -> int:
    match entry.message:
        case _ if entry.position == MARKER_POSITION:
            return -view.truncated_count
        case ToolMessage() if entry.position < view.masked_before or entry.position in view.masked_positions:
            return entry.position * 4 + 2
        case AssistantMessage() if entry.position in view.handoff_text_only:
            return entry.position * 4 + 1
        case SummaryMessage():
            return entry.position * 4 + 3
        case _:
            return entry.position * 4


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


# ------------------------------------------------------------------------------------------------ how it changes


def hide_positions(view: View, entries: Sequence[HistoryEntry], gone: Collection[int]) -> View:
    """The view without the shown entries at these positions."""
    if not gone:
        return view

    cut = max(view.hidden_before, max(gone) + 1)
    kept = tuple(
        entry.position
        for entry in entries
        if entry.position < cut and entry.position not in gone and not isinstance(entry.message, SystemMessage)
    )
    return replace(view, hidden_before=cut, still_visible=kept)


def mask_messages(view: View, entries: Sequence[HistoryEntry], ids: Collection[str]) -> View:
    """The view with these tool messages masked; what is masked from the front on is kept as one position."""
    results = [entry for entry in entries if isinstance(entry.message, ToolMessage)]
    hidden = {e.position for e in results if e.message.id in ids or e.position < view.masked_before}
    hidden.update(position for position in view.masked_positions if position >= entries[0].position)
    open_ = [entry.position for entry in results if entry.position not in hidden]
    edge = open_[0] if open_ else max(hidden, default=-1) + 1
    masked_to = max([view.masked_before, *(position + 1 for position in hidden if position < edge)])
    return replace(view, masked_before=masked_to, masked_positions=tuple(sorted(p for p in hidden if p >= masked_to)))
