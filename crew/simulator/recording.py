"""Recordings of conversations, read from results, transcripts, JSON, or OpenAI- or Anthropic-format messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from crew.errors import InvalidInput, Violation
from crew.messages import AssistantMessage, Message, SummaryMessage
from crew.runs.result import RunResult
from crew.runs.state import Branch
from crew.validation.message_import import import_messages, merge_tool_messages


@cache
def _message_list() -> TypeAdapter[list[Message]]:
    return TypeAdapter(list[Message])


@cache
def _branch_list() -> TypeAdapter[list[Branch]]:
    return TypeAdapter(list[Branch])


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The messages of a conversation, and the branches and agents called as tools that it started."""

    messages: tuple[Message, ...]
    branches: tuple[Branch, ...] = ()

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of the agents that replied, in order of their first reply, those of branches last."""
        names = [m.agent or "agent" for m in self.messages if isinstance(m, AssistantMessage)]
        names += [name for branch in self.branches for name in branch_recording(branch).agents]
        return tuple(dict.fromkeys(names)) or ("agent",)

    def save(self, path: Path | str) -> None:
        """Write JSON that `read_recording` and `crew simulate` read."""
        messages = _message_list().dump_python(list(self.messages), mode="json")
        branches = _branch_list().dump_python(list(self.branches), mode="json")
        Path(path).write_bytes(to_json({"transcript": messages, "branches": branches}, indent=1))


RecordingSource = RunResult | Recording | Sequence[object] | Mapping[str, object] | Path | str | bytes


def read_recording(source: RecordingSource) -> Recording:
    """Read a result, a transcript, a list of messages or dicts, JSON, or a JSON file given by its path."""
    match source:
        case Recording():
            return source
        case RunResult():
            return _build(source.transcript, source.branches)
        case Path():
            return read_recording(source.read_bytes())
        case str() if source.lstrip()[:1] not in ("[", "{"):
            return read_recording(Path(source))
        case str() | bytes():
            return _from_json(source)
        case Mapping():
            return _from_mapping(source)
        case _:
            return _build(_messages(source), ())


def branch_recording(branch: Branch) -> Recording:
    """The recording of a branch, which is a conversation too."""
    return Recording(messages=branch.transcript, branches=branch.branches)


def _from_json(source: str | bytes) -> Recording:
    try:
        parsed = from_json(source)
    except ValueError as error:
        raise _invalid(f"The transcript is not valid JSON: {error}.") from error

    return _from_mapping(parsed) if isinstance(parsed, dict) else _build(_messages(parsed), ())


def _from_mapping(mapping: Mapping[str, object]) -> Recording:
    inner = mapping.get("state")
    inner = inner if isinstance(inner, Mapping) else mapping
    messages = inner.get("transcript", inner.get("messages"))

    if messages is None:
        raise _invalid(
            "The transcript must be a list of messages, or a mapping with one at 'transcript' or 'messages'."
        )

    read = [*_messages(messages)]

    # Anthropic's format has instructions beside the messages; they belong to the agent, not to the history.
    try:
        return _build(read, _branch_list().validate_python(inner.get("branches", [])))
    except ValidationError as error:
        raise _invalid(f"The branches of the transcript are invalid: {error}.") from error


def _messages(items: object) -> Sequence[Message]:
    if isinstance(items, str | bytes) or not isinstance(items, Sequence):
        raise _invalid(f"The transcript must be a list of messages, not {type(items).__name__}.")

    if any(isinstance(item, Mapping) and {"results", "calls", "origin", "covers"} & item.keys() for item in items):
        try:
            return _message_list().validate_python(list(items))
        except ValidationError as error:
            raise _invalid(f"The transcript is invalid: {error}.") from error

    read, violations = import_messages(items)

    if violations:
        raise InvalidInput(violations)

    return [message for _, message in merge_tool_messages(read)]


def _build(messages: Sequence[Message], branches: Sequence[Branch]) -> Recording:
    """Drop summaries, which the policy of the recorded run made, and give an id to messages without one."""
    kept = [message for message in messages if not isinstance(message, SummaryMessage)]
    with_ids = (m if m.id else replace(m, id=f"recorded.{n}", time=m.time or float(n)) for n, m in enumerate(kept))
    return Recording(messages=tuple(with_ids), branches=tuple(branches))


def _invalid(text: str) -> InvalidInput:
    return InvalidInput([Violation(rule="transcript", text=text)])
