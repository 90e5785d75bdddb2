"""A responder's reply, independent of the protocol."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tests.wire.tokens import count

Finish = Literal["stop", "length", "content_filter", "refusal"]
Arguments = dict[str, Any] | str
CallSpec = tuple[str, Arguments] | tuple[str, Arguments, str]


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply: text, calls `(name, arguments)` or `(name, arguments, id)`, thinking, and the finish reason.

    Arguments may be raw text, which need not be JSON. `nothing` is a reply without choices, output or content.
    """

    text: str = ""
    calls: Sequence[CallSpec] = ()
    thinking: str | Sequence[str] | None = None
    finish: Finish | None = None
    nothing: bool = False

    @property
    def thoughts(self) -> list[str]:
        """The thinking blocks."""
        if self.thinking is None:
            return []
        return [self.thinking] if isinstance(self.thinking, str) else list(self.thinking)

    def tokens(self) -> tuple[int, int]:
        """Return the output tokens, and how many of them are reasoning."""
        reasoning = sum(count(thought) for thought in self.thoughts)
        visible = count(self.text) + sum(count(call[0]) + count(raw(call)) + 8 for call in self.calls)
        return visible + reasoning + 1, reasoning


def raw(call: CallSpec) -> str:
    """Return the arguments as JSON text, or as given if they are text."""
    return call[1] if isinstance(call[1], str) else json.dumps(call[1], ensure_ascii=False)


def named(call: CallSpec, default: str) -> str:
    """Return the call's id, or the default if the reply gave none."""
    return call[2] if len(call) == 3 else default
