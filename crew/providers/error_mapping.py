"""What a service's error means: its status, type, code and words become an error of ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from crew.errors import (
    AuthenticationFailed,
    ContentRefused,
    ContextTooLong,
    Overloaded,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    RequestRejected,
    Unavailable,
)

_TOO_LONG = re.compile(
    r"context_length_exceeded|prompt is too long|maximum context length|exceeds? the (?:available )?context|"
    r"exceed context limit|context window|request_too_large|exceed_context_size",
    re.IGNORECASE,
)
_MAXIMUM = (
    re.compile(r"maximum context length is (\d[\d,]*)"),
    re.compile(r"> (\d[\d,]*)"),
    re.compile(r"context (?:window|size|length)[^.]*?\((\d[\d,]*)"),
)
_QUOTA = re.compile(
    r"insufficient_quota|billing_error|credit balance|spend limit|exceeded your current quota", re.IGNORECASE
)
_FILTERED = re.compile(
    r"content_filter|content_policy|content filtering policy|content management policy", re.IGNORECASE
)
_MAX_MESSAGE = 600

# An error that comes inside of a stream has no status of its own; its type says which one it would have had.
_STATUS_OF = {
    "overloaded_error": 529,
    "overloaded": 529,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "billing_error": 402,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceError:
    """What a service said instead of an answer."""

    status: int
    kind: str = ""
    code: str = ""
    message: str = ""

    @classmethod
    def parse(cls, status: int, body: Any, words: str = "") -> ServiceError:
        """Out of an error's body, whichever of the services' shapes it has."""
        inner = body.get("error", body) if isinstance(body, Mapping) else None

        if not isinstance(inner, Mapping):
            return cls(status=status, message=str(inner or words))

        kind, code = str(inner.get("type") or ""), str(inner.get("code") or "")

        if status < 400:
            status = _STATUS_OF.get(code) or _STATUS_OF.get(kind) or 500

        return cls(status=status, kind=kind, code=code, message=str(inner.get("message") or words))


def provider_error(refusal: ServiceError, **facts: Any) -> ProviderError:
    """Our error for what the service said; `facts` are those that every provider error holds."""
    said = re.sub(r"\s+", " ", refusal.message).strip()[:_MAX_MESSAGE] or "no reason given"
    text = f"{facts.get('provider')} answered {refusal.status} for {facts.get('model')!r}: {said}"
    marks = f"{refusal.kind} {refusal.code} {refusal.message}"
    facts = {**facts, "status": refusal.status}

    if _QUOTA.search(marks):
        return QuotaExceeded(f"{text} Waiting does not help: look at the account's plan and billing.", **facts)

    if refusal.status == 429:
        return RateLimited(text, **facts)

    if refusal.status == 529 or refusal.kind == "overloaded_error":
        return Overloaded(text, **facts)

    if refusal.status in (408, 409, 425) or refusal.status >= 500:
        return Unavailable(text, **facts)

    if refusal.status in (401, 403):
        return AuthenticationFailed(text, **facts)

    if _TOO_LONG.search(marks):
        return ContextTooLong(text, maximum=_named_window(refusal.message), **facts)

    if _FILTERED.search(marks):
        return ContentRefused(text, **facts)

    return RequestRejected(text, **facts)


def _named_window(message: str) -> int | None:
    """The window that the words name."""
    for pattern in _MAXIMUM:
        if found := pattern.search(message):
            return int(found[1].replace(",", ""))

    return None


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """The seconds that the service asks to wait: milliseconds, seconds or a date; None if it says nothing readable."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        said = headers.get(name)

        if said is None:
            continue

        try:
            return max(0.0, float(said) * scale)
        except ValueError:
            pass  # not a number, perhaps a date

        try:
            return max(0.0, parsedate_to_datetime(said).timestamp() - now)
        except ValueError:
            continue

    return None
