"""Spans of summaries: what was asked of a model for one, and what it came to."""

from __future__ import annotations

from crew.doors import ModelRequest
from crew.messages import AssistantMessage
from crew.runs.events import Compacted, CompactionFailed, Summarised
from crew.telemetry import names
from crew.telemetry.attributes import of_bill
from crew.telemetry.content import reply_json
from crew.telemetry.nodes import Node, Open, Pen
from crew.telemetry.redaction import safe


def asked(pen: Pen, request: ModelRequest, node: Node, at: float) -> Open:
    """A model is asked for a summary."""
    told = {names.CONVERSATION_ID: request.conversation_id, names.MESSAGES: len(request.messages)}
    return _asked(pen, node, request.agent, at, told)


def summarised(pen: Pen, event: Summarised, node: Node, *, capture: bool) -> None:
    """A summariser answered; a function has been at work since whatever happened in this run before."""
    if node.summary is None and not event.model:
        compact = _opened(pen, node, event.agent, node.before)

        if event.error:
            pen.fail(compact.span, "summary_refused", safe(event.error))

        return

    chat = node.summary or _asked(pen, node, event.agent, node.before, {})
    model = safe(event.model)
    chat.span.update_name(f"{names.CHAT} {model}")
    chat.span.set_attributes(
        {names.PROVIDER: event.provider, names.REQUEST_MODEL: model, names.RESPONSE_MODEL: model} | of_bill(event.usage)
    )

    if capture and event.text:
        chat.span.set_attribute(names.OUTPUT_MESSAGES, reply_json(AssistantMessage(event.text), "stop"))

    if event.error:
        pen.fail(chat.span, chat.facts.get("error", "summary_refused"), safe(event.error))

    pen.end(chat.span, event.at)
    node.summary = None


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


def _asked(pen: Pen, node: Node, agent: str, at: float, more: dict[str, object]) -> Open:
    below = _opened(pen, node, agent, at).span
    told = {names.OPERATION: names.CHAT, names.AGENT_NAME: agent, names.RUN_ID: node.run_id, **more}
    node.summary = Open(span=pen.start(names.CHAT, at, told, parent=below, client=True), began=at)
    return node.summary


def _opened(pen: Pen, node: Node, agent: str, at: float) -> Open:
    if node.compact is None:
        told = {names.AGENT_NAME: agent, names.RUN_ID: node.run_id}
        node.compact = Open(span=pen.start(names.COMPACT, at, told, parent=node.innermost), began=at)

    return node.compact


def _end(pen: Pen, node: Node, at: float) -> None:
    if node.compact is not None:
        pen.end(node.compact.span, at)
        node.compact = None
