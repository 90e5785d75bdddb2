"""What stays the same in every step of every run: the crew's graph, what each agent may call, and the bound."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from crew.agents import Agent, AgentTool, Crew, Handoff, Parallel, handoffs_of
from crew.doors import Budget, OutputSpec, Policy, ToolSpec
from crew.execution.tidy import tidied
from crew.history import estimate, policy_from
from crew.history.policies.stages import members
from crew.tools import Tool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Toolkit:
    """What one agent may call, by name, and how its model is told of it; computed once."""

    tools: Mapping[str, Tool]
    agents: Mapping[str, AgentTool]
    handoffs: Mapping[str, Handoff]
    specs: tuple[ToolSpec, ...]
    output: OutputSpec | None
    tokens: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.specs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """A crew made ready to run under one history policy."""

    crew: Crew
    agents: Mapping[str, Agent]
    groups: Mapping[str, Parallel]
    toolkits: Mapping[str, Toolkit]
    policy: Policy
    budget: Budget
    views: Mapping[str, tuple[Policy, ...]] = field(default_factory=dict)
    sanitize_output: bool = False

    def output_of(self, agent: str, text: str) -> str:
        """What counts of an agent's answer: all of it, unless it is to be tidied."""
        own = self.agents[agent].sanitize_output if agent in self.agents else None
        return tidied(text) if (self.sanitize_output if own is None else own) else text

    @property
    def summarizes(self) -> bool:
        """Whether the policy makes summaries, for each of which the history holds room."""
        return bool(getattr(self.policy, "summarizes", False))


def plan_for(
    crew: Crew, policy: Policy, budget: Budget, everywhere: tuple[Policy, ...] = (), *, sanitize_output: bool = False
) -> Plan:
    """Compile a crew; the policies `everywhere` shape each agent's view, before the agent's own does."""
    groups = {group.name: group for group in crew.groups}
    agents = crew.members
    toolkits = {name: _toolkit(agent, agents, groups) for name, agent in agents.items()}
    views = {name: (*everywhere, *_own(agent)) for name, agent in agents.items()}
    touches = {t.name: t.touches for kit in toolkits.values() for t in kit.tools.values() if t.touches is not None}
    budget = replace(budget, touches=touches)
    return Plan(
        crew=crew,
        agents=agents,
        groups=groups,
        toolkits=toolkits,
        policy=policy,
        budget=budget,
        views=views,
        sanitize_output=sanitize_output,
    )


def _own(agent: Agent) -> tuple[Policy, ...]:
    return () if agent.history is None else tuple(members(policy_from(agent.history)))


def _toolkit(agent: Agent, agents: Mapping[str, Agent], groups: Mapping[str, Parallel]) -> Toolkit:
    tools = {used.name: used for used in agent.tools if isinstance(used, Tool)}
    callable_agents = {used.name: used for used in agent.tools if isinstance(used, AgentTool)}
    handoffs = {handoff.tool_name: handoff for handoff in handoffs_of(agent)}
    specs = (
        *(used.spec for used in agent.tools if isinstance(used, Tool | AgentTool)),
        *(_transfer(handoff, agents, groups) for handoff in handoffs.values()),
    )
    tokens = estimate(agent.instructions) + sum(
        estimate(f"{spec.name} {spec.description} {json.dumps(dict(spec.parameters))}") + 8 for spec in specs
    )
    output = OutputSpec(name=agent.output.__name__, schema=agent.output.model_json_schema()) if agent.output else None
    return Toolkit(tools=tools, agents=callable_agents, handoffs=handoffs, specs=specs, output=output, tokens=tokens)


def _transfer(handoff: Handoff, agents: Mapping[str, Agent], groups: Mapping[str, Parallel]) -> ToolSpec:
    if handoff.target in groups:
        purpose = f"The agents {', '.join(groups[handoff.target].branch_names)}, at the same time."
    else:
        purpose = agents[handoff.target].purpose

    empty = {"type": "object", "properties": {}, "additionalProperties": False}
    parameters = handoff.payload.model_json_schema() if handoff.payload else empty
    return ToolSpec(
        name=handoff.tool_name, description=f"Hand the work to {handoff.target}. {purpose}", parameters=parameters
    )
