"""What an agent may do: functions that became tools, their schemas, and what they are handed."""

from crew.tools.context import Context
from crew.tools.recall import recall
from crew.tools.schema import ArgumentsRefused
from crew.tools.text import cut, to_text
from crew.tools.tool import Approval, Tool, tool

__all__ = ["Approval", "ArgumentsRefused", "Context", "Tool", "cut", "recall", "to_text", "tool"]
