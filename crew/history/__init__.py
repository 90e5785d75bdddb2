"""What the model gets to see: a history that is pruned as it grows, and each agent's view of it. Pure, no I/O."""

from crew.history.history import History
from crew.history.policies import POLICIES, Rolling, Unbounded, policy_named
from crew.history.tokens import estimate, estimate_message
from crew.history.view import View, cross, present

__all__ = [
    "POLICIES",
    "History",
    "Rolling",
    "Unbounded",
    "View",
    "cross",
    "estimate",
    "estimate_message",
    "policy_named",
    "present",
]
