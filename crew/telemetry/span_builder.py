"""Builds the spans of one run from its events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crew.agents.crew import Crew
from crew.errors import describe
from crew.interfaces import ModelRequest
from crew.messages import AssistantMessage, ToolResult
from crew.runs.events import (
    AgentPrepared,
    AgentStarted,
    Asked,
    BaseEvent,
    BranchFinished,
    BranchStarted,
    BranchTimedOut,
    Compacted,
    CompactionFailed,
    Event,
    HandedOff,
    HistoryPruned,
    Paused,
    QuestionAsked,
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
from crew.telemetry.event_table import ON_ROOT, SPAN_EVENT_ENTRIES
from crew.telemetry.span_attributes import (
    pruning_attributes,
    reply_attributes,
    reply_json,
    request_attributes,
    run_attributes,
    usage_attributes,
)
from crew.telemetry.span_tree import Attributes, OpenSpan, RunSpans, Span, SpanTree, SpanWriter

# ------------------------------------------------------------------------------------------------ summaries


def start_summary_request(writer: SpanWriter, request: ModelRequest, run: RunSpans, at: float) -> OpenSpan:
    """Start the span of a model request for a summary."""
    more: Attributes = {names.CONVERSATION_ID: request.conversation_id, names.MESSAGES: len(request.messages)}
    return _start_chat(writer, run, request.agent, at, more)


def end_summary_request(writer: SpanWriter, event: Summarised, run: RunSpans, *, capture: bool) -> None:
    """End it. A function as summarizer has no model request: it ran since the previous event of this run."""
    if run.summary is None and not event.model:
        compact = _compaction_span(writer, run, event.agent, run.previous_event_at)

        if event.error:
            writer.fail(compact.span, "summary_refused", redact(event.error))

        return

    chat = run.summary or _start_chat(writer, run, event.agent, run.previous_event_at, {})
    model = redact(event.model)
    chat.span.update_name(f"{names.CHAT} {model}")
    chat.span.set_attributes(usage_attributes(event.usage))
    chat.span.set_attributes({names.PROVIDER: event.provider, names.REQUEST_MODEL: model, names.RESPONSE_MODEL: model})

    if capture and event.text:
        chat.span.set_attribute(names.OUTPUT_MESSAGES, reply_json(AssistantMessage(event.text), "stop"))

    if event.error:
        writer.fail(chat.span, chat.error_type or "summary_refused", redact(event.error))

    writer.end(chat.span, event.at)
    run.summary = None


def end_compaction(writer: SpanWriter, event: Compacted, run: RunSpans) -> None:
    """End the span of a compaction that succeeded."""
    if run.compact is not None:
        run.compact.span.set_attributes(
            {
                names.COMPACTION_CAUSE: redact(event.cause),
                names.SUMMARY_COVERS: len(event.covers),
                names.TOKENS_BEFORE: event.tokens_before,
                names.TOKENS_AFTER: event.tokens_after,
                names.MESSAGES_AFTER: event.size,
                names.PRUNED_WHERE: event.where,
            }
        )
        _end_compaction(writer, run, event.at)


def fail_compaction(writer: SpanWriter, event: CompactionFailed, run: RunSpans) -> None:
    """End the span of a compaction that failed; the run goes on."""
    if run.compact is not None:
        run.compact.span.set_attributes({names.COMPACTION_CAUSE: redact(event.cause), names.PRUNED_WHERE: event.where})
        writer.fail(run.compact.span, "compaction_failed", redact(event.reason))
        _end_compaction(writer, run, event.at)


def _start_chat(writer: SpanWriter, run: RunSpans, agent: str, at: float, more: Attributes) -> OpenSpan:
    parent = _compaction_span(writer, run, agent, at).span
    attributes = {names.OPERATION: names.CHAT, names.AGENT_NAME: agent, names.RUN_ID: run.run_id, **more}
    run.summary = OpenSpan(span=writer.start(names.CHAT, at, attributes, parent=parent, client=True), began=at)
    return run.summary


def _compaction_span(writer: SpanWriter, run: RunSpans, agent: str, at: float) -> OpenSpan:
    if run.compact is None:
        attributes = {names.AGENT_NAME: agent, names.RUN_ID: run.run_id}
        run.compact = OpenSpan(span=writer.start(names.COMPACT, at, attributes, parent=run.innermost), began=at)

    return run.compact


def _end_compaction(writer: SpanWriter, run: RunSpans, at: float) -> None:
    if run.compact is not None:
        writer.end(run.compact.span, at)
        run.compact = None


# ------------------------------------------------------------------------------------------------ the run


class SpanBuilder:
    """Turns the events of one run into spans below the writer's root; ignores events without a mapping."""

    def __init__(self, writer: SpanWriter, crew: Crew, state: RunState, *, capture: bool, resumes: bool) -> None:
        self.writer, self.capture = writer, capture
        self.root: Span = writer.root
        self._state = self._end_state = state
        self._tree = SpanTree(writer, crew, state, capture=capture)

        if resumes:
            self._tree.restore(state, writer.began)

        self._stop_reason, self._latest_run_id = "", state.run_id
        self._failure: RunFailed | None = None

    @property
    def latest_id(self) -> str:
        """The id of the span that the newest event belongs to."""
        run = self._tree.by_run.get(self._latest_run_id)
        return self.writer.ids(self.writer.last_span or (self.root if run is None else run.innermost))[1]

    def __call__(self, event: Event) -> None:
        handler, entry = HANDLERS.get(type(event)), SPAN_EVENT_ENTRIES.get(type(event))
        self.writer.last_span, self._latest_run_id = None, event.run_id

        if handler is None and entry is None:
            return

        tree = self._tree
        run = tree.by_run.get(event.run_id) or tree.run_spans(event.run_id)
        run.previous_event_at = run.last_event_at
        run.last_event_at = tree.last_event_at = max(tree.last_event_at, event.at)

        if entry is not None:
            self.writer.event(self._event_span(event, entry.name, run), entry.name, event.at, entry.fields(event))

        if handler is not None:
            handler(self, event, run)

    def _event_span(self, event: Event, name: str, run: RunSpans) -> Span:
        """The span that a span event is added to."""
        if name in ON_ROOT:
            return self.root

        if isinstance(event, QuestionAsked) and event.call_id in run.tools:
            return run.tools[event.call_id].span

        return run.group.span if isinstance(event, BranchTimedOut) and run.group is not None else run.request_span

    # ------------------------------------------------------------------------------------------ agents and models

    def _agent_started(self, event: AgentStarted, run: RunSpans) -> None:
        self._tree.end_agent(run, event.at)
        self._tree.agent(run, event.agent, event.at)

    def _asked(self, event: Asked, run: RunSpans) -> None:
        attributes = request_attributes(event, self._state.conversation_id)
        name = f"{names.CHAT} {attributes[names.REQUEST_MODEL]}"

        if run.chat is not None and run.chat.early:
            run.chat.early = False
            run.chat.span.update_name(name)
            run.chat.span.set_attributes(attributes)
            self.writer.last_span = run.chat.span

            if run.chat.failure is not None:
                self._end_failed(run, *run.chat.failure)

            return

        if run.chat is not None:  # the previous request of this run ended without an event
            self.writer.end(run.chat.span, event.at)

        parent = self._tree.agent(run, event.agent, event.at).span
        span = self.writer.start(name, event.at, attributes, parent=parent, client=True)
        run.chat = OpenSpan(span=span, began=event.at)

    def start_request(self, run_id: str, agent: str, at: float) -> OpenSpan:
        """The span of a request that starts now; its event may follow later, while another branch commits."""
        run = self._tree.run_spans(run_id)

        if run.chat is None:
            parent = self._tree.agent(run, agent, at).span
            attributes = {names.OPERATION: names.CHAT, names.AGENT_NAME: agent}
            span = self.writer.start(names.CHAT, at, attributes, parent=parent, client=True)
            run.chat = OpenSpan(span=span, began=at, early=True)

        return run.chat

    def _replied(self, event: Replied, run: RunSpans) -> None:
        if run.chat is None:
            return

        run.chat.span.set_attributes(reply_attributes(event))

        if self.capture:
            run.calls = {call.id: call for call in event.message.calls}
            run.chat.span.set_attribute(names.OUTPUT_MESSAGES, reply_json(event.message, event.finish_reason))

        self.writer.end(run.chat.span, event.at)
        run.chat = None

    def chat_failed(self, run_id: str, open_span: OpenSpan, error: BaseException, at: float) -> None:
        """A model request raised.

        The span of a summary ends with its event, and an early one waits for its event.
        """
        run = self._tree.by_run.get(run_id)
        open_span.error_type, open_span.failure = type(error).__name__, (error, at)

        if run is not None and open_span is run.chat and not open_span.early:
            self._end_failed(run, error, at)

    def _end_failed(self, run: RunSpans, error: BaseException, at: float) -> None:
        if run.chat is not None:
            self.writer.fail(run.chat.span, type(error).__name__, redact(describe(error)))
            self.writer.end(run.chat.span, at)
            run.chat = None
            run.last_event_at = self._tree.last_event_at = max(self._tree.last_event_at, at)

    def start_summary(self, run_id: str, request: ModelRequest, at: float) -> OpenSpan:
        """The span of a request for a summary that starts now."""
        return start_summary_request(self.writer, request, self._tree.run_spans(run_id), at)

    def open_tool_span(self, run_id: str, call_id: str) -> OpenSpan | None:
        """The span of a tool call in progress."""
        run = self._tree.by_run.get(run_id)
        return None if run is None else run.tools.get(call_id)

    # ------------------------------------------------------------------------------------------ tools

    def _agent_prepared(self, event: AgentPrepared, run: RunSpans) -> None:
        self._tree.prepared(event.agent, event.prepared)

    def _tools_started(self, event: ToolsStarted, run: RunSpans) -> None:
        for call in event.calls:
            self._tree.tool(run, event.agent, event.at, call, "function")

    def _tool_returned(self, event: ToolReturned, run: RunSpans) -> None:
        result = event.result

        if result.call_id not in run.tools:  # the tool did not run: unknown name or invalid arguments
            began = event.at - event.seconds if event.seconds else run.instant_start(event.at)
            self._tree.tool(run, event.agent, began, run.tool_call(result.call_id, result.name), "function")

        self._tree.end_tool(run, result, event.at)

    def _question_asked(self, event: QuestionAsked, run: RunSpans) -> None:
        """End the span of the call, which runs again as another span once the question is answered."""
        if (open_span := run.tools.pop(event.call_id, None)) is not None:
            open_span.span.set_attribute(names.STOP_REASON, "paused")
            self.writer.end(open_span.span, event.at)

    # ------------------------------------------------------------------------------------------ handoffs, branches

    def _handed_off(self, event: HandedOff, run: RunSpans) -> None:
        call = run.tool_call(event.call_id, f"transfer_to_{event.target}")
        open_span = self._tree.tool(run, event.agent, run.instant_start(event.at), call, "handoff")
        del run.tools[call.id]
        self.writer.end(open_span.span, event.at)
        run.links.append(self.writer.link(open_span.span, {names.LINK_TYPE: "handoff"}))

    def _routed(self, event: Routed, run: RunSpans) -> None:
        if run.agent is not None and event.target is not None:
            run.links.append(self.writer.link(run.agent.span, {names.LINK_TYPE: "route"}))

    def _branch_started(self, event: BranchStarted, run: RunSpans) -> None:
        if event.group:
            self._tree.end_agent(run, event.at)
            parent = self._tree.group(run, event.group, event.at).span
        else:
            call = run.tool_call(event.call_id, event.tool)
            parent = self._tree.tool(run, event.agent, event.at, call, "agent").span

        self._tree.add_run(event.branch, parent, event.at)

    def _branch_finished(self, event: BranchFinished, run: RunSpans) -> None:
        branch = self._tree.by_run.get(event.branch)

        if branch is None:
            return

        # A branch that finished did so at its last event; one that was cancelled ends now.
        at = branch.last_event_at if branch.is_idle else event.at

        if branch.agent is not None:
            branch.agent.span.set_attribute(names.BRANCH_OUTCOME, event.outcome)

            if event.outcome == "failed" and not branch.failed:
                self.writer.fail(branch.agent.span, "branch_failed", redact(event.error))

        self._tree.end_subtree(event.branch, at, event.outcome)
        call_id = next((id for id, open_span in run.tools.items() if open_span.span is branch.parent), None)
        succeeded = event.outcome == "completed"

        if run.group is not None and branch.parent is run.group.span:
            self._tree.leave_group(run, run.group, event.at, succeeded=succeeded)
        elif call_id is not None:
            result = ToolResult(call_id=call_id, text="", outcome="ok" if succeeded else "error")
            self._tree.end_tool(run, result, event.at)

    def _pruned(self, event: HistoryPruned, run: RunSpans) -> None:
        began, attributes = run.instant_start(event.at), pruning_attributes(event)
        self.writer.end(self.writer.start(names.PRUNE, began, attributes, parent=run.innermost), event.at)

    # ------------------------------------------------------------------------------------------ the end

    def _paused(self, event: Paused, run: RunSpans) -> None:
        self._stop_reason = "paused"

    def _failed(self, event: RunFailed, run: RunSpans) -> None:
        if event.run_id == self._state.run_id:
            self._stop_reason, self._failure = "failed", event
        elif run.agent is not None:
            run.failed = True
            self.writer.fail(run.agent.span, event.error_type, redact(event.error))

    def _finished(self, event: RunFinished, run: RunSpans) -> None:
        self._stop_reason, self.writer.last_span = event.stop_reason, self.root

    def run_ended(self, state: RunState) -> None:
        """Take the run's totals from this state, and end the spans of branches that finished before."""
        self._end_state = state
        self._tree.end_finished(state)

    def close(self, error: BaseException | None, at: float) -> None:
        """End every open span, the root last."""
        at = max(at, self._tree.last_event_at)
        stop_reason = self._stop_reason or ("interrupted" if error is not None else "completed")

        try:
            if self._failure is not None:
                self._tree.fail_open_groups(self._failure.error_type or "error", redact(self._failure.error))

            self._tree.end_subtree(self._state.run_id, at, stop_reason)
        finally:
            totals = run_attributes(total_counters(self._end_state))
            self.root.set_attributes({names.STOP_REASON: stop_reason, **totals})

            if self._failure is not None:
                self.writer.fail(self.root, self._failure.error_type or "error", redact(self._failure.error))
            elif isinstance(error, Exception):
                self.writer.fail(self.root, type(error).__name__, redact(describe(error)))

            self.writer.end(self.root, at)


HANDLERS: dict[type[BaseEvent], Callable[[SpanBuilder, Any, RunSpans], None]] = {
    AgentStarted: SpanBuilder._agent_started,
    AgentPrepared: SpanBuilder._agent_prepared,
    Asked: SpanBuilder._asked,
    Replied: SpanBuilder._replied,
    ToolsStarted: SpanBuilder._tools_started,
    ToolReturned: SpanBuilder._tool_returned,
    QuestionAsked: SpanBuilder._question_asked,
    HandedOff: SpanBuilder._handed_off,
    Routed: SpanBuilder._routed,
    BranchStarted: SpanBuilder._branch_started,
    BranchFinished: SpanBuilder._branch_finished,
    HistoryPruned: SpanBuilder._pruned,
    Summarised: lambda spans, event, run: end_summary_request(spans.writer, event, run, capture=spans.capture),
    Compacted: lambda spans, event, run: end_compaction(spans.writer, event, run),
    CompactionFailed: lambda spans, event, run: fail_compaction(spans.writer, event, run),
    Paused: SpanBuilder._paused,
    RunFailed: SpanBuilder._failed,
    RunFinished: SpanBuilder._finished,
}
