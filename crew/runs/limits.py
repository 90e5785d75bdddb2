"""How far a run may go."""

from __future__ import annotations

from dataclasses import dataclass

from crew.errors import DefinitionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one run and everything that it starts; a round is one model call. None: no bound.

    A run that reaches one ends with `stop_reason="limit"` and everything done so far.
    """

    rounds: int | None = 200
    handoffs: int | None = 20
    tool_calls_per_turn: int = 16
    tokens: int | None = None
    cost_usd: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        problems = []

        for name in ("rounds", "handoffs", "tokens"):
            value = getattr(self, name)
            if value is not None and (not _whole(value) or value < 0):
                problems.append(f"{name} must be 0, a positive integer or None, not {value!r}")

        if not _whole(self.tool_calls_per_turn) or self.tool_calls_per_turn < 1:
            problems.append(f"tool_calls_per_turn must be a positive integer, not {self.tool_calls_per_turn!r}")

        for name in ("cost_usd", "seconds"):
            value = getattr(self, name)
            if value is not None and not (_number(value) and value >= 0):
                problems.append(f"{name} must be a number from 0 or None, not {value!r}")

        if problems:
            raise DefinitionError("Limits", problems)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
