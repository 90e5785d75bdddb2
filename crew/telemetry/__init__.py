"""Who is watching: OpenTelemetry spans and metrics, structured logs, secrets kept out of them; nothing until asked."""

from crew.telemetry.figures import Figure
from crew.telemetry.secrets import register_secret
from crew.telemetry.setup import configure, current, reset, telemetry_from
from crew.telemetry.telemetry import Lookout, Telemetry
from crew.telemetry.tree import Tree

__all__ = [
    "Figure",
    "Lookout",
    "Telemetry",
    "Tree",
    "configure",
    "current",
    "register_secret",
    "reset",
    "telemetry_from",
]
