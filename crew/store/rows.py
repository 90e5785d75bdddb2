"""The rows of a store with tables, SQLite or PostgreSQL: those that a commit adds, and the facts of a stored run."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError

from crew.errors import InvalidInput, RunActive, StoreError, Violation
from crew.messages import AssistantMessage, Message, ToolMessage
from crew.runs.events import Event
from crew.runs.interfaces import RunPage, StoredRunInfo
from crew.runs.leases import Lease
from crew.runs.processes import is_gone
from crew.runs.state import Finished, RunState
from crew.store.codec import EncodedChildren, MessageSection, encode_bare_state, encode_event, message_sections

CACHED_RUNS = 10_000

LONGEST_VALUE = 200
"""The longest value of metadata that is compared as a text: an index of PostgreSQL can't hold very long ones."""

MessageRow = tuple[str, int, bytes]
"""The run or branch, the position, and the message."""

EventRow = tuple[int, str, float, bytes]
"""The number in the commit, the kind, the time, and the event."""

INFO_COLUMNS = "run_id, conversation_id, crew, agent, status, version, messages, created, updated, metadata"
"""The columns of `run_info`."""


@dataclass(slots=True, kw_only=True)
class Written:
    """What is stored of one run: its version, and the next position of the run and of each of its branches."""

    version: int
    next_positions: dict[str, int]
    children: EncodedChildren = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRows:
    """The rows of one commit, and the next position of each run and branch after it."""

    messages: list[MessageRow]
    events: list[EventRow]
    state: bytes
    next_positions: dict[str, int]


def new_rows(written: Written, events: Sequence[Event], state: RunState) -> NewRows:
    """The messages that are not stored yet, the events, and the state without messages."""
    sections = {section.path: section for section in message_sections(state)}
    positions: dict[str, int] = {}
    messages: list[MessageRow] = []

    for name, section in sections.items():
        end = section.start + len(section.messages)
        since = written.next_positions.get(name, section.start)
        positions[name] = end

        if since < end:
            messages += [(name, at, data) for at, data in zip(range(since, end), section.encode(since), strict=True)]

    return NewRows(
        messages=messages,
        events=event_rows(events, 0, sections),
        state=encode_bare_state(state, written.children),
        next_positions=positions,
    )


def event_rows(
    events: Sequence[Event], first: int, sections: Mapping[str, MessageSection] = MappingProxyType({})
) -> list[EventRow]:
    """The rows of events, numbered from `first`; messages in these sections are referred to by their positions."""
    return [(n, event.kind, event.at, encode_event(event, sections)) for n, event in enumerate(events, first)]


class WrittenRuns:
    """What is stored of the runs that this process drives, so that a commit need not ask the store."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, Written] = OrderedDict()

    def find(self, run_id: str, version: int) -> Written | None:
        """What is stored of a run, if it is known and has this version."""
        known = self._runs.get(run_id)
        return known if known is not None and known.version == version else None

    def record_commit(self, written: Written, rows: NewRows, state: RunState) -> None:
        """Remember the run as it is after a commit; forget it if it has finished."""
        live = {run_id: written.children[run_id] for run_id in _child_ids(state) if run_id in written.children}
        written.version, written.next_positions, written.children = written.version + 1, rows.next_positions, live
        self._remember(written, state)

    def record_load(self, version: int, state: RunState) -> None:
        """Remember the run as it was loaded."""
        ends = {one.path: one.start + len(one.messages) for one in message_sections(state)}
        self._remember(Written(version=version, next_positions=ends), state)

    def _remember(self, written: Written, state: RunState) -> None:
        self._runs.pop(state.run_id, None)

        if not isinstance(state.next, Finished):
            self._runs[state.run_id] = written

            if len(self._runs) > CACHED_RUNS:
                self._runs.popitem(last=False)

    def clear(self) -> None:
        """Forget all runs."""
        self._runs.clear()


def _child_ids(state: RunState) -> Iterator[str]:
    for child in state.children.values():
        yield child.run_id
        yield from _child_ids(child)


# ------------------------------------------------------------------------------------------ reading


def run_info(values: Sequence[Any]) -> StoredRunInfo:
    """The facts of a run from its `INFO_COLUMNS`."""
    *facts, metadata = values
    return StoredRunInfo(**dict(zip(INFO_COLUMNS.split(", "), facts, strict=False)), metadata=json.loads(metadata))


def run_page(rows: Iterable[Sequence[Any]], limit: int) -> RunPage:
    """A page of runs, from one row more than the page has if there are more."""
    found = tuple(run_info(row) for row in rows)
    last = found[limit - 1] if len(found) > limit else None
    return RunPage(runs=found[:limit], cursor=None if last is None else f"{last.updated!r} {last.run_id}")


def page_start(cursor: str) -> tuple[float, str]:
    """The time and the id of the last run of the page before."""
    updated, _, run_id = cursor.partition(" ")
    return float(updated), run_id


def message_text(message: Message) -> str:
    """The text of a message for a search: also the calls of a reply and the results of tools."""
    match message:
        case ToolMessage(results=results):
            return "\n".join(f"{result.name}: {result.text}" for result in results)
        case AssistantMessage():
            calls = "".join(f"\n{call.name}({call.arguments})" for call in message.calls)
            return f"{message.text}{calls}"
        case _:
            return message.text


def continued_error(id: str, later: str, conversation: str) -> StoreError:
    """The error for a run that can't be erased alone: the run `later` of this conversation continues it."""
    text = f"{id!r} can't be erased: the run {later!r} continues it. Erase that run first, or the whole conversation: "
    command = f"crew forget {conversation} --conversation"
    return StoreError(id, f"{text}forget({conversation!r}, conversation=True), on the command line {command}.")


def check_no_owner(lease: Lease) -> None:
    """Raise `RunActive` if the owner of this lease lives: to erase its run would end the run with a conflict."""
    if not lease.lapsed and not is_gone(lease.holder):
        advice = "wait until it ends, or cancel it first; then it can be erased"
        raise RunActive(lease.run_id, str(lease.holder), advice)


_METADATA = TypeAdapter(dict[str, JsonValue])

UNFINISHED = ("running", "paused", "failed")
STATUSES = (*UNFINISHED, "completed", "limit", "cancelled", "stopped")


def metadata_rows(metadata: Mapping[str, JsonValue]) -> list[tuple[str, str]]:
    """The keys of metadata with their values as texts: equal values have equal texts, and a long one is hashed."""
    return [(key, metadata_text(value)) for key, value in metadata.items()]


def metadata_text(value: JsonValue) -> str:
    """One text for all equal values: `1` and `1.0` are equal, `1` and `true` are not."""
    text = json.dumps(_with_integers(value), sort_keys=True, separators=(",", ":"))
    return text if len(text) <= LONGEST_VALUE else "sha256:" + sha256(text.encode()).hexdigest()


def _with_integers(value: JsonValue) -> JsonValue:
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {key: _with_integers(item) for key, item in value.items()}
        case list():
            return [_with_integers(item) for item in value]
        case _:
            return value


def check_page(
    status: str | None = None,
    limit: int = 1,
    cursor: str | None = None,
    metadata: Mapping[str, JsonValue] | None = None,
) -> None:
    """Raise `InvalidInput` for arguments of `runs`, `events` or `search` that can't match anything."""
    problems: list[tuple[str, object]] = []

    if status is not None and status not in STATUSES:
        problems.append((f"status must be one of {', '.join(STATUSES)}, not {status!r}.", status))

    if limit < 1:
        problems.append((f"limit must be at least 1, not {limit}.", limit))

    if cursor is not None and not re.fullmatch(r"\d+(\.\d+)?(e[+-]?\d+)? \S+", cursor):
        problems.append((f"cursor must be the cursor of a page, not {cursor!r}.", cursor))

    if metadata is not None:
        try:
            _METADATA.validate_python(metadata, strict=True)
        except ValidationError:
            problems.append((f"metadata must be a dict of JSON values, not {metadata!r}.", metadata))

    if problems:
        raise InvalidInput([Violation(rule="page", text=text, value=value) for text, value in problems])
