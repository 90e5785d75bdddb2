"""Agents, handoffs, routes, parallel groups, and the crew that they form."""

from crew.agents.agent import (
    Agent,
    AgentTool,
    Handoff,
    HandoffFilter,
    HandoffMode,
    Instructions,
    OnError,
    Parallel,
    Quorum,
    Route,
    agent_handoffs,
    handoff,
    node_name,
)
from crew.agents.choice import Choice, NodeResult, choose
from crew.agents.crew import Crew
from crew.agents.guardrail import GuardedCall, Guardrail, NeedsApproval, Refused, Rewritten, guardrail

__all__ = [
    "Agent",
    "AgentTool",
    "Choice",
    "Crew",
    "GuardedCall",
    "Guardrail",
    "Handoff",
    "HandoffFilter",
    "HandoffMode",
    "Instructions",
    "NeedsApproval",
    "NodeResult",
    "OnError",
    "Parallel",
    "Quorum",
    "Refused",
    "Rewritten",
    "Route",
    "agent_handoffs",
    "choose",
    "guardrail",
    "handoff",
    "node_name",
]
