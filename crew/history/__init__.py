"""What the model gets to see: a history that is pruned as it grows, and each agent's view of it. Pure, no I/O."""

from crew.history.gauge import DEFAULT_WINDOW, Calibration, Gauge
from crew.history.history import History
from crew.history.policies import POLICIES, MaskToolResults, Rolling, Truncate, Unbounded, policy_named, staged
from crew.history.tokens import PRIOR, count_message, estimate, estimate_message, exact_counter
from crew.history.view import View, cross, present

__all__ = [
    "Calibration",
    "DEFAULT_WINDOW",
    "Gauge",
    "History",
    "MaskToolResults",
    "POLICIES",
    "PRIOR",
    "Rolling",
    "Truncate",
    "Unbounded",
    "View",
    "count_message",
    "cross",
    "estimate",
    "estimate_message",
    "exact_counter",
    "policy_named",
    "present",
    "staged",
]
