"""Maps a service's error (status, type, code, message) to a `ProviderError`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TypedDict

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
_STATUS_CODE = re.compile(r"[45]\d\d")
_MAX_MESSAGE = 600

# An error event in a stream has no status; its type or code implies the one that a plain response would have.
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
    """An error as a service reports it."""

    status: int
    kind: str = ""
    code: str = ""
    message: str = ""

    @classmethod
    def parse(cls, status: int, body: object, text: str = "") -> ServiceError:
        """Read an error body in the form of any of the services; `text` is the message if the body has none."""
        inner = body.get("error", body) if isinstance(body, Mapping) else None

        if not isinstance(inner, Mapping):
            return cls(status=status if status >= 400 else 500, message=str(inner or text))

        kind, code = str(inner.get("type") or ""), str(inner.get("code") or "")

        if status < 400:
            # Some gateways report the status of the service behind them as the code.
            status = int(code) if _STATUS_CODE.fullmatch(code) else _STATUS_OF.get(code) or _STATUS_OF.get(kind) or 500

        return cls(status=status, kind=kind, code=code, message=str(inner.get("message") or text))


class _Facts(TypedDict):
    provider: str
    model: str
    status: int
    request_id: str
    retry_after: float | None
    may_retry: bool


def provider_error(
    error: ServiceError,
    *,
    provider: str,
    model: str,
    request_id: str = "",
    retry_after: float | None = None,
    may_retry: bool = True,
) -> ProviderError:
    """Return the ProviderError for a service's error."""
    message = re.sub(r"\s+", " ", error.message).strip()[:_MAX_MESSAGE] or "no reason given"
    text = f"{provider} returned {error.status} for {model!r}: {message.rstrip('.')}."
    searched = f"{error.kind} {error.code} {error.message}"
    facts = _Facts(
        provider=provider,
        model=model,
        status=error.status,
        request_id=request_id,
        retry_after=retry_after,
        may_retry=may_retry,
    )

    if _QUOTA.search(searched):
        return QuotaExceeded(f"{text} Retrying does not help: check the plan and billing of the account.", **facts)

    if error.status == 429:
        return RateLimited(text, **facts)

    if error.status == 529 or error.kind == "overloaded_error":
        return Overloaded(text, **facts)

    if error.status in (408, 409, 425) or error.status >= 500:
        return Unavailable(text, **facts)

    if error.status in (401, 403):
        return AuthenticationFailed(f"{text} Check the API key and its permissions.", **facts)

    if _TOO_LONG.search(searched):
        return ContextTooLong(text, maximum=_stated_window(error.message), **facts)

    if _FILTERED.search(searched):
        return ContentRefused(text, **facts)

    return RequestRejected(text, **facts)


def _stated_window(message: str) -> int | None:
    for pattern in _MAXIMUM:
        if found := pattern.search(message):
            return int(found[1].replace(",", ""))

    return None


def may_retry(headers: Mapping[str, str]) -> bool:
    """Whether the service allows another attempt: `x-should-retry: false`, which the SDKs obey too, forbids it."""
    return headers.get("x-should-retry") != "false"


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that the service asks to wait, sent as a number or a date; None if there are none."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)

        if value is None:
            continue

        try:
            return max(0.0, float(value) * scale)
        except ValueError:
            pass  # not a number: may be a date

        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - now)
        except ValueError:
            continue

    return None
