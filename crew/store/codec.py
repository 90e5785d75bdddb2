"""Encodes states and events as versioned JSON, and decodes them; message bodies are kept apart from the state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from crew.errors import StoreError
from crew.fast_replace import fast_replace
from crew.history.history import History
from crew.interfaces import HistoryEntry
from crew.messages import AssistantMessage, Message, SystemMessage, Transcript, UserMessage
from crew.runs.events import Event, Replied, RunStarted
from crew.runs.state import Branch, RunState
from crew.store.references import pending_positions
from crew.store.versions import migrate, newest_version

VERSION = newest_version()

_NO_TRANSCRIPT = Transcript()
MessageKind = TypeVar("MessageKind", bound=Message)
Messages = Mapping[str, Sequence[Message]]
"""The messages of a run and of its branches, by run id; of a branch without those that it inherited.

Those of a run may be a `Transcript`, which need not be complete.
"""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


# ------------------------------------------------------------------------------------------ states


def encode_state(state: RunState) -> bytes:
    """A state with all its messages as one JSON object; each message is in it once."""
    messages = {section.path: section.encode(0) for section in message_sections(state)}
    listed = b",".join(b"%s:[%s]" % (to_json(path), b",".join(items)) for path, items in messages.items())
    return b'{"version":%d,"messages":{%s},"state":%s}' % (VERSION, listed, _encode_node(state))


def decode_state(data: bytes) -> RunState:
    """The state that `encode_state` encoded. Checks the version first."""
    found = _parse("state", data)
    bodies = found.get("messages", {})
    return _decode_node(found["state"], {path: decode_messages(items) for path, items in bodies.items()})


EncodedChildren = dict[str, tuple[RunState, bytes]]
"""The encoded children of a state, by run id. A step changes one branch; the others need not be encoded again."""


def encode_bare_state(state: RunState, known: EncodedChildren | None = None) -> bytes:
    """A state without message bodies: it refers to messages by their positions. Updates the `known` children."""
    waiting = to_json(sorted(pending_positions(state)))
    return b'{"version":%d,"waiting":%s,"state":%s}' % (VERSION, waiting, _encode_node(state, known))


def decode_bare_state(data: bytes, messages: Messages) -> RunState:
    """The state that `encode_bare_state` encoded, with these messages. Checks the version first."""
    return BareState(data).decode(messages)


class BareState:
    """A stored state before its messages are read. Checks the version first."""

    def __init__(self, data: bytes) -> None:
        self._found = _parse("state", data)
        fields = self._found["state"]["fields"]
        self.is_finished: bool = fields["next"]["kind"] == "finished"
        self.inherited_messages: int = fields["inherited_messages"]

    def referenced_positions(self) -> list[int]:
        """The positions of the messages that the next turn of the conversation needs, whatever its length.

        They are in the history, were in the last request of an agent, or wait for a summary; and the last message. Of
        an unfinished run also its own messages.
        """
        node = self._found["state"]
        size = node["size"]
        found = {size - 1, *self._found["waiting"]}
        found.update(item[2] for key in ("history", "evicted") for item in node[key] if isinstance(item[2], int))
        found.update(code // 4 for view in node["fields"]["views"].values() for code in view["last_request"])

        if not self.is_finished:
            found.update(range(self.inherited_messages, size))

        return sorted(position for position in found if 0 <= position < size)

    def decode(self, messages: Messages) -> RunState:
        """The state, with these messages."""
        return _decode_node(self._found["state"], messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSection:
    """The messages of one run or branch, from position `start` on."""

    path: str
    start: int
    messages: Sequence[Message]

    def numbered(self) -> Iterator[tuple[int, Message]]:
        """Each message with its position in the transcript."""
        return enumerate(self.messages, self.start)

    def encode(self, since: int) -> list[bytes]:
        """The messages from this position on, each as JSON."""
        return encode_messages(self.messages[max(0, since - self.start) :])


def message_sections(state: RunState) -> Iterator[MessageSection]:
    """The messages of a run, of its branches under way and of those that ended."""
    yield MessageSection(path=state.run_id, start=0, messages=state.transcript)
    yield from _sections_below(state)


def _sections_below(state: RunState) -> Iterator[MessageSection]:
    for child in state.children.values():
        start = child.inherited_messages
        yield MessageSection(path=child.run_id, start=start, messages=child.transcript[start:])
        yield from _sections_below(child)

    yield from _record_sections(state.branches)


def _record_sections(records: Sequence[Branch]) -> Iterator[MessageSection]:
    for record in records:
        yield MessageSection(path=record.run_id, start=record.inherited_messages, messages=record.transcript)
        yield from _record_sections(record.branches)


def _encode_child(state: RunState, known: EncodedChildren | None) -> bytes:
    if known is None:
        return _encode_node(state)

    found = known.get(state.run_id)

    if found is None or found[0] is not state:
        found = known[state.run_id] = (state, _encode_node(state, known))

    return found[1]


def _encode_node(state: RunState, known: EncodedChildren | None = None) -> bytes:
    """One run of the tree: its fields, and what refers to messages."""
    pending, transcript = state.pending_summary, state.transcript
    bare = fast_replace(
        state,
        transcript=_NO_TRANSCRIPT,
        history=fast_replace(state.history, entries=()),
        pending_summary=fast_replace(pending, evicted_since_request=()) if pending.evicted_since_request else pending,
        children={},
        branches=(),
    )
    children = [b"%s:%s" % (to_json(key), _encode_child(child, known)) for key, child in state.children.items()]
    return b'{"fields":%s,"size":%d,"history":%s,"evicted":%s,"branches":%s,"children":{%s}}' % (
        _adapter(RunState).dump_json(bare),
        len(transcript),
        to_json([_encode_entry(entry, transcript) for entry in state.history.entries]),
        to_json([_encode_entry(entry, transcript) for entry in pending.evicted_since_request]),
        _adapter(tuple[Branch, ...]).dump_json(tuple(map(_bare_record, state.branches))),
        b",".join(children),
    )


def _bare_record(record: Branch) -> Branch:
    return replace(record, transcript=(), branches=tuple(map(_bare_record, record.branches)))


def _encode_entry(entry: HistoryEntry, transcript: Transcript) -> list[Any]:
    """An entry as its position, its tokens, and where its message is in the transcript, or the message itself.

    A summary has the position of the messages that it covers. A message differs from the transcript's if some of its
    calls were declined.
    """
    index = entry.position

    if transcript.get(index) is not entry.message:
        tail = entry.message.id.rpartition(":")[2]
        index = int(tail) if tail.isdecimal() else -1

    if (found := transcript.get(index)) is entry.message or found == entry.message:
        return [entry.position, entry.tokens, index]

    return [entry.position, entry.tokens, _adapter(Message).dump_python(entry.message, mode="json")]


def _decode_node(node: dict[str, Any], messages: Messages, above: Transcript = _NO_TRANSCRIPT) -> RunState:
    try:
        fields: RunState = _adapter(RunState).validate_python(node["fields"])
        records: tuple[Branch, ...] = _adapter(tuple[Branch, ...]).validate_python(node["branches"])
    except (ValidationError, KeyError, TypeError) as error:
        raise StoreError("", f"The stored state does not match version {VERSION}: {error}.") from error

    own = messages.get(fields.run_id, ())
    transcript = own if isinstance(own, Transcript) else Transcript(own)

    if above:
        transcript = above.until(min(fields.inherited_messages, len(above)))

        for message in own:
            transcript = transcript.append(message)

    if len(transcript) != node["size"]:
        text = f"{node['size']} messages were stored, but {len(transcript)} are in the file"
        raise StoreError("", f"Messages of {fields.run_id!r} are missing: {text}.")

    entries = tuple(_decode_entry(item, transcript) for item in node["history"])
    evicted = tuple(_decode_entry(item, transcript) for item in node["evicted"])
    children = {key: _decode_node(child, messages, transcript) for key, child in node["children"].items()}
    return replace(
        fields,
        transcript=transcript,
        history=History(entries=entries, size=fields.history.size, goal=fields.history.goal),
        pending_summary=replace(fields.pending_summary, evicted_since_request=evicted),
        children=children,
        branches=tuple(_whole_record(record, messages) for record in records),
    )


def _decode_entry(item: Sequence[Any], transcript: Sequence[Message]) -> HistoryEntry:
    position, tokens, where = item
    message = transcript[where] if isinstance(where, int) else _adapter(Message).validate_python(where)
    return HistoryEntry(message=message, position=position, tokens=tokens)


def _whole_record(record: Branch, messages: Messages) -> Branch:
    inner = tuple(_whole_record(one, messages) for one in record.branches)
    return replace(record, transcript=tuple(messages.get(record.run_id, ())), branches=inner)


# ------------------------------------------------------------------------------------------ messages and events


def encode_messages(messages: Sequence[Message]) -> list[bytes]:
    """Each message as JSON."""
    return [_adapter(Message).dump_json(message) for message in messages]


def decode_messages(data: Sequence[object]) -> list[Message]:
    """The decoded messages; each is JSON, or a value that was parsed from JSON."""
    adapter = _adapter(Message)

    try:
        return [
            adapter.validate_json(item) if isinstance(item, bytes | str) else adapter.validate_python(item)
            for item in data
        ]
    except ValidationError as error:
        raise StoreError("", f"A stored message does not match version {VERSION}: {error}.") from error


def encode_events(events: Sequence[Event]) -> bytes:
    """Events as JSON, in order; the data of a tool's progress must be JSON too."""
    return b'{"version":%d,"events":%s}' % (VERSION, _adapter(list[Event]).dump_json(list(events)))


def decode_events(data: bytes) -> list[Event]:
    """The decoded events."""
    found = _parse("events", data)["events"]

    try:
        events: list[Event] = _adapter(list[Event]).validate_python(found)
    except ValidationError as error:
        raise StoreError("", f"The stored events do not match version {VERSION}: {error}.") from error

    return events


def encode_event(event: Event, sections: Mapping[str, MessageSection]) -> bytes:
    """One event as JSON; messages that are stored with the run are referred to by their positions."""
    positions: list[int | None] = []
    bare: Event = event

    match event:
        case Replied():
            positions = [_position(event.run_id, event.message, sections)]

            if positions != [None]:
                bare = fast_replace(event, message=_bare_message(event.message))
        case RunStarted():
            positions = [_position(event.run_id, message, sections) for message in event.messages]
            bare = fast_replace(
                event,
                messages=tuple(
                    message if position is None else _bare_message(message)
                    for message, position in zip(event.messages, positions, strict=True)
                ),
            )
        case _:
            pass

    return b'{"version":%d,"positions":%s,"event":%s}' % (VERSION, to_json(positions), _adapter(Event).dump_json(bare))


def decode_event(data: bytes, transcript: Callable[[str, int], Message]) -> Event:
    """The event that `encode_event` encoded; `transcript` returns the message of a run or branch at a position."""
    found = _parse("event", data)

    try:
        event: Event = _adapter(Event).validate_python(found["event"])
    except ValidationError as error:
        raise StoreError("", f"The stored event does not match version {VERSION}: {error}.") from error

    positions: list[int | None] = found["positions"]

    match event:
        case Replied() if positions[0] is not None:
            message = transcript(event.run_id, positions[0])
            return replace(event, message=message) if isinstance(message, AssistantMessage) else event
        case RunStarted():
            messages = tuple(
                message if position is None else transcript(event.run_id, position)
                for message, position in zip(event.messages, positions, strict=True)
            )
            return replace(event, messages=messages)
        case _:
            return event


def referred_messages(data: bytes) -> list[tuple[str, int]]:
    """The messages that an encoded event refers to: run or branch, and position."""
    found = _parse("event", data)
    return [(found["event"]["run_id"], position) for position in found["positions"] if position is not None]


def _position(run_id: str, message: Message, sections: Mapping[str, MessageSection]) -> int | None:
    """Where this very message is stored; None if it is not, or in another form."""
    section, tail = sections.get(run_id), message.id.rpartition(":")[2]

    if section is None or not tail.isdecimal():
        return None

    index, messages = int(tail) - section.start, section.messages

    if isinstance(messages, Transcript):
        is_stored = messages.get(index) == message
    else:
        is_stored = 0 <= index < len(messages) and messages[index] == message

    return int(tail) if is_stored else None


def _bare_message(message: MessageKind) -> MessageKind:
    """A message with its id and time only."""
    if isinstance(message, AssistantMessage):
        return replace(message, text="", calls=(), provider_data=None, manifest=None)

    return replace(message, text="") if isinstance(message, UserMessage | SystemMessage) else message


def _parse(key: str, data: bytes) -> dict[str, Any]:
    try:
        found = from_json(data)
    except ValueError as error:
        raise StoreError("", f"The stored {key} is not valid JSON: {error}.") from error

    return migrate(key, found)
