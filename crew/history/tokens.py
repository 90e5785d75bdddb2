"""Estimates of tokens before anything was billed: script-aware, JSON denser than prose."""

from __future__ import annotations

import re
from typing import assert_never

from crew.messages import AssistantMessage, Message, SummaryMessage, SystemMessage, ToolMessage, UserMessage

PER_MESSAGE = 4
PER_IMAGE = 800

_CJK = re.compile("[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]")
_WIDE = re.compile("[\U00010000-\U0010ffff\u2190-\u2bff]")
_DENSE = re.compile(r"[^\w\s]|\d")


def estimate(text: str) -> int:
    """About how many tokens a text has."""
    if not text:
        return 0

    length = len(text)
    # Punctuation and digits rarely share a token with their neighbours: that is what makes JSON and code dense.
    dense = len(_DENSE.findall(text[:4000])) * (length / min(length, 4000))

    if text.isascii():
        return int((length - dense) / 4.6 + dense * 0.6) + 1

    cjk, wide = len(_CJK.findall(text)), len(_WIDE.findall(text))
    plain = sum(1 for character in text if character < "\x80")
    other = max(0, length - cjk - wide - plain)
    return int(cjk * 0.8 + wide * 1.6 + other * 0.4 + max(0.0, plain - dense) / 4.6 + min(dense, plain) * 0.6) + 1


def estimate_message(message: Message) -> int:
    """About how many tokens a message has; what only its provider can read (signatures, images' bytes) is left out."""
    match message:
        case AssistantMessage():
            calls = sum(estimate(call.name) + estimate(call.arguments) + PER_MESSAGE for call in message.calls)
            return PER_MESSAGE + estimate(message.text) + calls
        case ToolMessage():
            return sum(PER_MESSAGE + estimate(result.text) for result in message.results)
        case UserMessage():
            return PER_MESSAGE + estimate(message.text) + PER_IMAGE * len(message.images)
        case SystemMessage() | SummaryMessage():
            return PER_MESSAGE + estimate(message.text)
        case _:
            assert_never(message)
