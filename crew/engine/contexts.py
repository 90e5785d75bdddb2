"""The context of a run for the functions of a crew that are not called as tools."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from crew.engine.run import ActiveRun
from crew.runs.state import RunState, total_usage
from crew.tools.context import Context
from crew.transitions.payloads import received_payload


def run_context(run: ActiveRun, state: RunState) -> Context[Any]:
    """The context of this run, or of a child of it, outside a call."""
    return Context(
        deps=run.deps,
        run_id=state.run_id,
        agent=state.agent,
        conversation_id=state.conversation_id,
        usage=total_usage(run.state),
        transcript=state.transcript.loaded(),
        metadata=deepcopy(state.metadata),
        consents=run.state.preparation.approved,
        load_payload=lambda: received_payload(run.plan, state),
    )
