"""Spans of summaries: what was asked of a model for one, and what it came to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crew.agents.crew import Crew
from crew.errors import describe
from crew.interfaces import ModelRequest
from crew.messages import AssistantMessage, ToolResult
from crew.runs.events import (
    AgentStarted,
    Asked,
    BranchFinished,
    BranchStarted,
    BranchTimedOut,
    Compacted,
    CompactionFailed,
    Event,
    HandedOff,
    HistoryPruned,
    Paused,
    Replied,
    Routed,
    RunFailed,
    RunFinished,
    Summarised,
    ToolReturned,
    ToolsStarted,
)
from crew.runs.state import RunState, total_counters
from crew.secrets.patterns import redact
from crew.telemetry import names
from crew.telemetry.event_table import NOTES, ON_ROOT
from crew.telemetry.span_attributes import (
    pruning_attributes,
    reply_attributes,
    reply_json,
    request_attributes,
    run_attributes,
    usage_attributes,
)
from crew.telemetry.span_tree import OpenSpan, RunSpans, SpanTree, SpanWriter


def start_summary_request(pen: SpanWriter, request: ModelRequest, node: RunSpans, at: float) -> OpenSpan:
    """A model is asked for a summary."""
    told = {names.CONVERSATION_ID: request.conversation_id, names.MESSAGES: len(request.messages)}
    return _start_chat(pen, node, request.agent, at, told)


def end_summary_request(pen: SpanWriter, event: Summarised, node: RunSpans, *, capture: bool) -> None:
    """A summariser answered; a function has been at work since whatever happened in this run before."""
    if node.summary is None and not event.model:
        compact = _compaction_span(pen, node, event.agent, node.previous_event_at)

        if event.error:
            pen.fail(compact.span, "summary_refused", redact(event.error))

        return

    chat = node.summary or _start_chat(pen, node, event.agent, node.previous_event_at, {})
    model = redact(event.model)
    chat.span.update_name(f"{names.CHAT} {model}")
    chat.span.set_attributes(
        {names.PROVIDER: event.provider, names.REQUEST_MODEL: model, names.RESPONSE_MODEL: model}
        | usage_attributes(event.usage)
    )

    if capture and event.text:
        chat.span.set_attribute(names.OUTPUT_MESSAGES, reply_json(AssistantMessage(event.text), "stop"))

    if event.error:
        pen.fail(chat.span, chat.details.get("error", "summary_refused"), redact(event.error))

    pen.end(chat.span, event.at)
    node.summary = None


def end_compaction(pen: SpanWriter, event: Compacted, node: RunSpans) -> None:
    """A summary stands in the history."""
    if node.compact is not None:
        node.compact.span.set_attributes(
            {
                names.COMPACTION_CAUSE: redact(event.cause),
                names.SUMMARY_COVERS: len(event.covers),
                names.TOKENS_BEFORE: event.tokens_before,
                names.TOKENS_AFTER: event.tokens_after,
                names.MESSAGES_AFTER: event.size,
            }
        )
        _end_compaction(pen, node, event.at)


def fail_compaction(pen: SpanWriter, event: CompactionFailed, node: RunSpans) -> None:
    """It came to nothing; the run goes on without it."""
    if node.compact is not None:
        node.compact.span.set_attribute(names.COMPACTION_CAUSE, redact(event.cause))
        pen.fail(node.compact.span, "compaction_failed", redact(event.reason))
        _end_compaction(pen, node, event.at)


def _start_chat(pen: SpanWriter, node: RunSpans, agent: str, at: float, more: dict[str, object]) -> OpenSpan:
    below = _compaction_span(pen, node, agent, at).span
    told = {names.OPERATION: names.CHAT, names.AGENT_NAME: agent, names.RUN_ID: node.run_id, **more}
    node.summary = OpenSpan(span=pen.start(names.CHAT, at, told, parent=below, client=True), began=at)
    return node.summary


def _compaction_span(pen: SpanWriter, node: RunSpans, agent: str, at: float) -> OpenSpan:
    if node.compact is None:
        told = {names.AGENT_NAME: agent, names.RUN_ID: node.run_id}
        node.compact = OpenSpan(span=pen.start(names.COMPACT, at, told, parent=node.innermost), began=at)

    return node.compact


def _end_compaction(pen: SpanWriter, node: RunSpans, at: float) -> None:
    if node.compact is not None:
        pen.end(node.compact.span, at)
        node.compact = None


class SpanBuilder:
    """Turns the events of one run into spans below the pen's root; events that it does not know are passed over."""

    def __init__(self, pen: SpanWriter, crew: Crew, state: RunState, *, capture: bool, resumes: bool) -> None:
        self.writer, self.root, self.capture = pen, pen.root, capture
        self._state = state
        self._forest = SpanTree(pen, crew, state, capture=capture)

        if resumes:
            self._forest.restore(state, pen.began)

        self._stop, self._about = "", state.run_id
        self._failure: RunFailed | None = None
        self._left = state

    @property
    def latest_id(self) -> str:
        """The id of the span that the newest event was about."""
        node = self._forest.nodes.get(self._about)
        return self.writer.ids(self.writer.last_span or (self.root if node is None else node.innermost))[1]

    def __call__(self, event: Event) -> None:
        act, note = ACTS.get(type(event)), NOTES.get(type(event))
        self.writer.last_span, self._about = None, event.run_id

        if act is None and note is None:
            return

        forest = self._forest
        node = forest.nodes.get(event.run_id) or forest.run_spans(event.run_id)
        node.previous_event_at = node.last_event_at
        node.last_event_at = forest.last = max(forest.last, event.at)

        if note is not None:
            name, facts = note
            timed_out = isinstance(event, BranchTimedOut) and node.group is not None
            on = self.root if name in ON_ROOT else node.group.span if timed_out and node.group else node.request_span
            self.writer.event(on, name, event.at, facts(event))

        if act is not None:
            act(self, event, node)

    # ------------------------------------------------------------------------------------------ agents and models

    def _agent_started(self, event: AgentStarted, node: RunSpans) -> None:
        self._forest.end_agent(node, event.at)
        self._forest.agent(node, event.agent, event.at)

    def _asked(self, event: Asked, node: RunSpans) -> None:
        told = request_attributes(event, self._state.conversation_id)
        name = f"{names.CHAT} {told[names.REQUEST_MODEL]}"

        if node.chat is not None and node.chat.details.pop("early", None):
            node.chat.span.update_name(name)
            node.chat.span.set_attributes(told)
            self.writer.last_span = node.chat.span

            if failed := node.chat.details.get("failed"):
                self._end_failed(node, *failed)

            return

        if node.chat is not None:  # the question before this one came to nothing, and nobody said so
            self.writer.end(node.chat.span, event.at)

        parent = self._forest.agent(node, event.agent, event.at).span
        span = self.writer.start(name, event.at, told, parent=parent, client=True)
        node.chat = OpenSpan(span=span, began=event.at)

    def start_request(self, run_id: str, agent: str, at: float) -> OpenSpan:
        """The question to the model that begins now; it may be told a moment later, while another branch commits."""
        node = self._forest.run_spans(run_id)

        if node.chat is None:
            parent = self._forest.agent(node, agent, at).span
            told = {names.OPERATION: names.CHAT, names.AGENT_NAME: agent}
            span = self.writer.start(names.CHAT, at, told, parent=parent, client=True)
            node.chat = OpenSpan(span=span, began=at, details={"early": True})

        return node.chat

    def _replied(self, event: Replied, node: RunSpans) -> None:
        if node.chat is None:
            return

        node.chat.span.set_attributes(reply_attributes(event))

        if self.capture:
            node.calls = {call.id: call for call in event.message.calls}
            node.chat.span.set_attribute(names.OUTPUT_MESSAGES, reply_json(event.message, event.finish_reason))

        self.writer.end(node.chat.span, event.at)
        node.chat = None

    def chat_failed(self, run_id: str, open: OpenSpan, error: BaseException, at: float) -> None:
        """The question came to an error; what follows (another model, the end of the run) has spans of its own."""
        node = self._forest.nodes.get(run_id)

        # Of a summary it is told in a moment what it came to, of an early question that it was asked.
        open.details |= {"error": type(error).__name__, "failed": (error, at)}

        if node is not None and open is node.chat and not open.details.get("early"):
            self._end_failed(node, error, at)

    def _end_failed(self, node: RunSpans, error: BaseException, at: float) -> None:
        if node.chat is not None:
            self.writer.fail(node.chat.span, type(error).__name__, redact(describe(error)))
            self.writer.end(node.chat.span, at)
            node.chat = None
            node.last_event_at = self._forest.last = max(self._forest.last, at)

    def start_summary(self, run_id: str, request: ModelRequest, at: float) -> OpenSpan:
        """The question for a summary that begins now."""
        return start_summary_request(self.writer, request, self._forest.run_spans(run_id), at)

    def open_tool_span(self, run_id: str, call_id: str) -> OpenSpan | None:
        """The call that is under way."""
        node = self._forest.nodes.get(run_id)
        return None if node is None else node.tools.get(call_id)

    # ------------------------------------------------------------------------------------------ tools

    def _tools_started(self, event: ToolsStarted, node: RunSpans) -> None:
        for call in event.calls:
            self._forest.tool(node, event.agent, event.at, call, "function")

    def _tool_returned(self, event: ToolReturned, node: RunSpans) -> None:
        result = event.result

        if result.call_id not in node.tools:  # answered without being run: unknown, or with bad arguments
            began = event.at - event.seconds if event.seconds else node.instant_start(event.at)
            self._forest.tool(node, event.agent, began, node.tool_call(result.call_id, result.name), "function")

        self._forest.end_tool(node, result, event.at)

    # ------------------------------------------------------------------------------------------ the work, the history

    def _handed_off(self, event: HandedOff, node: RunSpans) -> None:
        call = node.tool_call(event.call_id, f"transfer_to_{event.target}")
        open = self._forest.tool(node, event.agent, node.instant_start(event.at), call, "handoff")
        del node.tools[call.id]
        self.writer.end(open.span, event.at)
        node.links.append(self.writer.link(open.span, {names.LINK_TYPE: "handoff"}))

    def _routed(self, event: Routed, node: RunSpans) -> None:
        if node.agent is not None and event.target is not None:
            node.links.append(self.writer.link(node.agent.span, {names.LINK_TYPE: "route"}))

    def _branch_started(self, event: BranchStarted, node: RunSpans) -> None:
        if event.group:
            self._forest.end_agent(node, event.at)
            base = self._forest.group(node, event.group, event.at).span
        else:
            call = node.tool_call(event.branch.removeprefix(f"{event.run_id}/"), event.tool)
            base = self._forest.tool(node, event.agent, event.at, call, "agent").span

        self._forest.add_run(event.branch, base, event.at)

    def _branch_finished(self, event: BranchFinished, node: RunSpans) -> None:
        child = self._forest.nodes.get(event.branch)

        if child is None:
            return

        # A branch that came to its end did so with its last event; one that was cut off ends now.
        at = child.last_event_at if child.is_idle else event.at

        if child.agent is not None:
            child.agent.span.set_attribute(names.BRANCH_OUTCOME, event.outcome)

            if event.outcome == "failed" and not child.failed:
                self.writer.fail(child.agent.span, "branch_failed", redact(event.error))

        self._forest.end_subtree(event.branch, at, event.outcome)
        call_id, succeeded = event.branch.removeprefix(f"{event.run_id}/"), event.outcome == "completed"

        if node.group is not None and child.parent is node.group.span:
            self._forest.leave_group(node, node.group, event.at, succeeded=succeeded)
        elif call_id in node.tools:
            result = ToolResult(call_id=call_id, text="", outcome="ok" if succeeded else "error")
            self._forest.end_tool(node, result, event.at)

    def _pruning(self, event: HistoryPruned, node: RunSpans) -> None:
        span = self.writer.start(
            names.PRUNE, node.instant_start(event.at), pruning_attributes(event), parent=node.innermost
        )
        self.writer.end(span, event.at)

    # ------------------------------------------------------------------------------------------ the end

    def _paused(self, event: Paused, node: RunSpans) -> None:
        self._stop = "paused"

    def _failed(self, event: RunFailed, node: RunSpans) -> None:
        if event.run_id == self._state.run_id:
            self._stop, self._failure = "failed", event
        elif node.agent is not None:
            node.failed = True
            self.writer.fail(node.agent.span, event.error_type, redact(event.error))

    def _finished(self, event: RunFinished, node: RunSpans) -> None:
        self._stop, self.writer.last_span = event.stop_reason, self.root

    def run_ended(self, state: RunState) -> None:
        """The run stops here in this state: branches that have ended did so before."""
        self._left = state
        self._forest.end_finished(state)

    def close(self, error: BaseException | None, at: float) -> None:
        """The run is over here: nothing is left open."""
        at = max(at, self._forest.last)
        stop = self._stop or ("interrupted" if error is not None else "completed")

        try:
            if self._failure is not None:
                self._forest.fail_open_groups(self._failure.error_type or "error", redact(self._failure.error))

            self._forest.end_subtree(self._state.run_id, at, stop)
        finally:
            self.root.set_attributes({names.STOP_REASON: stop, **run_attributes(total_counters(self._left))})

            if self._failure is not None:
                self.writer.fail(self.root, self._failure.error_type or "error", redact(self._failure.error))
            elif isinstance(error, Exception):
                self.writer.fail(self.root, type(error).__name__, redact(describe(error)))

            self.writer.end(self.root, at)


ACTS: dict[type[Any], Callable[[SpanBuilder, Any, RunSpans], None]] = {
    AgentStarted: SpanBuilder._agent_started,
    Asked: SpanBuilder._asked,
    Replied: SpanBuilder._replied,
    ToolsStarted: SpanBuilder._tools_started,
    ToolReturned: SpanBuilder._tool_returned,
    HandedOff: SpanBuilder._handed_off,
    Routed: SpanBuilder._routed,
    BranchStarted: SpanBuilder._branch_started,
    BranchFinished: SpanBuilder._branch_finished,
    HistoryPruned: SpanBuilder._pruning,
    Summarised: lambda spans, event, node: end_summary_request(spans.writer, event, node, capture=spans.capture),
    Compacted: lambda spans, event, node: end_compaction(spans.writer, event, node),
    CompactionFailed: lambda spans, event, node: fail_compaction(spans.writer, event, node),
    Paused: SpanBuilder._paused,
    RunFailed: SpanBuilder._failed,
    RunFinished: SpanBuilder._finished,
}
