"""What each provider, and each of its eras, insists on: rules as data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from crew.errors import DefinitionError, suggest

_INVALID_NAME_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The rules of one provider and era, as data.

    `merges` asks the renderer to join neighbours of one role, for chat templates that insist on alternation.
    `settings` are the model settings that this era knows, `output_limit` is the name it has for the most tokens of a
    reply, `system_role` where a system message may stand, `thinking` how thinking is switched on.
    """

    name: str
    opens_with_user: bool = True
    ends_with_user: bool = True
    call_id_length: int = 64
    tool_name_length: int = 64
    merges: bool = False
    settings: frozenset[str] = frozenset()
    output_limit: str = ""
    system_role: Literal["anywhere", "after_user", "nowhere"] = "anywhere"
    thinking: Literal["none", "effort", "budget", "adaptive"] = "none"

    def takes_id(self, id: str) -> bool:
        """Whether a call may have this id."""
        return 0 < len(id) <= self.call_id_length and not _INVALID_NAME_CHARACTER.search(id)

    def fit_name(self, name: str) -> str:
        """The tool name as this provider takes it."""
        return _INVALID_NAME_CHARACTER.sub("_", name)[: self.tool_name_length] or "unnamed"


_SHARED = frozenset({"max_output_tokens", "tool_choice", "parallel_tool_calls"})
_CHAT = _SHARED | {"stop", "seed"}
_CLAUDE = _SHARED | {"stop"}

PROFILES = {
    profile.name: profile
    for profile in (
        Profile(name="strictest", call_id_length=40),
        Profile(
            name="openai-chat",
            opens_with_user=False,
            ends_with_user=False,
            call_id_length=40,
            settings=_CHAT | {"reasoning"},
            output_limit="max_completion_tokens",
            thinking="effort",
        ),
        Profile(
            name="openai-chat-classic",
            opens_with_user=False,
            ends_with_user=False,
            call_id_length=40,
            settings=_CHAT | {"temperature"},
            output_limit="max_completion_tokens",
        ),
        Profile(
            name="openai-responses",
            opens_with_user=False,
            ends_with_user=False,
            settings=_SHARED | {"reasoning"},
            output_limit="max_output_tokens",
            thinking="effort",
        ),
        Profile(
            name="openai-responses-classic",
            opens_with_user=False,
            ends_with_user=False,
            settings=_SHARED | {"temperature"},
            output_limit="max_output_tokens",
        ),
        Profile(
            name="anthropic",
            tool_name_length=128,
            settings=_CLAUDE | {"reasoning"},
            output_limit="max_tokens",
            system_role="after_user",
            thinking="adaptive",
        ),
        # Between the eras: thinking is adaptive already, a system role in the messages is still refused.
        Profile(
            name="anthropic-4.7",
            tool_name_length=128,
            settings=_CLAUDE | {"reasoning"},
            output_limit="max_tokens",
            system_role="nowhere",
            thinking="adaptive",
        ),
        Profile(
            name="anthropic-classic",
            ends_with_user=False,
            tool_name_length=128,
            settings=_CLAUDE | {"temperature", "thinking_tokens"},
            output_limit="max_tokens",
            system_role="nowhere",
            thinking="budget",
        ),
        # Servers that speak Chat Completions for models of any kind: they take all of it, under its older names.
        Profile(
            name="compatible",
            call_id_length=40,
            settings=_CHAT | {"temperature", "reasoning"},
            output_limit="max_tokens",
            thinking="effort",
        ),
        Profile(
            name="alternating",
            call_id_length=40,
            merges=True,
            settings=_CHAT | {"temperature", "reasoning"},
            output_limit="max_tokens",
            system_role="nowhere",
            thinking="effort",
        ),
    )
}
STRICTEST = PROFILES["strictest"]


def get_profile(name: str) -> Profile:
    """The profile of this name."""
    if name not in PROFILES:
        raise DefinitionError("Profile", f"there is no profile {name!r}. {suggest(name, PROFILES)}")

    return PROFILES[name]
