"""The policies that decide what of a history stays: by name in configuration, as classes in Python; one file each."""

from crew.history.policies.chain import Chain, chain
from crew.history.policies.checkpoint import Checkpoint
from crew.history.policies.head_tail import HeadTail
from crew.history.policies.masking import MaskToolResults
from crew.history.policies.named import POLICIES, PolicySpec, policy_from, policy_named
from crew.history.policies.rolling import Rolling
from crew.history.policies.stages import staged
from crew.history.policies.summarize import Summarize
from crew.history.policies.truncate import Truncate
from crew.history.policies.unbounded import Unbounded
from crew.history.policies.verdict import Summarizer

__all__ = [
    "POLICIES",
    "Chain",
    "Checkpoint",
    "HeadTail",
    "MaskToolResults",
    "PolicySpec",
    "Rolling",
    "Summarize",
    "Summarizer",
    "Truncate",
    "Unbounded",
    "chain",
    "policy_from",
    "policy_named",
    "staged",
]
