"""Who works, and where the work may go: agents, handoffs, routes, parallel groups, and the crew."""

from crew.agents.agent import (
    Agent,
    AgentTool,
    Handoff,
    HandoffFilter,
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
    "OnError",
    "Parallel",
    "Quorum",
    "Route",
    "agent_handoffs",
    "handoff",
    "node_name",
]
