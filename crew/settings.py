"""Addresses that something is sent to: what one must look like, in the same words wherever it was written."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

URL_HINT = "must be an address such as http://127.0.0.1:4318"


def is_http_url(given: Any) -> bool:
    """Whether it names a server that speaks HTTP."""
    if not isinstance(given, str):
        return False

    try:
        parts = urlsplit(given)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number, brackets that don't close
        return False
