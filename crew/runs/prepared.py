"""What was resolved when an agent became active: its instructions, and the tools of its toolsets, by their hashes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from crew.interfaces import ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTool:
    """A tool of a toolset as it was listed: `digest` is the key of its spec in `Preparation.specs`."""

    name: str
    toolset: str
    digest: str
    effect: Literal["read", "write"] = "write"
    touches: str | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedAgent:
    """One agent for one activation.

    `head` identifies instructions and tools in its requests. `instructions` is the key of the text in
    `Preparation.texts`; empty if the text is a constant of the agent. `tools` are those of its toolsets.
    """

    head: str
    instructions: str = ""
    instructions_tokens: int = 0
    tools: tuple[PreparedTool, ...] = ()

    def tool(self, name: str) -> PreparedTool | None:
        """The tool of this name, if a toolset provides it."""
        return next((tool for tool in self.tools if tool.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingConsent:
    """A question that a toolset asks a person before it lists its tools; `key` identifies the consent."""

    pause_id: str
    toolset: str
    key: str
    question: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What the prepared agents of a whole run refer to; only the state of the root run has it.

    texts     instructions, by their hashes.
    specs     specs of tools, by their hashes.
    toolsets  the tools of each toolset as they were listed first: the list is frozen for the run.
    consents  the answers to the consents that toolsets asked for, by their keys.
    """

    texts: dict[str, str] = field(default_factory=dict)
    specs: dict[str, ToolSpec] = field(default_factory=dict)
    toolsets: dict[str, tuple[PreparedTool, ...]] = field(default_factory=dict)
    consents: dict[str, bool] = field(default_factory=dict)

    @property
    def approved(self) -> frozenset[str]:
        """The keys of the consents that a person gave."""
        return frozenset(key for key, given in self.consents.items() if given)
