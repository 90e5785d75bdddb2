"""The message rules of providers: tool-call groups, provider profiles, validation and repair."""

from crew.message_rules.profiles import PROFILES, STRICTEST, Profile, get_profile
from crew.message_rules.repair import RepairResult, repair
from crew.message_rules.validate import group_spans, validate

__all__ = [
    "PROFILES",
    "Profile",
    "RepairResult",
    "STRICTEST",
    "get_profile",
    "group_spans",
    "repair",
    "validate",
]
