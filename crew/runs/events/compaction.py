"""What becomes of summaries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from crew.messages import Usage
from crew.runs.events.stamp import Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarised(Stamp):
    """A summariser answered for these messages; or did not, and `error` says why."""

    covers: tuple[str, ...]
    text: str = ""
    error: str = ""
    usage: Usage
    provider: str = ""
    model: str = ""
    kind: Literal["summarised"] = "summarised"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted(Stamp):
    """A summary stands in the history for the messages that it covers; `cause` is the policy or the strategy."""

    cause: str
    summary: str
    covers: tuple[str, ...]
    tokens_before: int
    tokens_after: int
    size: int
    limit: int | None
    kind: Literal["compacted"] = "compacted"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionFailed(Stamp):
    """A summary came to nothing; `waiting` messages are carried over to the next attempt."""

    cause: str
    reason: str
    waiting: int
    kind: Literal["compaction_failed"] = "compaction_failed"
