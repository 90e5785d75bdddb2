"""Tools: functions that models can call, their schemas, and the context that they receive."""

from typing import TYPE_CHECKING

from crew.lazy_names import lazy_names
from crew.tools.context import Context
from crew.tools.questions import UserAnswer
from crew.tools.schema import InvalidArguments
from crew.tools.tool import Approval, Tool, to_text, tool, truncate_middle
from crew.tools.tool_exceptions import EffectUnknown, StopRun, ToolRetry
from crew.tools.toolset import (
    ConsentRequired,
    FilteredToolset,
    Toolset,
    ToolsetWithLifetime,
    ToolsetWithTimeout,
    toolset,
)

if TYPE_CHECKING:
    from crew.tools.recall_tool import recall
else:
    __getattr__, __dir__ = lazy_names(__name__, {"crew.tools.recall_tool": "recall"})

__all__ = [
    "Approval",
    "ConsentRequired",
    "Context",
    "EffectUnknown",
    "FilteredToolset",
    "InvalidArguments",
    "StopRun",
    "Tool",
    "ToolRetry",
    "UserAnswer",
    "Toolset",
    "ToolsetWithLifetime",
    "ToolsetWithTimeout",
    "recall",
    "to_text",
    "tool",
    "toolset",
    "truncate_middle",
]
