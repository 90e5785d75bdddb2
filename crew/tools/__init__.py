"""Tools: functions that models can call, their schemas, and the context that they receive."""

from crew.tools.context import Context
from crew.tools.recall import recall
from crew.tools.schema import InvalidArguments
from crew.tools.tool import Approval, Tool, to_text, tool, truncate_middle

__all__ = [
    "Approval",
    "Context",
    "InvalidArguments",
    "Tool",
    "recall",
    "to_text",
    "tool",
    "truncate_middle",
]
