"""`recall`: a tool that reads earlier messages which are no longer in the view."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from crew.messages import AssistantMessage, Message, SummaryMessage, SystemMessage, ToolMessage
from crew.tools.context import Context
from crew.tools.tool import tool, truncate_middle

MAX_RESULTS = 10
MAX_CHARS = 8_000
MIN_CHARS_PER_RESULT = 400

_WORD = re.compile(r"[^\s,;:()\[\]{}\"']+")


@tool(effect="read", max_output_chars=MAX_CHARS)
async def recall(context: Context[Any], ids: list[str] | None = None, words: str = "") -> str:
    """Read earlier messages of this conversation that are no longer shown, or were summarised or omitted.

    Args:
        ids: The ids of messages, summaries or tool calls to read in full.
        words: Words, numbers or names to search for. Returns the messages that contain most of them, with their ids.
    """
    messages = [message for message in await context.all_readable() if not isinstance(message, SystemMessage)]

    if ids:
        found = [*_find_by_id(messages, ids)]
    elif words.strip():
        found = _find_by_words(messages, words)
    else:
        return "Give ids, or words to search for."

    if not found:
        return "No message of this conversation matches. Try other words."

    shown = found[:MAX_RESULTS]
    max_chars = max(MIN_CHARS_PER_RESULT, MAX_CHARS // len(shown) - 80)
    parts = [f"[{id}]\n{truncate_middle(text, max_chars)}" for id, text in shown]
    more = f"\n\n[{len(found) - MAX_RESULTS} more match; use more words.]" if len(found) > MAX_RESULTS else ""
    return "\n\n".join(parts) + more


def _find_by_id(messages: Sequence[Message], ids: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Messages by their ids, tool results by the ids of their calls, and the messages that a summary covers."""
    wanted = set(ids)
    covered = {id for m in messages if isinstance(m, SummaryMessage) and m.id in wanted for id in m.covers}

    for message in messages:
        if message.id in wanted or message.id in covered:
            yield message.id, _message_text(message)
        elif isinstance(message, ToolMessage):
            for result in message.results:
                if result.call_id in wanted:
                    yield result.call_id, f"{result.name}: {result.text}"


def _find_by_words(messages: Sequence[Message], words: str) -> list[tuple[str, str]]:
    """The messages that contain most of the words; equal ones newest first. Skips summaries and recalled copies."""
    wanted = {word.casefold() for word in _WORD.findall(words)}
    ranked: list[tuple[int, int, Message]] = []

    for index, message in enumerate(messages):
        if isinstance(message, SummaryMessage) or _is_recall(message):
            continue

        text = _message_text(message).casefold()
        score = sum(word in text for word in wanted)

        if score:
            ranked.append((-score, -index, message))

    ranked.sort(key=lambda entry: entry[:2])
    best = ranked[0][0] if ranked else 0
    # A message with less than half as many of the words as the best one is not relevant.
    return [(message.id, _message_text(message)) for score, _, message in ranked if score * 2 <= best]


def _is_recall(message: Message) -> bool:
    match message:
        case ToolMessage(results=results):
            return all(result.name == "recall" for result in results)
        case AssistantMessage(calls=calls, text=text):
            return bool(calls) and not text and all(call.name == "recall" for call in calls)
        case _:
            return False


def _message_text(message: Message) -> str:
    match message:
        case ToolMessage(results=results):
            return "\n".join(f"{result.name}: {result.text}" for result in results)
        case AssistantMessage():
            calls = "".join(f"\n{call.name}({call.arguments})" for call in message.calls)
            return f"{message.agent}: {message.text}{calls}"
        case _:
            return f"{message.role}: {message.text}"
