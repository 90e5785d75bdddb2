"""What the model gets to see: a history that is pruned as it grows, and each agent's view of it. Pure, no I/O."""

from crew.history.compression import spans
from crew.history.history import History
from crew.history.legal import survey
from crew.history.policies import (
    POLICIES,
    Chain,
    Checkpoint,
    HeadTail,
    PolicySpec,
    Rolling,
    Summarize,
    Unbounded,
    chain,
    of_stage,
    policy_from,
    policy_named,
)
from crew.history.summaries import compose, instruction
from crew.history.tokens import estimate, estimate_message
from crew.history.view import View, cross, present

__all__ = [
    "Chain",
    "Checkpoint",
    "HeadTail",
    "History",
    "PolicySpec",
    "POLICIES",
    "Rolling",
    "Summarize",
    "Unbounded",
    "View",
    "chain",
    "compose",
    "cross",
    "estimate",
    "estimate_message",
    "instruction",
    "of_stage",
    "policy_from",
    "policy_named",
    "present",
    "spans",
    "survey",
]
