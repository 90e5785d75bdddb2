"""Crews of LLM agents, with a history that is bounded, valid, cheap, whole and visible."""

from crew.agents import Agent, Crew, Parallel, Quorum, Route, handoff
from crew.errors import CrewError, RunError
from crew.executor import CrewExecutor
from crew.providers import ScriptedProvider, call
from crew.runs import Limits, RequestParameters, RunResult
from crew.tools import Context, tool
from crew.validation import InputValidator

__all__ = [
    "Agent",
    "Context",
    "Crew",
    "CrewError",
    "CrewExecutor",
    "InputValidator",
    "Limits",
    "Parallel",
    "Quorum",
    "RequestParameters",
    "Route",
    "RunError",
    "RunResult",
    "ScriptedProvider",
    "call",
    "handoff",
    "tool",
]
