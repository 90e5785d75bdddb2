"""Span attributes made from events, messages and counters; texts are redacted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypedDict

from crew.agents.agent import Parallel, Quorum
from crew.messages import (
    AssistantMessage,
    Message,
    SummaryMessage,
    SystemMessage,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
)
from crew.runs.counters import RunCounters
from crew.runs.events import Asked, HistoryPruned, Replied
from crew.secrets.patterns import MAX_CHARS, redact
from crew.telemetry import names

Scalar = str | bool | int | float


def request_attributes(event: Asked, conversation_id: str) -> dict[str, Scalar]:
    """The attributes of a model request."""
    attributes: dict[str, Scalar] = {
        names.OPERATION: names.CHAT,
        names.PROVIDER: event.provider,
        names.REQUEST_MODEL: redact(event.model),
        names.AGENT_NAME: event.agent,
        names.CONVERSATION_ID: conversation_id,
        names.MESSAGES: event.messages,
        names.ESTIMATED_TOKENS: event.tokens_estimated,
    }

    if event.manifest is not None and event.manifest.turn:
        attributes[names.SAME_MESSAGES] = event.manifest.same_messages

        if event.manifest.moved_by:
            attributes[names.MOVED_BY] = redact(event.manifest.moved_by)

    return attributes


def finish_reason_name(reason: str) -> str:
    """The finish reason by its name in the semantic conventions."""
    return {"calls": "tool_call", "refusal": "content_filter", "filter": "content_filter"}.get(reason, reason)


def reply_attributes(event: Replied) -> dict[str, Scalar | tuple[str, ...]]:
    """The attributes of a model's reply, with its usage."""
    attributes: dict[str, Scalar | tuple[str, ...]] = {
        names.FINISH_REASONS: (finish_reason_name(event.finish_reason),),
        **usage_attributes(event.usage),
    }

    if event.model:
        attributes[names.RESPONSE_MODEL] = redact(event.model)

    if event.response_id:
        attributes[names.RESPONSE_ID] = redact(event.response_id)

    return attributes


def usage_attributes(usage: Usage) -> dict[str, Scalar]:
    """Tokens and cost of one model call."""
    attributes: dict[str, Scalar] = {names.INPUT_TOKENS: usage.input_tokens, names.OUTPUT_TOKENS: usage.output_tokens}

    if usage.cache_read_tokens:
        attributes[names.CACHE_READ_TOKENS] = usage.cache_read_tokens

    if usage.cache_write_tokens:
        attributes[names.CACHE_WRITE_TOKENS] = usage.cache_write_tokens

    if usage.reasoning_tokens:
        attributes[names.REASONING_TOKENS] = usage.reasoning_tokens

    if usage.cost:
        attributes[names.COST] = usage.cost

    return attributes


def run_attributes(counters: RunCounters) -> dict[str, Scalar]:
    """The totals of a run, those before a pause included."""
    usage = counters.usage
    attributes: dict[str, Scalar] = {
        names.USAGE_REQUESTS: usage.requests,
        names.USAGE_INPUT: usage.input_tokens,
        names.USAGE_OUTPUT: usage.output_tokens,
        names.USAGE_CACHE_READ: usage.cache_read_tokens,
        names.USAGE_CACHE_WRITE: usage.cache_write_tokens,
        names.PRUNINGS: len(counters.prunings),
        names.MESSAGES_PRUNED_TOTAL: counters.messages_pruned,
    }
    return attributes | {names.USAGE_COST: usage.cost} if usage.cost else attributes


def pruning_attributes(event: HistoryPruned) -> dict[str, Scalar]:
    """The attributes of a pruning."""
    attributes: dict[str, Scalar] = {
        names.MESSAGES_BEFORE: event.before,
        names.MESSAGES_AFTER: event.after,
        names.EVICTED: len(event.evicted),
        names.HISTORY_LIMIT: event.limit,
        names.HISTORY_POLICY: event.policy,
        names.PRUNING_REASON: redact(event.reason),
        names.TOKENS_BEFORE: event.tokens_before,
        names.TOKENS_AFTER: event.tokens_after,
        names.PREFIX_MOVED: bool(event.evicted or event.masked),
        names.PRUNED_WHERE: event.where,
        names.AGENT_NAME: event.agent,
        names.RUN_ID: event.run_id,
    }
    return attributes | {names.MASKED: len(event.masked)} if event.masked else attributes


def group_attributes(group: Parallel | None, name: str) -> dict[str, Scalar]:
    """The attributes of a parallel group."""
    attributes: dict[str, Scalar] = {names.GROUP: name}

    if group is not None:
        policy = group.on_error
        attributes[names.GROUP_POLICY] = f"quorum({policy.n})" if isinstance(policy, Quorum) else policy

        if group.items is None:
            attributes[names.BRANCHES] = len(group.branches)

    return attributes


MAX_ATTRIBUTE_CHARS = 64_000

Part = dict[str, str]


class MessageJson(TypedDict):
    """A message in the JSON of the semantic conventions."""

    role: str
    parts: list[Part]


def messages_json(messages: Sequence[Message]) -> tuple[str, int]:
    """The newest messages that fit into one attribute, in order, and how many older ones are omitted."""
    parts: list[str] = []
    size = 2

    for message in reversed(messages):
        part = json.dumps(_message_json(message), ensure_ascii=False)
        size += len(part) + 2

        if size > MAX_ATTRIBUTE_CHARS and parts:
            break

        parts.append(part)

    return f"[{', '.join(reversed(parts))}]", len(messages) - len(parts)


def reply_json(message: AssistantMessage, finish_reason: str) -> str:
    """A reply as a list of one message."""
    return json.dumps(
        [{**_message_json(message), "finish_reason": finish_reason_name(finish_reason)}], ensure_ascii=False
    )


def instructions_json(text: str) -> str:
    """An agent's instructions as a list of parts."""
    return json.dumps([_text_part(text)], ensure_ascii=False)


def arguments_attribute(arguments: str) -> str:
    """A call's arguments as JSON; too long ones as a JSON string of their beginning."""
    return redact(arguments) if len(arguments) <= MAX_CHARS else json.dumps(redact(arguments), ensure_ascii=False)


def result_attribute(result: ToolResult) -> str:
    """The result that the model reads."""
    return redact(result.text)


def _message_json(message: Message) -> MessageJson:
    match message:
        case SystemMessage(text=text):
            return {"role": "system", "parts": [_text_part(text)]}
        case UserMessage(text=text) | SummaryMessage(text=text):
            return {"role": "user", "parts": [_text_part(text)]}
        case AssistantMessage(text=text, calls=calls):
            parts = [_text_part(text)] if text else []
            called = [
                {"type": "tool_call", "id": call.id, "name": redact(call.name), "arguments": redact(call.arguments)}
                for call in calls
            ]
            return {"role": "assistant", "parts": _fit_parts([*parts, *called])}
        case ToolMessage(results=results):
            parts = [{"type": "tool_call_response", "id": r.call_id, "response": redact(r.text)} for r in results]
            return {"role": "tool", "parts": _fit_parts(parts)}


def _fit_parts(parts: list[Part]) -> list[Part]:
    """The first parts that fit into one attribute, and a note on how many are omitted."""
    room = MAX_ATTRIBUTE_CHARS - 1_000

    for number, part in enumerate(parts):
        room -= len(json.dumps(part, ensure_ascii=False)) + 2

        if room < 0:
            return [*parts[:number], _text_part(f"[… {len(parts) - number} more parts]")]

    return parts


def _text_part(text: str) -> Part:
    return {"type": "text", "content": redact(text)}
