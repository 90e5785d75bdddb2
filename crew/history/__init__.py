"""The history that agents share, each agent's view of it, and the policies that prune them. Pure: no I/O."""

from crew.history.compression import spans_to_compress
from crew.history.eviction import group_entries
from crew.history.handoff_filters import apply_handoff
from crew.history.history import History
from crew.history.policies.chain import Chain, chain, split_stages
from crew.history.policies.head_tail import HeadTail
from crew.history.policies.lookup import POLICIES, PolicySpec, create_policy, resolve_policy
from crew.history.policies.rolling import Rolling, Unbounded
from crew.history.policies.summarizing import Checkpoint, Summarize
from crew.history.policies.view_policies import MaskToolResults, Truncate
from crew.history.summaries import complete_summary, summary_instruction
from crew.history.token_budget import DEFAULT_WINDOW, Calibration, TokenBudget
from crew.history.tokens import ESTIMATOR, count_message_tokens, estimate_message_tokens, estimate_tokens, exact_counter
from crew.history.view import RequestView, View

__all__ = [
    "Calibration",
    "Chain",
    "Checkpoint",
    "DEFAULT_WINDOW",
    "ESTIMATOR",
    "HeadTail",
    "History",
    "MaskToolResults",
    "POLICIES",
    "PolicySpec",
    "RequestView",
    "Rolling",
    "Summarize",
    "TokenBudget",
    "Truncate",
    "Unbounded",
    "View",
    "apply_handoff",
    "chain",
    "complete_summary",
    "count_message_tokens",
    "create_policy",
    "estimate_message_tokens",
    "estimate_tokens",
    "exact_counter",
    "group_entries",
    "resolve_policy",
    "spans_to_compress",
    "split_stages",
    "summary_instruction",
]
