"""Crews of LLM agents, with a history that is bounded, valid, cheap, whole and visible."""

from crew.agents import Agent, Crew, Parallel, Quorum, Route, handoff
from crew.doors import (
    Chunked,
    FromTimestamp,
    LastNMessages,
    WholeHistory,
    WholeHistoryMultipleSystemMessages,
)
from crew.errors import CrewError, RunError
from crew.executor import CrewExecutor
from crew.providers import ScriptedProvider, call
from crew.runs import Limits, RequestParameters, RunResult
from crew.simulator import simulate
from crew.tools import Context, recall, tool
from crew.validation import InputValidator

__all__ = [
    "Agent",
    "Chunked",
    "Context",
    "Crew",
    "CrewError",
    "CrewExecutor",
    "FromTimestamp",
    "InputValidator",
    "LastNMessages",
    "Limits",
    "Parallel",
    "Quorum",
    "RequestParameters",
    "Route",
    "RunError",
    "RunResult",
    "ScriptedProvider",
    "WholeHistory",
    "WholeHistoryMultipleSystemMessages",
    "call",
    "handoff",
    "recall",
    "simulate",
    "tool",
]
