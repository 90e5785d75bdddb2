"""Redacts text for logs, spans and metrics: registered secrets, key-like strings, values of sensitive names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

from crew.secret_names import SECRET_NAME_PARTS, is_sensitive_name
from crew.secrets.registry import CURRENT_SECRETS

Redacted: TypeAlias = "bool | int | float | str | list[Redacted] | dict[str, Redacted] | None"

REDACTED = "[hidden]"
MAX_CHARS = 10_000
SEARCH_BEYOND = 2_000
MAX_DEPTH = 6

_KEY_LIKE = re.compile(
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}"  # OpenAI, Anthropic and services with similar keys
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
    rf"(?:{SECRET_NAME_PARTS}|\b(?:auth|access|refresh|api|session)_?token|\btoken)(?:\\*[\"'])?\s*[:=]\s*)"
    # In quotes, perhaps escaped ones: up to the same quotes, or to the end of the text.
    r"(?:(?P<open>\\*[\"'])(?:(?!(?P=open))(?:\\.|.))*(?P<close>(?P=open)|\Z)"
    # Without quotes: up to a space, without closing punctuation; in a URL, up to the next parameter.
    rf"|(?!\\*[\"']|Bearer\b|Basic\b|\[…)(?:{_IN_QUERY}(?:{_PIECE}]))*{_IN_QUERY}(?:{_PIECE},;}}\])\\]))",
    re.IGNORECASE | re.DOTALL,
)


def redact(text: str) -> str:
    """The text with registered secrets and key-like strings replaced, cut to 10,000 characters; idempotent."""
    text = CURRENT_SECRETS.get()(text)

    if len(text) < 8:
        return text  # too short for a key, as most texts are

    return _redact_cached(text) if len(text) <= 200 else _redact_long(text)


def _redact_long(text: str) -> str:
    """Search beyond the cut too, so that no part of a key is left before it."""
    shown, rest = _redact_all(text[: MAX_CHARS + SEARCH_BEYOND]), max(0, len(text) - MAX_CHARS - SEARCH_BEYOND)

    if not rest and len(shown) <= MAX_CHARS:
        return shown

    room = min(MAX_CHARS - 50, len(shown))

    while True:
        cut = f"{shown[:room]} [… {len(shown) - room + rest} more characters]"

        if _redact_all(cut) == cut:
            return cut

        room -= 1  # the cut splits a replacement, or makes its beginning look like a key


def _redact_all(text: str) -> str:
    while (shown := _redact_once(text)) != text:
        text = shown  # a replacement may expose another match

    return text


def _redact_once(text: str) -> str:
    text = _KEY_LIKE.sub(REDACTED, text)
    text = _AUTH_HEADER.sub(rf"\1{REDACTED}", text)
    text = _NAMED_VALUE.sub(rf"\g<name>\g<open>{REDACTED}\g<close>", text)
    return _URL_PASSWORD.sub(rf"\1{REDACTED}\2", text)


_redact_cached = lru_cache(maxsize=4_096)(_redact_all)
"""Most short texts are names that repeat."""


def redact_value(value: object, depth: int = 0) -> Redacted:
    """The value as JSON-like data: numbers as they are, containers item by item, other objects as redacted text."""
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
                (key := redact(_to_str(name))): REDACTED if is_sensitive_name(key) else redact_value(item, depth + 1)
                for name, item in list(value.items())[:100]
            }
        case list() | tuple() | set() | frozenset():
            return [redact_value(item, depth + 1) for item in list(value)[:100]]
        case _:
            return redact(_to_str(value))


def _to_str(value: object) -> str:
    try:
        return value if isinstance(value, str) else str(value)
    except Exception:  # the tool boundary: __str__ of a user object may raise, and a log line must not fail
        return f"[{type(value).__name__} object whose __str__ raises]"
