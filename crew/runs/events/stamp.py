"""What every event says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What every event says: in which run, by which agent, as which one, when."""

    run_id: str = ""
    agent: str = ""
    sequence: int = 0
    at: float = 0.0
