"""Who answers: models behind the official SDKs, and scripts."""

from crew.providers.pool import Pool
from crew.providers.scripted import ScriptedProvider, call

__all__ = ["Pool", "ScriptedProvider", "call"]
