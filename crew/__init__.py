"""Crews of LLM agents, with a history that is bounded, valid, cheap, whole and visible."""

from typing import TYPE_CHECKING

from crew.lazy_names import lazy_names

if TYPE_CHECKING:
    from crew.agents.agent import Agent, Parallel, Quorum, Route, handoff
    from crew.agents.choice import NodeResult, choose
    from crew.agents.crew import Crew
    from crew.agents.guardrail import GuardedCall, NeedsApproval, Refused, Rewritten, guardrail
    from crew.engine.stream import EventStream
    from crew.errors import CrewError, RunError
    from crew.executor import CrewExecutor
    from crew.interfaces import Chunked, FromTimestamp, LastNMessages, WholeHistory, WholeHistoryMultipleSystemMessages
    from crew.model_settings import ModelSettings
    from crew.providers.scripted import ScriptedProvider, call
    from crew.runs.answers import Approve, Refuse
    from crew.runs.interfaces import RunInfo
    from crew.runs.parameters import Limits, RequestParameters
    from crew.runs.result import RunResult
    from crew.simulator.simulate import simulate
    from crew.tools.context import Context
    from crew.tools.recall_tool import recall
    from crew.tools.tool import tool
    from crew.tools.tool_exceptions import StopRun, ToolRetry
    from crew.tools.toolset import toolset
    from crew.validation.validator import InputValidator
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "crew.agents.agent": "Agent Parallel Quorum Route handoff",
            "crew.agents.choice": "NodeResult choose",
            "crew.agents.crew": "Crew",
            "crew.agents.guardrail": "GuardedCall NeedsApproval Refused Rewritten guardrail",
            "crew.engine.stream": "EventStream",
            "crew.errors": "CrewError RunError",
            "crew.executor": "CrewExecutor",
            "crew.interfaces": "Chunked FromTimestamp LastNMessages WholeHistory WholeHistoryMultipleSystemMessages",
            "crew.model_settings": "ModelSettings",
            "crew.providers.scripted": "ScriptedProvider call",
            "crew.runs.answers": "Approve Refuse",
            "crew.runs.interfaces": "RunInfo",
            "crew.runs.parameters": "Limits RequestParameters",
            "crew.runs.result": "RunResult",
            "crew.simulator.simulate": "simulate",
            "crew.tools.context": "Context",
            "crew.tools.recall_tool": "recall",
            "crew.tools.tool_exceptions": "StopRun ToolRetry",
            "crew.tools.tool": "tool",
            "crew.tools.toolset": "toolset",
            "crew.validation.validator": "InputValidator",
        },
    )

__all__ = [
    "Agent",
    "Approve",
    "Chunked",
    "Context",
    "Crew",
    "CrewError",
    "CrewExecutor",
    "EventStream",
    "FromTimestamp",
    "GuardedCall",
    "InputValidator",
    "LastNMessages",
    "Limits",
    "ModelSettings",
    "NeedsApproval",
    "NodeResult",
    "Parallel",
    "Quorum",
    "Refuse",
    "Refused",
    "RequestParameters",
    "Rewritten",
    "Route",
    "RunError",
    "RunInfo",
    "RunResult",
    "ScriptedProvider",
    "StopRun",
    "ToolRetry",
    "WholeHistory",
    "WholeHistoryMultipleSystemMessages",
    "call",
    "choose",
    "guardrail",
    "handoff",
    "recall",
    "simulate",
    "tool",
    "toolset",
]
