"""What belongs together in a conversation, which rules each provider enforces, and how a broken history is mended."""

from crew.exchanges.groups import group
from crew.exchanges.profiles import PROFILES, STRICTEST, Profile, profile_named
from crew.exchanges.repair import Repaired, repair
from crew.exchanges.rules import validate

__all__ = ["PROFILES", "STRICTEST", "Profile", "Repaired", "group", "profile_named", "repair", "validate"]
