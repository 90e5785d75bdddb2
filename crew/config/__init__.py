"""Configuration: the only room that reads YAML and the environment."""

from crew.config.crews import crew_from
from crew.config.options import options_from
from crew.config.settings import Settings
from crew.config.source import load

__all__ = ["Settings", "crew_from", "load", "options_from"]
