"""What stays or leaves a conversation as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from crew.errors import Violation
from crew.message_rules.profiles import STRICTEST, Profile
from crew.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolResult,
    is_empty,
    opens_conversation,
)


def group_spans(messages: Sequence[Message]) -> list[slice]:
    """What stays or leaves as one: calls with the results that follow them; any other message alone."""
    found: list[slice] = []
    index = 0

    while index < len(messages):
        end = index + 1
        message = messages[index]

        if isinstance(message, AssistantMessage) and message.calls:
            while end < len(messages) and isinstance(messages[end], ToolMessage):
                end += 1

        found.append(slice(index, end))
        index = end

    return found


_LOOKBACK = 4


def validate(messages: Sequence[Message], profile: Profile = STRICTEST) -> list[Violation]:
    """Everything that this provider would refuse; an empty list is a valid conversation."""
    if not messages:
        return [Violation(rule="empty", text="There is no message; at least one is needed.")]

    found = [*_edge_violations(messages, profile)]
    start, used = _valid_prefix(messages, profile)
    before = messages[start - 1] if start else None

    for index in range(start, len(messages)):
        message = messages[index]

        if not _is_valid_alone(message, profile):
            found.extend(_message_violations(index, message, profile))

        if isinstance(message, AssistantMessage):
            following = messages[index + 1] if index + 1 < len(messages) else None
            answers = following.results if isinstance(following, ToolMessage) else ()

            if message.calls or answers:
                found.extend(_duplicate_calls(index, message, used))
                found.extend(_pairing_violations(index, message.calls, answers))
        elif isinstance(message, ToolMessage) and not isinstance(before, AssistantMessage):
            found.append(_violation(index, "orphan_result", "tool results follow no assistant message with calls"))

        before = message

    if not found:
        messages[-1].cache()["valid"] = (profile.name, tuple(messages), used)

    return found


def _valid_prefix(messages: Sequence[Message], profile: Profile) -> tuple[int, set[str]]:
    """How many messages at the front need no second look, and the call ids in them.

    Requests grow at their end: what was valid before, up to one of the newest messages, is so still. The finding moves
    on with the conversation, so that it is kept once.
    """
    for end in range(len(messages), max(0, len(messages) - _LOOKBACK), -1):
        slot = messages[end - 1].cache()
        name, front, used = slot.get("valid", ("", (), set()))

        if name == profile.name and front == tuple(messages[:end]):
            slot.pop("valid", None)
            # Results that follow now may have nothing to answer.
            return (end - 1 if isinstance(messages[end - 1], AssistantMessage) else end), set(used)

    return 0, set()


def _is_valid_alone(message: Message, profile: Profile) -> bool:
    """Whether nothing is wrong with this message alone; found out once, because every request asks again."""
    known: dict[str, bool] = message.cache().setdefault("sound", {})
    sound = known.get(profile.name)

    if sound is None:
        sound = known[profile.name] = not [*_message_violations(0, message, profile)]

    return sound


def _message_violations(index: int, message: Message, profile: Profile) -> Iterable[Violation]:
    if is_empty(message):
        yield _violation(index, "empty_text", f"the {message.role} message holds nothing that can be sent")

    if isinstance(message, AssistantMessage):
        yield from _call_violations(index, message, profile)


def _violation(index: int, rule: str, text: str, value: object = None, limit: object = None) -> Violation:
    return Violation(rule=rule, text=f"messages[{index}]: {text}.", index=index, value=value, limit=limit)


def _edge_violations(messages: Sequence[Message], profile: Profile) -> Iterable[Violation]:
    first = next((i for i, m in enumerate(messages) if not isinstance(m, SystemMessage)), None)

    if profile.must_open_with_user and (first is None or not opens_conversation(messages[first])):
        yield _violation(first or 0, "opening", "the conversation must open with a user message")

    # Some providers take system messages out of the conversation, so that what stands before them ends it.
    last = next((i for i in range(len(messages) - 1, -1, -1) if not isinstance(messages[i], SystemMessage)), 0)
    newest = messages[last]

    # An assistant message with open calls is told of by the pairing rule.
    if profile.must_end_with_user and isinstance(newest, AssistantMessage) and not newest.calls:
        yield _violation(last, "ending", "the conversation must end with a user or tool message")


def _call_violations(index: int, message: AssistantMessage, profile: Profile) -> Iterable[Violation]:
    for call in message.calls:
        if not profile.accepts_call_id(call.id):
            limit = profile.max_call_id_length
            yield _violation(
                index, "call_id", f"the call id {call.id!r} must be 1–{limit} of A–Z a–z 0–9 _ -", call.id, limit
            )

        if profile.fit_tool_name(call.name) != call.name:
            limit = profile.max_tool_name_length
            text = f"the tool name {call.name!r} must be 1–{limit} of A–Z a–z 0–9 _ -"
            yield _violation(index, "tool_name", text, call.name, limit)


def _duplicate_calls(index: int, message: AssistantMessage, used: set[str]) -> Iterable[Violation]:
    for call in message.calls:
        if call.id in used:
            yield _violation(index, "duplicate_call", f"the call id {call.id!r} is used twice", call.id)

        used.add(call.id)


def _pairing_violations(index: int, calls: Sequence[ToolCall], answers: Sequence[ToolResult]) -> Iterable[Violation]:
    asked = [call.id for call in calls]
    given = [result.call_id for result in answers]

    if asked == given:
        return

    if missing := [id for id in asked if id not in given]:
        yield _violation(index, "unanswered_call", f"the calls {missing!r} have no result", missing)

    if orphans := [id for id in given if id not in asked]:
        yield _violation(index + 1, "orphan_result", f"the results {orphans!r} answer no call", orphans)

    if len(set(given)) < len(given):
        yield _violation(index + 1, "duplicate_result", "a call is answered twice", given)
    elif not missing and not orphans:
        yield _violation(index + 1, "result_order", "the results are not in the order of their calls", given)
