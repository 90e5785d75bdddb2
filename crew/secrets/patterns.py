"""Key-like strings and values under telling names, replaced in whatever leaves through logs, spans and metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from crew.secrets.registry import CURRENT_SECRETS

REDACTED = "[hidden]"
MAX_CHARS = 10_000
SEARCH_BEYOND = 2_000
MAX_DEPTH = 6

_SENSITIVE = (
    r"pass(?:word|wd|phrase)|secret|api[_-]?key|access[_-]?key|private[_-]?key|authorization|credentials?|cookie"
)
_SENSITIVE_NAME = re.compile(
    rf"(?:{_SENSITIVE}|(?:^|[_-])(?:auth|access|refresh|bearer|api|id|session)?_?token$)", re.IGNORECASE
)

_KEY_LIKE = re.compile(
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}"  # OpenAI, Anthropic and those who write theirs alike
    r"|\b(?:sk|pk|rk)_(?:live|test)_[A-Za-z0-9]{16,}"
    r"|\bgh[opsur]_[A-Za-z0-9]{30,}|\bgithub_pat_[A-Za-z0-9_]{30,}|\bglpat-[A-Za-z0-9_-]{16,}"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[A-Za-z0-9_-]{35}|\bxox[abeprs]-[A-Za-z0-9-]{10,}|\bhf_[A-Za-z0-9]{30,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?"
)
_AUTH_HEADER = re.compile(r"(\b(?:Bearer|Basic)\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(://[^\s/:@]*:)[^\s/@]+(@)")
_PIECE = r"\[hidden\]|(?!\[hidden\])[^\s\"'"
_IN_QUERY = r"(?!(?(query)&[\w.%-]+=|(?!)))"
_NAMED_VALUE = re.compile(
    r"(?P<name>(?P<query>[?&][\w.%-]*)?"
    rf"(?:{_SENSITIVE}|\b(?:auth|access|refresh|api|session)_?token|\btoken)(?:\\*[\"'])?\s*[:=]\s*)"
    # In quotes, which may be escaped: up to the same quotes, or to the end where they are missing.
    r"(?:(?P<open>\\*[\"'])(?:(?!(?P=open))(?:\\.|.))*(?P<close>(?P=open)|\Z)"
    # Without: up to a space, without what closes a sentence or a bracket; in an address, up to the next parameter.
    rf"|(?!\\*[\"']|Bearer\b|Basic\b|\[…)(?:{_IN_QUERY}(?:{_PIECE}]))*{_IN_QUERY}(?:{_PIECE},;}}\])\\]))",
    re.IGNORECASE | re.DOTALL,
)


def redact(text: str) -> str:
    """The text without secrets that we hold and without key-like strings; never longer than 10,000 characters.

    What is safe stays as it is when it is made safe once more.
    """
    text = CURRENT_SECRETS.get()(text)

    if len(text) < 8:
        return text  # too short for a key, and most texts are

    return _redact_cached(text) if len(text) <= 200 else _redact_long(text)


def _redact_long(text: str) -> str:
    """Keys are looked for beyond the cut too, so that it leaves no half of one."""
    shown, rest = _redact_all(text[: MAX_CHARS + SEARCH_BEYOND]), max(0, len(text) - MAX_CHARS - SEARCH_BEYOND)

    if not rest and len(shown) <= MAX_CHARS:
        return shown

    room = min(MAX_CHARS - 50, len(shown))

    while True:
        cut = f"{shown[:room]} [… {len(shown) - room + rest} more characters]"

        if _redact_all(cut) == cut:
            return cut

        room -= 1  # it went through a replacement, or made a key out of the beginning of something else


def _redact_all(text: str) -> str:
    while (shown := _redact_once(text)) != text:
        text = shown  # what was replaced may lay bare what was not

    return text


def _redact_once(text: str) -> str:
    text = _KEY_LIKE.sub(REDACTED, text)
    text = _AUTH_HEADER.sub(rf"\1{REDACTED}", text)
    text = _NAMED_VALUE.sub(rf"\g<name>\g<open>{REDACTED}\g<close>", text)
    return _URL_PASSWORD.sub(rf"\1{REDACTED}\2", text)


_redact_cached = lru_cache(maxsize=4_096)(_redact_all)
"""The same names come again and again."""


def is_sensitive_name(name: str) -> bool:
    """Whether what stands under this name is nobody's business."""
    return _SENSITIVE_NAME.search(name) is not None


def redact_value(value: Any, depth: int = 0) -> Any:
    """Any value in a shape that can be shown: plain ones as they are, containers walked, others in safe words."""
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return redact(value)
        case bytes() | bytearray():
            return f"[{len(value)} bytes]"
        case _ if depth >= MAX_DEPTH:
            return "[…]"
        case Mapping():
            return {
                (key := redact(_to_str(name))): REDACTED if is_sensitive_name(key) else redact_value(held, depth + 1)
                for name, held in list(value.items())[:100]
            }
        case list() | tuple() | set() | frozenset():
            return [redact_value(held, depth + 1) for held in list(value)[:100]]
        case _:
            return redact(_to_str(value))


def _to_str(value: Any) -> str:
    try:
        return value if isinstance(value, str) else str(value)
    except Exception:  # a foreign object's __str__ may do anything; it must not break the line that it stands in
        return f"[a {type(value).__name__} that can't be shown]"
