"""What a request held and what changed since the one before it, as a value that rides on events and replies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Disposition = Literal["kept", "masked", "text_only", "marker", "summarised", "evicted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One message of a request, or one that left it: what became of it, by which rule, and its estimated tokens."""

    id: str
    disposition: Disposition
    reason: str = ""
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One request, told as the change since this agent's request before it.

    The first `same` messages are those of the request before; `lines` are the ones after them, in order, and `left`
    those that were shown then and are not now. `rule` says what moved the front, "" where it held still. `digest`
    names everything that was sent, `prefix` the part that is the same: where the front held still, it is the digest
    of the request before. `tokens` is estimated, of which `cached` should be read from the provider's prompt cache.
    """

    agent: str
    request: int
    model: str
    messages: int
    tokens: int
    counted: Literal["estimated", "calibrated", "exact"]
    fixed: int
    window: int
    window_source: str
    same: int
    rule: str
    digest: str
    prefix: str
    cached: int
    lines: tuple[Line, ...] = ()
    left: tuple[Line, ...] = ()
    repairs: tuple[str, ...] = ()
    billed: int | None = None
    billed_cached: int | None = None
