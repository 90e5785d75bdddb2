"""`Approve` and `Refuse`: answers to a call that waits for an approval, as objects and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Approve:
    """Run the call. `arguments` are all of its arguments, in place of those that the model wrote; None keeps those.

    `by` names the person, for the events. As JSON: {"approve": {"arguments": {…}, "by": "…"}}, both optional.
    """

    arguments: Mapping[str, Any] | None = None
    by: str = ""

    def as_json(self) -> dict[str, Any]:
        given = {} if self.arguments is None else {"arguments": self.arguments}
        return {"approve": given | ({"by": self.by} if self.by else {})}


@dataclass(frozen=True, slots=True)
class Refuse:
    """Do not run the call; the model receives the reason.

    `by` names the person, for the events. As JSON: {"refuse": {"reason": "…", "by": "…"}}, both optional.
    """

    reason: str = ""
    by: str = ""

    def as_json(self) -> dict[str, Any]:
        return {"refuse": ({"reason": self.reason} if self.reason else {}) | ({"by": self.by} if self.by else {})}


def approval_part(answer: object, key: Literal["approve", "refuse"]) -> object:
    """The content of {"approve": …} or {"refuse": …}; None for any other answer."""
    return answer[key] if isinstance(answer, Mapping) and set(answer) == {key} else None


def is_approval(answer: object) -> bool:
    """Whether an answer approves: True, or {"approve": …}."""
    return answer is True or approval_part(answer, "approve") is not None


def refusal_reason(answer: object) -> str:
    """The reason of an answer that refuses; empty if it states none."""
    details = approval_part(answer, "refuse")
    reason = details.get("reason") if isinstance(details, Mapping) else answer
    return reason if isinstance(reason, str) else ""
