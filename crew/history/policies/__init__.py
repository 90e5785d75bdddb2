"""The policies that decide what of a history stays: by name in configuration, as classes in Python; one file each."""

from crew.history.policies.named import POLICIES, policy_named
from crew.history.policies.rolling import Rolling
from crew.history.policies.unbounded import Unbounded

__all__ = ["POLICIES", "Rolling", "Unbounded", "policy_named"]
