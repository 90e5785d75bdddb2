"""Repair: make an invalid conversation (after a crash, a cancel, from another framework) valid, deterministically."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from crew.message_rules.profiles import STRICTEST, Profile
from crew.message_rules.validate import validate
from crew.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
    is_empty,
    opens_conversation,
    without_calls,
)

MISSING_OPENING = "[The start of this conversation is missing.]"
MISSING_RESULT = "[No result: the call was interrupted.]"
CONTINUE = "[Continue.]"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairResult:
    """A valid conversation, and a description of each change that made it valid."""

    messages: tuple[Message, ...]
    changes: tuple[str, ...] = ()


def repair(
    messages: Sequence[Message], profile: Profile = STRICTEST, *, where: Literal["input", "view"] = "input"
) -> RepairResult:
    """Make a conversation valid; equal conversations give equal results.

    In the input it may add messages (missing results, an opening message). In a view it only removes messages, so that
    a request never exceeds its limit.
    """
    if not validate(messages, profile):
        return RepairResult(messages=tuple(messages))

    repairer = _Repairer(profile=profile, may_add=where == "input")
    repairer.pair_calls(messages)
    repairer.fix_edges()
    return RepairResult(messages=tuple(repairer.messages), changes=tuple(repairer.changes))


@dataclass(slots=True, kw_only=True)
class _Repairer:
    profile: Profile
    may_add: bool
    messages: list[Message] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    used_ids: set[str] = field(default_factory=set)

    def pair_calls(self, messages: Sequence[Message]) -> None:
        """Put the results of each call right after it; remove empty messages and results without a call."""
        answers = _results_by_call(messages)
        paired = sum(len(results) for results in answers.values())
        total = sum(len(m.results) for m in messages if isinstance(m, ToolMessage))

        if total > paired:
            self.changes.append(f"removed {total - paired} results without a call")

        for index, message in enumerate(messages):
            if isinstance(message, ToolMessage):
                continue

            if isinstance(message, AssistantMessage) and message.calls:
                self._add_calls(message, answers.get(index, {}), messages)
            elif is_empty(message):
                self.changes.append(f"removed an empty {message.role} message")
            else:
                self.messages.append(message)

    def _add_calls(
        self, message: AssistantMessage, answers: dict[int, tuple[ToolResult, int]], messages: Sequence[Message]
    ) -> None:
        calls: list[ToolCall] = []
        results: list[ToolResult] = []

        for number, call in enumerate(message.calls):
            if number not in answers and not self.may_add:
                self.changes.append(f"removed the call {call.id!r}, which has no result")
                continue

            valid = self._valid_call(call)

            if number in answers:
                result = answers[number][0]
                results.append(result if result.call_id == valid.id else replace(result, call_id=valid.id))
            else:
                self.changes.append(f"added a result for the call {call.id!r}, which had none")
                results.append(ToolResult(call_id=valid.id, name=valid.name, text=MISSING_RESULT, outcome="error"))

            calls.append(valid)

        if not calls:
            if message.text.strip():
                self.messages.append(without_calls(message))

            return

        unchanged = tuple(calls) == message.calls
        self.messages.append(message if unchanged else replace(message, calls=tuple(calls), provider_data=None))
        first = min((index for _, index in answers.values()), default=None)
        original = None if first is None else messages[first]
        self.messages.append(self._result_message(original, tuple(results), message))

    def _result_message(
        self, original: Message | None, results: tuple[ToolResult, ...], call: AssistantMessage
    ) -> ToolMessage:
        if not isinstance(original, ToolMessage):
            return ToolMessage(results, id=f"{call.id}.r" if call.id else "", time=call.time)

        return original if original.results == results else replace(original, results=results)

    def _valid_call(self, call: ToolCall) -> ToolCall:
        id, name = call.id, self.profile.fit_tool_name(call.name)

        if id in self.used_ids or not self.profile.accepts_call_id(id):
            number = len(self.used_ids) + 1

            while (id := f"call_{number}") in self.used_ids:
                number += 1

            self.changes.append(f"renamed the call id {call.id!r} to {id!r}")

        if name != call.name:
            self.changes.append(f"renamed the tool {call.name!r} to {name!r}")

        self.used_ids.add(id)
        return call if (id, name) == (call.id, call.name) else replace(call, id=id, name=name)

    def fix_edges(self) -> None:
        """Make the conversation start and end as the profile requires."""
        first = next((i for i, m in enumerate(self.messages) if not isinstance(m, SystemMessage)), len(self.messages))

        if not self.messages or (
            self.profile.must_open_with_user
            and (first == len(self.messages) or not opens_conversation(self.messages[first]))
        ):
            if self.may_add:
                self.changes.append("added an opening message")
                self.messages.insert(first, UserMessage(MISSING_OPENING, origin="marker", id="opening"))
            else:
                self._remove_until_opening(first)

        if self.profile.must_end_with_user and (replies := _trailing_replies(self.messages)):
            if self.may_add:
                self.changes.append("added a closing message")
                time = self.messages[replies[-1]].time
                self.messages.append(UserMessage(CONTINUE, origin="marker", id="closing", time=time))
            else:
                self.changes.append("removed the replies at the end")
                self.messages = [message for index, message in enumerate(self.messages) if index not in replies]

    def _remove_until_opening(self, first: int) -> None:
        opening = (i for i in range(first, len(self.messages)) if opens_conversation(self.messages[i]))
        end = next(opening, len(self.messages))
        kept = [m for m in self.messages[first:end] if isinstance(m, SystemMessage)]

        if len(kept) < end - first:
            self.changes.append(f"removed {end - first - len(kept)} messages before the first user message")
            self.messages[first:end] = kept


def _trailing_replies(messages: Sequence[Message]) -> list[int]:
    """The indexes of the replies that only system messages follow."""
    indexes: list[int] = []

    for index in range(len(messages) - 1, -1, -1):
        if isinstance(messages[index], AssistantMessage):
            indexes.insert(0, index)
        elif not isinstance(messages[index], SystemMessage):
            break

    return indexes


def _results_by_call(messages: Sequence[Message]) -> dict[int, dict[int, tuple[ToolResult, int]]]:
    """For each assistant message: the result of each of its calls, with the index of the result's message."""
    paired: dict[int, dict[int, tuple[ToolResult, int]]] = {}
    unanswered: dict[str, list[tuple[int, int]]] = {}

    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            for number, call in enumerate(message.calls):
                unanswered.setdefault(call.id, []).append((index, number))
        elif isinstance(message, ToolMessage):
            for result in message.results:
                if calls := unanswered.get(result.call_id):
                    # The newest call with that id: older ones were never answered.
                    newest = _newest_call(calls)
                    calls.remove(newest)
                    paired.setdefault(newest[0], {})[newest[1]] = (result, index)

    return paired


def _newest_call(calls: list[tuple[int, int]]) -> tuple[int, int]:
    """The first call of the newest message, of calls given as (index of the message, number of the call)."""
    newest = max(index for index, _ in calls)
    return min(call for call in calls if call[0] == newest)


def rename_duplicate_ids(messages: Sequence[Message]) -> list[Message]:
    """Clear the id of every message whose id an earlier one has; the run gives it a new one."""
    seen: set[str] = set()
    unique: list[Message] = []

    for message in messages:
        unique.append(replace(message, id="") if message.id and message.id in seen else message)
        seen.add(message.id)

    return unique
