"""The crew that agents and groups form: a graph, checked as a whole when it is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from crew.agents.agent import Agent, AgentTool, Parallel, name_of
from crew.agents.checks import problems_of
from crew.errors import DefinitionError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crew:
    """Agents and groups, and who begins (by default the first). Building one checks the whole graph."""

    name: str = field(kw_only=False)
    agents: Sequence[Agent]
    groups: Sequence[Parallel] = ()
    entry: Agent | Parallel | str | None = None

    def __post_init__(self) -> None:
        if problems := [*dict.fromkeys(problems_of(self.agents, self.groups, self.entry))]:
            raise DefinitionError(f"Crew {self.name!r}", problems)

    @property
    def entry_name(self) -> str:
        return name_of(self.entry) if self.entry is not None else self.agents[0].name

    @property
    def members(self) -> dict[str, Agent]:
        """Every agent by name, those that serve as tools included."""
        found = {agent.name: agent for agent in self.agents}
        waiting = list(self.agents)

        while waiting:
            for used in waiting.pop().tools:
                if isinstance(used, AgentTool) and used.agent.name not in found:
                    found[used.agent.name] = used.agent
                    waiting.append(used.agent)

        return found
