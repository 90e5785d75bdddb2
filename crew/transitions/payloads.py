"""The payload of a handoff, as the agent that received it reads it."""

from __future__ import annotations

from pydantic import BaseModel

from crew.agents.handoff_tools import parse_payload
from crew.runs.state import RunState
from crew.tools.schema import InvalidArguments
from crew.transitions.plan import Plan


def received_payload(plan: Plan, state: RunState) -> BaseModel | None:
    """The payload of the last handoff to the current agent; None if it had none.

    Raises ValueError if the crew changed, so that the stored payload does not match its class any more.
    """
    stored = state.payloads.get(state.agent)
    toolkit = None if stored is None else plan.toolkits.get(stored.sender)
    handoff = None if stored is None or toolkit is None else toolkit.handoffs.get(stored.tool)

    if stored is None or handoff is None:
        return None

    try:
        return parse_payload(handoff.payload, stored.arguments)
    except InvalidArguments as error:
        name = handoff.payload.__name__ if handoff.payload is not None else ""
        text = f"The payload that {stored.sender} passed to {state.agent} does not match {name}"
        raise ValueError(f"{text}: {error.problems}") from error
