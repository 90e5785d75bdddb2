"""Agents, handoffs, routes, parallel groups, and the crew that they form."""

from crew.agents.agent import (
    Agent,
    AgentTool,
    Handoff,
    HandoffFilter,
    HandoffMode,
    OnError,
    Parallel,
    Quorum,
    Route,
    agent_handoffs,
    handoff,
    node_name,
)
from crew.agents.crew import Crew

__all__ = [
    "Agent",
    "AgentTool",
    "Crew",
    "Handoff",
    "HandoffFilter",
    "HandoffMode",
    "OnError",
    "Parallel",
    "Quorum",
    "Route",
    "agent_handoffs",
    "handoff",
    "node_name",
]
