"""History policies: which messages stay in a history or in a view."""

from crew.history.policies.chain import Chain, chain, split_stages
from crew.history.policies.head_tail import HeadTail
from crew.history.policies.lookup import POLICIES, PolicySpec, create_policy, resolve_policy
from crew.history.policies.rolling import Rolling, Unbounded
from crew.history.policies.summarizing import Checkpoint, Summarize
from crew.history.policies.view_policies import MaskToolResults, Truncate
from crew.interfaces import Summarizer

__all__ = [
    "Chain",
    "Checkpoint",
    "HeadTail",
    "MaskToolResults",
    "POLICIES",
    "PolicySpec",
    "Rolling",
    "Summarize",
    "Summarizer",
    "Truncate",
    "Unbounded",
    "chain",
    "create_policy",
    "resolve_policy",
    "split_stages",
]
