"""The instructions and tools of a request for the inspector, as the run recorded them or as the crew has them. Pure."""

from __future__ import annotations

from typing import Any, Literal

from crew.runs.interfaces import RunRecord
from crew.server.inspector_data import RunView
from crew.transitions.fingerprint import has_same_instructions
from crew.transitions.plan import Plan, overhead_parts

Origin = Literal["recorded", "crew", "changed", "unknown"]
"""Where the text of instructions comes from.

recorded  a function wrote it, and the run has it.
crew      it is a constant of the agent, which is the same in the crew of this service.
changed   it is a constant of the agent, and was another one when the run started.
unknown   it is a constant of the agent, and this service does not have the crew.
"""


def describe_head(record: RunRecord, view: RunView, plan: Plan | None, agent: str, head: str) -> dict[str, Any]:
    """The instructions of a request, and the tokens of each part before its messages, as they were estimated."""
    toolkit = None if plan is None else plan.toolkits.get(agent)
    parts = [] if toolkit is None else overhead_parts(toolkit)
    prepared = view.prepared(head) or record.state.prepared.get(agent)
    origin: Origin = "unknown"
    text = None

    if prepared is not None and prepared.instructions:
        digest = prepared.instructions
        stored = record.state.preparation.texts.get(digest)
        text, origin = view.text(digest) if stored is None else stored, "recorded"
        parts = [("instructions", prepared.instructions_tokens), *parts[1:]]
    elif plan is not None and toolkit is not None:
        before, now = record.state.fingerprint.get(agent, ""), plan.fingerprint.get(agent, "")
        text, origin = toolkit.instructions, "crew" if has_same_instructions(before, now) else "changed"

    if prepared is not None:
        parts = [*parts, *((f"tool {tool.name}", tool.tokens) for tool in prepared.tools)]

    return {"text": text, "origin": origin, "parts": [[name, tokens] for name, tokens in parts if tokens]}
