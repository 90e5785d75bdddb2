"""Spans of summaries: what was asked of a model for one, and what it came to."""

from __future__ import annotations

from crew.runs.events import Compacted, CompactionFailed, Summarised
from crew.telemetry import names
from crew.telemetry.attributes import of_bill
from crew.telemetry.nodes import Node, Open, Pen
from crew.telemetry.redaction import safe


def summarised(pen: Pen, event: Summarised, node: Node) -> None:
    """A summariser answered; it has been at work since whatever happened in this run before."""
    if node.compact is None:
        told = {names.AGENT_NAME: event.agent, names.RUN_ID: event.run_id}
        span = pen.start(names.COMPACT, node.before, told, parent=node.innermost)
        node.compact = Open(span=span, began=node.before)

    if event.model or event.usage.requests:
        billed = {
            names.OPERATION: names.CHAT,
            names.REQUEST_MODEL: safe(event.model),
            names.AGENT_NAME: event.agent,
            names.RUN_ID: event.run_id,
            **of_bill(event.usage),
        }
        name = f"{names.CHAT} {safe(event.model)}"
        span = pen.start(name, node.before, billed, parent=node.compact.span, client=True)

        if event.error:
            pen.fail(span, "summary_refused", safe(event.error))

        pen.end(span, event.at)
    elif event.error:
        pen.fail(node.compact.span, "summary_refused", safe(event.error))


def compacted(pen: Pen, event: Compacted, node: Node) -> None:
    """A summary stands in the history."""
    if node.compact is not None:
        node.compact.span.set_attributes(
            {
                names.CAUSE: safe(event.cause),
                names.COVERS: len(event.covers),
                names.TOKENS_BEFORE: event.tokens_before,
                names.TOKENS_AFTER: event.tokens_after,
                names.AFTER: event.size,
            }
        )
        _end(pen, node, event.at)


def compaction_failed(pen: Pen, event: CompactionFailed, node: Node) -> None:
    """It came to nothing; the run goes on without it."""
    if node.compact is not None:
        node.compact.span.set_attribute(names.CAUSE, safe(event.cause))
        pen.fail(node.compact.span, "compaction_failed", safe(event.reason))
        _end(pen, node, event.at)


def _end(pen: Pen, node: Node, at: float) -> None:
    if node.compact is not None:
        pen.end(node.compact.span, at)
        node.compact = None
