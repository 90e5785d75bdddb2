"""Recorded transcripts: ours, as values or JSON, or OpenAI- or Anthropic-format messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from crew.errors import InvalidInput, Violation
from crew.messages import AssistantMessage, Message, SummaryMessage
from crew.runs.result import RunResult
from crew.runs.state import Branch
from crew.validation.message_import import import_messages, merge_tool_messages


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What happened in a conversation, and in the branches and called agents that it started."""

    messages: tuple[Message, ...]
    branches: tuple[Branch, ...] = ()

    @property
    def agents(self) -> tuple[str, ...]:
        """Everybody who replied, in order of appearance."""
        inner = [name for branch in self.branches for name in _branch_recording(branch).agents]
        mine = [m.agent or "agent" for m in self.messages if isinstance(m, AssistantMessage)]
        return tuple(dict.fromkeys([*mine, *inner])) or ("agent",)

    def save(self, path: Path | str) -> None:
        """Write it as JSON that `read_recording` and `crew simulate` read; its messages may be a later `history=`."""
        messages = _adapter(list[Message]).dump_python(list(self.messages), mode="json")
        branches = _adapter(list[Branch]).dump_python(list(self.branches), mode="json")
        Path(path).write_bytes(to_json({"transcript": messages, "branches": branches}, indent=1))


def read_recording(source: RunResult | Recording | Sequence[Any] | Mapping[str, Any] | Path | str | bytes) -> Recording:
    """A recording out of a result, a transcript, a list of messages or dicts, JSON, or the path of a JSON file."""
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


def _branch_recording(branch: Branch) -> Recording:
    return Recording(messages=branch.transcript, branches=branch.branches)


def _from_json(source: str | bytes) -> Recording:
    try:
        found = from_json(source)
    except ValueError as error:
        raise _invalid(f"The transcript is not JSON: {error}.") from error

    return _from_mapping(found) if isinstance(found, dict) else _build(_messages(found), ())


def _from_mapping(found: Mapping[str, Any]) -> Recording:
    inner = found.get("state", found)
    messages = inner.get("transcript", inner.get("messages"))

    if messages is None:
        raise _invalid("The transcript must be a list of messages, or hold one under 'transcript' or 'messages'.")

    read = [*_messages(messages)]

    # Anthropic's format keeps the instructions beside the messages; they belong to the agent, not to the history.
    try:
        return _build(read, _adapter(list[Branch]).validate_python(inner.get("branches", [])))
    except ValidationError as error:
        raise _invalid(f"The branches of the transcript can't be read: {error}.") from error


def _messages(found: Any) -> Sequence[Message]:
    if isinstance(found, str | bytes) or not isinstance(found, Sequence):
        raise _invalid(f"The transcript must be a list of messages, not {type(found).__name__}.")

    if any(isinstance(item, Mapping) and {"results", "calls", "origin", "covers"} & item.keys() for item in found):
        try:
            ours: list[Message] = _adapter(list[Message]).validate_python(list(found))
            return ours
        except ValidationError as error:
            raise _invalid(f"The transcript can't be read: {error}.") from error

    read, violations = import_messages(found)

    if violations:
        raise InvalidInput(violations)

    return [message for _, message in merge_tool_messages(read)]


def _build(messages: Sequence[Message], branches: Sequence[Branch]) -> Recording:
    """Summaries were another policy's doing and are left out; what has no id gets one."""
    plain = [message for message in messages if not isinstance(message, SummaryMessage)]
    named = (m if m.id else replace(m, id=f"recorded.{n}", time=m.time or float(n)) for n, m in enumerate(plain))
    return Recording(messages=tuple(named), branches=tuple(branches))


def _invalid(text: str) -> InvalidInput:
    return InvalidInput([Violation(rule="transcript", text=text)])
