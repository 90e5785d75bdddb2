"""How a crew runs: a loop that performs what is next, and a pure `advance` that says what comes after."""

from crew.execution.advance import advance, spent
from crew.execution.loop import drive
from crew.execution.plan import Plan, plan_for
from crew.execution.run import Run

__all__ = ["Plan", "Run", "advance", "drive", "plan_for", "spent"]
