"""Validation of conversations by a provider's rules, and the grouping of tool calls with their results."""

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
    """Slices of messages that must stay together: tool calls with the results after them; any other message alone."""
    starts: list[int] = []
    has_calls = False

    for index, message in enumerate(messages):
        if not (has_calls and isinstance(message, ToolMessage)):
            starts.append(index)
            has_calls = isinstance(message, AssistantMessage) and message.calls != ()

    return list(map(slice, starts, [*starts[1:], len(messages)]))


_LOOKBACK = 4


def validate(messages: Sequence[Message], profile: Profile = STRICTEST) -> list[Violation]:
    """Every violation of this provider's rules; a valid conversation has none."""
    if not messages:
        return [Violation(rule="empty", text="The conversation has no messages; at least one is required.")]

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
            found.append(_violation(index, "orphan_result", "tool results without an assistant message before them"))

        before = message

    if not found:
        messages[-1].cache()["valid"] = (profile.name, tuple(messages), used)

    return found


def _valid_prefix(messages: Sequence[Message], profile: Profile) -> tuple[int, set[str]]:
    """The number of messages at the start that were validated before, and their call ids.

    Requests grow at their end, so a prefix that was valid up to one of the newest messages still is. The cached result
    moves to the newest message, so that it is stored once.
    """
    for end in range(len(messages), max(0, len(messages) - _LOOKBACK), -1):
        cache = messages[end - 1].cache()
        name, prefix, used = cache.get("valid", ("", (), set()))

        if name == profile.name and prefix == tuple(messages[:end]):
            cache.pop("valid", None)
            # The results that follow now may not match its calls.
            return (end - 1 if isinstance(messages[end - 1], AssistantMessage) else end), set(used)

    return 0, set()


def _is_valid_alone(message: Message, profile: Profile) -> bool:
    """Whether this message by itself breaks no rule; cached, because every request checks it again."""
    cached: dict[str, bool] = message.cache().setdefault("sound", {})
    valid = cached.get(profile.name)

    if valid is None:
        valid = cached[profile.name] = not [*_message_violations(0, message, profile)]

    return valid


def _message_violations(index: int, message: Message, profile: Profile) -> Iterable[Violation]:
    if is_empty(message):
        yield _violation(index, "empty_text", f"the {message.role} message is empty")

    if isinstance(message, AssistantMessage):
        yield from _call_violations(index, message, profile)


def _violation(index: int, rule: str, text: str, value: object = None, limit: object = None) -> Violation:
    return Violation(rule=rule, text=f"messages[{index}]: {text}.", index=index, value=value, limit=limit)


def _edge_violations(messages: Sequence[Message], profile: Profile) -> Iterable[Violation]:
    first = next((i for i, m in enumerate(messages) if not isinstance(m, SystemMessage)), None)

    if profile.must_open_with_user and (first is None or not opens_conversation(messages[first])):
        yield _violation(first or 0, "opening", "the conversation must open with a user message")

    # Some providers remove system messages from the conversation; then the message before them is the last.
    last = next((i for i in range(len(messages) - 1, -1, -1) if not isinstance(messages[i], SystemMessage)), 0)
    newest = messages[last]

    # The pairing rule reports an assistant message with unanswered calls.
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
    called = [call.id for call in calls]
    answered = [result.call_id for result in answers]

    if called == answered:
        return

    if missing := [id for id in called if id not in answered]:
        yield _violation(index, "unanswered_call", f"the calls {missing!r} have no result", missing)

    if orphans := [id for id in answered if id not in called]:
        yield _violation(index + 1, "orphan_result", f"the results {orphans!r} have no call", orphans)

    if len(set(answered)) < len(answered):
        yield _violation(index + 1, "duplicate_result", "a call has two results", answered)
    elif not missing and not orphans:
        yield _violation(index + 1, "result_order", "the results are not in the order of their calls", answered)
