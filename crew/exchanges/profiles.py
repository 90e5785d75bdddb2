"""What each provider, and each of its eras, insists on: rules as data."""

from __future__ import annotations

import re
from dataclasses import dataclass

from crew.errors import DefinitionError, nearest

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The rules of one provider and era, as data.

    `merges` asks the renderer to join neighbours of one role, for chat templates that insist on alternation.
    """

    name: str
    opens_with_user: bool = True
    ends_with_user: bool = True
    call_id_length: int = 64
    tool_name_length: int = 64
    merges: bool = False

    def takes_id(self, id: str) -> bool:
        """Whether a call may have this id."""
        return 0 < len(id) <= self.call_id_length and not _NOT_IN_A_NAME.search(id)

    def fit_name(self, name: str) -> str:
        """The tool name as this provider takes it."""
        return _NOT_IN_A_NAME.sub("_", name)[: self.tool_name_length] or "unnamed"


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(name="strictest", call_id_length=40),
        Profile(name="openai-chat", opens_with_user=False, ends_with_user=False, call_id_length=40),
        Profile(name="openai-responses", opens_with_user=False, ends_with_user=False),
        Profile(name="anthropic", tool_name_length=128),
        Profile(name="anthropic-classic", ends_with_user=False, tool_name_length=128),
        Profile(name="alternating", call_id_length=40, merges=True),
    )
}
STRICTEST = PROFILES["strictest"]


def profile_named(name: str) -> Profile:
    """The profile of this name."""
    if name not in PROFILES:
        raise DefinitionError("Profile", f"there is no profile {name!r}. {nearest(name, PROFILES)}")

    return PROFILES[name]
