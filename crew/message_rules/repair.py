"""A valid conversation out of a broken one (a crash, a cancel, another framework), always the same one."""

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

MISSING_OPENING = "[The beginning of this conversation is missing.]"
MISSING_RESULT = "[No result: the call was interrupted.]"
CONTINUE = "[Continue.]"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairResult:
    """A conversation that is valid now, and what was done to it."""

    messages: tuple[Message, ...]
    changes: tuple[str, ...] = ()


def repair(
    messages: Sequence[Message], profile: Profile = STRICTEST, *, where: Literal["door", "view"] = "door"
) -> RepairResult:
    """A valid conversation out of any; the same one out of the same one.

    At the door it may add (results that are missing, an opening message); in a view it only removes, so that a
    request never grows beyond its bound.
    """
    if not validate(messages, profile):
        return RepairResult(messages=tuple(messages))

    mending = _Repairer(profile=profile, may_add=where == "door")
    mending.pair_calls(messages)
    mending.fix_edges()
    return RepairResult(messages=tuple(mending.messages), changes=tuple(mending.changes))


@dataclass(slots=True, kw_only=True)
class _Repairer:
    profile: Profile
    may_add: bool
    messages: list[Message] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    used_ids: set[str] = field(default_factory=set)

    def pair_calls(self, messages: Sequence[Message]) -> None:
        answers = _results_by_call(messages)
        taken = sum(len(found) for found in answers.values())
        given = sum(len(m.results) for m in messages if isinstance(m, ToolMessage))

        if given > taken:
            self.changes.append(f"removed {given - taken} results that answer no call")

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

            named = self._valid_call(call)

            if number in answers:
                result = answers[number][0]
                results.append(result if result.call_id == named.id else replace(result, call_id=named.id))
            else:
                self.changes.append(f"answered the call {call.id!r}, which had no result")
                text = MISSING_RESULT
                results.append(ToolResult(call_id=named.id, name=named.name, text=text, outcome="error"))

            calls.append(named)

        if not calls:
            if message.text.strip():
                self.messages.append(without_calls(message))

            return

        same = tuple(calls) == message.calls
        self.messages.append(message if same else replace(message, calls=tuple(calls), provider_data=None))
        homes = {home for _, home in answers.values()}
        first = messages[min(homes)] if homes else None
        self.messages.append(self._result_message(first, tuple(results), message))

    def _result_message(
        self, first: Message | None, results: tuple[ToolResult, ...], call: AssistantMessage
    ) -> ToolMessage:
        if not isinstance(first, ToolMessage):
            return ToolMessage(results, id=f"{call.id}.r" if call.id else "", time=call.time)

        return first if first.results == results else replace(first, results=results)

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
        end = next(
            (i for i in range(first, len(self.messages)) if opens_conversation(self.messages[i])), len(self.messages)
        )
        kept = [m for m in self.messages[first:end] if isinstance(m, SystemMessage)]

        if len(kept) < end - first:
            self.changes.append(f"removed {end - first - len(kept)} messages before the first user message")
            self.messages[first:end] = kept


def _trailing_replies(messages: Sequence[Message]) -> list[int]:
    """Where the replies stand that nothing but system messages follows."""
    found: list[int] = []

    for index in range(len(messages) - 1, -1, -1):
        if isinstance(messages[index], AssistantMessage):
            found.insert(0, index)
        elif not isinstance(messages[index], SystemMessage):
            break

    return found


def _results_by_call(messages: Sequence[Message]) -> dict[int, dict[int, tuple[ToolResult, int]]]:
    """For each assistant message: the result of each of its calls, and where that result stands."""
    found: dict[int, dict[int, tuple[ToolResult, int]]] = {}
    waiting: dict[str, list[tuple[int, int]]] = {}

    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            for number, call in enumerate(message.calls):
                waiting.setdefault(call.id, []).append((index, number))
        elif isinstance(message, ToolMessage):
            for result in message.results:
                if places := waiting.get(result.call_id):
                    # The newest call of that id: an older one of the same id was never answered.
                    place = _newest_call(places)
                    places.remove(place)
                    found.setdefault(place[0], {})[place[1]] = (result, index)

    return found


def _newest_call(places: list[tuple[int, int]]) -> tuple[int, int]:
    newest = max(home for home, _ in places)
    return min(place for place in places if place[0] == newest)


def rename_duplicate_ids(messages: Sequence[Message]) -> list[Message]:
    """The messages, each id used once: a second one under the same id is named anew."""
    seen: set[str] = set()
    out: list[Message] = []

    for message in messages:
        out.append(replace(message, id="") if message.id and message.id in seen else message)
        seen.add(message.id)

    return out
