"""The spans of one run, made from its events: explicit parents, explicit times, and every one of them ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crew.agents import Crew
from crew.doors import ModelRequest
from crew.errors import describe
from crew.execution.advance import total
from crew.messages import ToolResult
from crew.runs import Event, RunState
from crew.runs.events import (
    AgentStarted,
    Asked,
    BranchFinished,
    BranchStarted,
    BranchTimedOut,
    Compacted,
    CompactionFailed,
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
from crew.telemetry import compaction, names
from crew.telemetry.attributes import of_asked, of_pruning, of_replied, of_total
from crew.telemetry.content import reply_json
from crew.telemetry.forest import Forest
from crew.telemetry.nodes import Node, Open, Pen
from crew.telemetry.notes import NOTES, ON_ROOT
from crew.telemetry.redaction import safe


class Spans:
    """Turns the events of one run into spans below the pen's root; events that it does not know are passed over."""

    def __init__(self, pen: Pen, crew: Crew, state: RunState, *, capture: bool, resumes: bool) -> None:
        self.pen, self.root, self.capture = pen, pen.root, capture
        self._state = state
        self._forest = Forest(pen, crew, state, capture=capture)

        if resumes:
            self._forest.regrow(state, pen.began)

        self._stop, self._about = "", state.run_id
        self._failure: RunFailed | None = None
        self._left = state

    @property
    def latest_id(self) -> str:
        """The id of the span that the newest event was about."""
        node = self._forest.nodes.get(self._about)
        return self.pen.ids(self.pen.latest or (self.root if node is None else node.innermost))[1]

    def __call__(self, event: Event) -> None:
        act, note = ACTS.get(type(event)), NOTES.get(type(event))
        self.pen.latest, self._about = None, event.run_id

        if act is None and note is None:
            return

        forest = self._forest
        node = forest.nodes.get(event.run_id) or forest.node(event.run_id)
        node.before = node.last
        node.last = forest.last = max(forest.last, event.at)

        if note is not None:
            name, facts = note
            timed_out = isinstance(event, BranchTimedOut) and node.group is not None
            on = self.root if name in ON_ROOT else node.group.span if timed_out and node.group else node.asking
            self.pen.event(on, name, event.at, facts(event))

        if act is not None:
            act(self, event, node)

    # ------------------------------------------------------------------------------------------ agents and models

    def _agent_started(self, event: AgentStarted, node: Node) -> None:
        self._forest.end_agent(node, event.at)
        self._forest.agent(node, event.agent, event.at)

    def _asked(self, event: Asked, node: Node) -> None:
        told = of_asked(event, self._state.conversation_id)
        name = f"{names.CHAT} {told[names.REQUEST_MODEL]}"

        if node.chat is not None and node.chat.facts.pop("early", None):
            node.chat.span.update_name(name)
            node.chat.span.set_attributes(told)
            self.pen.latest = node.chat.span

            if failed := node.chat.facts.get("failed"):
                self._end_failed(node, *failed)

            return

        if node.chat is not None:  # the question before this one came to nothing, and nobody said so
            self.pen.end(node.chat.span, event.at)

        parent = self._forest.agent(node, event.agent, event.at).span
        span = self.pen.start(name, event.at, told, parent=parent, client=True)
        node.chat = Open(span=span, began=event.at)

    def asking(self, run_id: str, agent: str, at: float) -> Open:
        """The question to the model that begins now; it may be told a moment later, while another branch commits."""
        node = self._forest.node(run_id)

        if node.chat is None:
            parent = self._forest.agent(node, agent, at).span
            told = {names.OPERATION: names.CHAT, names.AGENT_NAME: agent}
            span = self.pen.start(names.CHAT, at, told, parent=parent, client=True)
            node.chat = Open(span=span, began=at, facts={"early": True})

        return node.chat

    def _replied(self, event: Replied, node: Node) -> None:
        if node.chat is None:
            return

        node.chat.span.set_attributes(of_replied(event))

        if self.capture:
            node.calls = {call.id: call for call in event.message.calls}
            node.chat.span.set_attribute(names.OUTPUT_MESSAGES, reply_json(event.message, event.finish_reason))

        self.pen.end(node.chat.span, event.at)
        node.chat = None

    def chat_failed(self, run_id: str, open: Open, error: BaseException, at: float) -> None:
        """The question came to an error; what follows (another model, the end of the run) has spans of its own."""
        node = self._forest.nodes.get(run_id)

        # Of a summary it is told in a moment what it came to, of an early question that it was asked.
        open.facts |= {"error": type(error).__name__, "failed": (error, at)}

        if node is not None and open is node.chat and not open.facts.get("early"):
            self._end_failed(node, error, at)

    def _end_failed(self, node: Node, error: BaseException, at: float) -> None:
        if node.chat is not None:
            self.pen.fail(node.chat.span, type(error).__name__, safe(describe(error)))
            self.pen.end(node.chat.span, at)
            node.chat = None
            node.last = self._forest.last = max(self._forest.last, at)

    def summarising(self, run_id: str, request: ModelRequest, at: float) -> Open:
        """The question for a summary that begins now."""
        return compaction.asked(self.pen, request, self._forest.node(run_id), at)

    def calling(self, run_id: str, call_id: str) -> Open | None:
        """The call that is under way."""
        node = self._forest.nodes.get(run_id)
        return None if node is None else node.tools.get(call_id)

    # ------------------------------------------------------------------------------------------ tools

    def _tools_started(self, event: ToolsStarted, node: Node) -> None:
        for call in event.calls:
            self._forest.tool(node, event.agent, event.at, call, "function")

    def _tool_returned(self, event: ToolReturned, node: Node) -> None:
        result = event.result

        if result.call_id not in node.tools:  # answered without being run: unknown, or with bad arguments
            began = event.at - event.seconds if event.seconds else node.moment(event.at)
            self._forest.tool(node, event.agent, began, node.call(result.call_id, result.name), "function")

        self._forest.end_tool(node, result, event.at)

    # ------------------------------------------------------------------------------------------ the work, the history

    def _handed_off(self, event: HandedOff, node: Node) -> None:
        call = node.call(event.call_id, f"transfer_to_{event.target}")
        open = self._forest.tool(node, event.agent, node.moment(event.at), call, "handoff")
        del node.tools[call.id]
        self.pen.end(open.span, event.at)
        node.links.append(self.pen.link(open.span, {names.LINK: "handoff"}))

    def _routed(self, event: Routed, node: Node) -> None:
        if node.agent is not None and event.target is not None:
            node.links.append(self.pen.link(node.agent.span, {names.LINK: "route"}))

    def _branch_started(self, event: BranchStarted, node: Node) -> None:
        if event.group:
            self._forest.end_agent(node, event.at)
            base = self._forest.group(node, event.group, event.at).span
        else:
            call = node.call(event.branch.removeprefix(f"{event.run_id}/"), event.tool)
            base = self._forest.tool(node, event.agent, event.at, call, "agent").span

        self._forest.plant(event.branch, base, event.at)

    def _branch_finished(self, event: BranchFinished, node: Node) -> None:
        child = self._forest.nodes.get(event.branch)

        if child is None:
            return

        # A branch that came to its end did so with its last event; one that was cut off ends now.
        at = child.last if child.idle else event.at

        if child.agent is not None:
            child.agent.span.set_attribute(names.BRANCH_OUTCOME, event.outcome)

            if event.outcome == "failed" and not child.failed:
                self.pen.fail(child.agent.span, "branch_failed", safe(event.error))

        self._forest.fell(event.branch, at, event.outcome)
        call_id, succeeded = event.branch.removeprefix(f"{event.run_id}/"), event.outcome == "completed"

        if node.group is not None and child.base is node.group.span:
            self._forest.leave_group(node, node.group, event.at, succeeded=succeeded)
        elif call_id in node.tools:
            result = ToolResult(call_id=call_id, text="", outcome="ok" if succeeded else "error")
            self._forest.end_tool(node, result, event.at)

    def _pruning(self, event: HistoryPruned, node: Node) -> None:
        span = self.pen.start(names.PRUNE, node.moment(event.at), of_pruning(event), parent=node.innermost)
        self.pen.end(span, event.at)

    # ------------------------------------------------------------------------------------------ the end

    def _paused(self, event: Paused, node: Node) -> None:
        self._stop = "paused"

    def _failed(self, event: RunFailed, node: Node) -> None:
        if event.run_id == self._state.run_id:
            self._stop, self._failure = "failed", event
        elif node.agent is not None:
            node.failed = True
            self.pen.fail(node.agent.span, event.error_type, safe(event.error))

    def _finished(self, event: RunFinished, node: Node) -> None:
        self._stop, self.pen.latest = event.stop_reason, self.root

    def left(self, state: RunState) -> None:
        """The run stops here in this state: branches that have ended did so before."""
        self._left = state
        self._forest.settle(state)

    def close(self, error: BaseException | None, at: float) -> None:
        """The run is over here: nothing is left open."""
        at = max(at, self._forest.last)
        stop = self._stop or ("interrupted" if error is not None else "completed")

        try:
            if self._failure is not None:
                self._forest.cut_off(self._failure.error_type or "error", safe(self._failure.error))

            self._forest.fell(self._state.run_id, at, stop)
        finally:
            self.root.set_attributes({names.STOP_REASON: stop, **of_total(total(self._left))})

            if self._failure is not None:
                self.pen.fail(self.root, self._failure.error_type or "error", safe(self._failure.error))
            elif isinstance(error, Exception):
                self.pen.fail(self.root, type(error).__name__, safe(describe(error)))

            self.pen.end(self.root, at)


ACTS: dict[type[Any], Callable[[Spans, Any, Node], None]] = {
    AgentStarted: Spans._agent_started,
    Asked: Spans._asked,
    Replied: Spans._replied,
    ToolsStarted: Spans._tools_started,
    ToolReturned: Spans._tool_returned,
    HandedOff: Spans._handed_off,
    Routed: Spans._routed,
    BranchStarted: Spans._branch_started,
    BranchFinished: Spans._branch_finished,
    HistoryPruned: Spans._pruning,
    Summarised: lambda spans, event, node: compaction.summarised(spans.pen, event, node, capture=spans.capture),
    Compacted: lambda spans, event, node: compaction.compacted(spans.pen, event, node),
    CompactionFailed: lambda spans, event, node: compaction.compaction_failed(spans.pen, event, node),
    Paused: Spans._paused,
    RunFailed: Spans._failed,
    RunFinished: Spans._finished,
}
