"""What the model gets to see: a history that is pruned as it grows, and each agent's view of it. Pure, no I/O."""

from crew.history.compression import spans
from crew.history.gauge import DEFAULT_WINDOW, Calibration, Gauge
from crew.history.history import History
from crew.history.legal import survey
from crew.history.policies import (
    POLICIES,
    Chain,
    Checkpoint,
    HeadTail,
    MaskToolResults,
    PolicySpec,
    Rolling,
    Summarize,
    Truncate,
    Unbounded,
    chain,
    policy_from,
    policy_named,
    staged,
)
from crew.history.summaries import compose, instruction
from crew.history.tokens import PRIOR, count_message, estimate, estimate_message, exact_counter
from crew.history.view import View, cross, present

__all__ = [
    "Calibration",
    "Chain",
    "Checkpoint",
    "DEFAULT_WINDOW",
    "Gauge",
    "HeadTail",
    "History",
    "MaskToolResults",
    "POLICIES",
    "PRIOR",
    "PolicySpec",
    "Rolling",
    "Summarize",
    "Truncate",
    "Unbounded",
    "View",
    "chain",
    "compose",
    "count_message",
    "cross",
    "estimate",
    "estimate_message",
    "exact_counter",
    "instruction",
    "policy_from",
    "policy_named",
    "present",
    "spans",
    "staged",
    "survey",
]
