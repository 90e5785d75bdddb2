"""The policies that decide what of a history stays: by name in configuration, as classes in Python; one file each."""

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
