"""What each provider, and each of its eras, insists on: rules as data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
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
    must_open_with_user: bool = True
    must_end_with_user: bool = True
    max_call_id_length: int = 64
    max_tool_name_length: int = 64
    merges_same_role: bool = False
    known_settings: frozenset[str] = frozenset()
    output_limit_field: str = ""
    system_role: Literal["anywhere", "after_user", "nowhere"] = "anywhere"
    thinking: Literal["none", "effort", "budget", "adaptive"] = "none"

    def accepts_call_id(self, id: str) -> bool:
        """Whether a call may have this id."""
        return 0 < len(id) <= self.max_call_id_length and not _INVALID_NAME_CHARACTER.search(id)

    def fit_tool_name(self, name: str) -> str:
        """The tool name as this provider takes it."""
        return _INVALID_NAME_CHARACTER.sub("_", name)[: self.max_tool_name_length] or "unnamed"


_SHARED = frozenset({"max_output_tokens", "tool_choice", "parallel_tool_calls"})
_CHAT = _SHARED | {"stop", "seed"}
_CLAUDE = _SHARED | {"stop"}

PROFILES = {
    profile.name: profile
    for profile in (
        Profile(name="strictest", max_call_id_length=40),
        Profile(
            name="openai-chat",
            must_open_with_user=False,
            must_end_with_user=False,
            max_call_id_length=40,
            known_settings=_CHAT | {"reasoning"},
            output_limit_field="max_completion_tokens",
            thinking="effort",
        ),
        Profile(
            name="openai-chat-classic",
            must_open_with_user=False,
            must_end_with_user=False,
            max_call_id_length=40,
            known_settings=_CHAT | {"temperature"},
            output_limit_field="max_completion_tokens",
        ),
        Profile(
            name="openai-responses",
            must_open_with_user=False,
            must_end_with_user=False,
            known_settings=_SHARED | {"reasoning"},
            output_limit_field="max_output_tokens",
            thinking="effort",
        ),
        Profile(
            name="openai-responses-classic",
            must_open_with_user=False,
            must_end_with_user=False,
            known_settings=_SHARED | {"temperature"},
            output_limit_field="max_output_tokens",
        ),
        Profile(
            name="anthropic",
            max_tool_name_length=128,
            known_settings=_CLAUDE | {"reasoning"},
            output_limit_field="max_tokens",
            system_role="after_user",
            thinking="adaptive",
        ),
        # Between the eras: thinking is adaptive already, a system role in the messages is still refused.
        Profile(
            name="anthropic-4.7",
            max_tool_name_length=128,
            known_settings=_CLAUDE | {"reasoning"},
            output_limit_field="max_tokens",
            system_role="nowhere",
            thinking="adaptive",
        ),
        Profile(
            name="anthropic-classic",
            must_end_with_user=False,
            max_tool_name_length=128,
            known_settings=_CLAUDE | {"temperature", "thinking_tokens"},
            output_limit_field="max_tokens",
            system_role="nowhere",
            thinking="budget",
        ),
        # Servers that speak Chat Completions for models of any kind: they take all of it, under its older names.
        Profile(
            name="compatible",
            max_call_id_length=40,
            known_settings=_CHAT | {"temperature", "reasoning"},
            output_limit_field="max_tokens",
            thinking="effort",
        ),
        Profile(
            name="alternating",
            max_call_id_length=40,
            merges_same_role=True,
            known_settings=_CHAT | {"temperature", "reasoning"},
            output_limit_field="max_tokens",
            system_role="nowhere",
            thinking="effort",
        ),
    )
}
STRICTEST = PROFILES["strictest"]


@cache
def get_profile(name: str) -> Profile:
    """The profile of this name."""
    if name not in PROFILES:
        raise DefinitionError("Profile", f"there is no profile {name!r}. {suggest(name, PROFILES)}")

    return PROFILES[name]
