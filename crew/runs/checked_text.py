"""The text that guardrails of input or output check."""

from __future__ import annotations

from crew.history.history import History
from crew.messages import Message, UserMessage
from crew.runs.steps import CheckOutput


def input_text(history: History, messages: tuple[Message, ...], item: str | None) -> str:
    """The text of an input: of its last message, if it is new; else the item of a fan-out, or the goal."""
    if not messages and item is not None:
        return item

    goal = messages[-1] if messages else next(one for one in history.messages if one.id == history.goal)
    return goal.text if isinstance(goal, UserMessage) else ""


def output_text(now: CheckOutput) -> str:
    """The reply as the model wrote it, or the joined output of a group."""
    return now.text if now.message is None else now.message.text
