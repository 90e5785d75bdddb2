"""The spans of one run, made from its events: explicit parents, explicit times, and every one of them ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from crew.agents import Crew
from crew.errors import describe
from crew.messages import ToolCall, ToolResult
from crew.runs import Event, RunState
from crew.runs.events import (
    AgentStarted,
    Asked,
    BranchFinished,
    BranchStarted,
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
from crew.telemetry import names
from crew.telemetry.attributes import of_asked, of_pruning, of_replied, of_total
from crew.telemetry.compaction import compacted, compaction_failed, summarised
from crew.telemetry.content import reply_json
from crew.telemetry.forest import Forest
from crew.telemetry.nodes import Node, Open, Pen
from crew.telemetry.notes import NOTES, ON_ROOT
from crew.telemetry.redaction import safe

if TYPE_CHECKING:  # loaded with the first run that is traced, not with this package
    from opentelemetry.trace import Span


class Spans:
    """Turns the events of one run into spans below `root`; events that it does not know are passed over."""

    def __init__(self, pen: Pen, root: Span, crew: Crew, state: RunState, began: float, *, capture: bool) -> None:
        self.root, self.capture = root, capture
        self._pen, self._state = pen, state
        self._forest = Forest(pen, root, crew, state, began, capture=capture)
        self._stop, self._about = "", state.run_id
        self._failure: RunFailed | None = None
        self._prunings = self._pruned = 0

    @property
    def latest_id(self) -> str:
        """The id of the span that the newest event was about."""
        node = self._forest.nodes.get(self._about)
        span = self._pen.latest or (self.root if node is None else node.innermost)
        return f"{span.get_span_context().span_id:016x}"

    def __call__(self, event: Event) -> None:
        act, note = ACTS.get(type(event)), NOTES.get(type(event))
        self._pen.latest, self._about = None, event.run_id

        if act is None and note is None:
            return

        forest = self._forest
        node = forest.nodes.get(event.run_id) or forest.node(event.run_id)
        node.before = node.last
        node.last = forest.last = max(forest.last, event.at)

        if note is not None:
            name, facts = note
            on = self.root if name in ON_ROOT else node.chat.span if node.chat is not None else node.innermost
            self._pen.event(on, name, event.at, facts(event))

        if act is not None:
            act(self, event, node)

    def resumed(self, state: RunState, at: float) -> None:
        """The run comes back in this state."""
        self._forest.regrow(state, at)

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
            self._pen.latest = node.chat.span
            return

        if node.chat is not None:  # the question before this one came to nothing, and nobody said so
            self._pen.end(node.chat.span, event.at)

        parent = self._forest.agent(node, event.agent, event.at).span
        span = self._pen.start(name, event.at, told, parent=parent, client=True)
        node.chat = Open(span=span, began=event.at)

    def asking(self, run_id: str, agent: str, at: float) -> Open:
        """The question to the model that begins now; it may be told a moment later, while another branch commits."""
        node = self._forest.node(run_id)

        if node.chat is None:
            parent = self._forest.agent(node, agent, at).span
            told = {names.OPERATION: names.CHAT, names.AGENT_NAME: agent}
            span = self._pen.start(names.CHAT, at, told, parent=parent, client=True)
            node.chat = Open(span=span, began=at, facts={"early": True})

        return node.chat

    def _replied(self, event: Replied, node: Node) -> None:
        if node.chat is None:
            return

        node.chat.span.set_attributes(of_replied(event))

        if self.capture:
            node.chat.span.set_attribute(names.OUTPUT_MESSAGES, reply_json(event.message, event.finish_reason))

        self._pen.end(node.chat.span, event.at)
        node.chat = None

    def chat_failed(self, run_id: str, error: BaseException, at: float) -> None:
        """The question came to an error; what follows (another model, the end of the run) has spans of its own."""
        node = self._forest.nodes.get(run_id)

        if node is not None and node.chat is not None:
            self._pen.fail(node.chat.span, type(error).__name__, safe(describe(error)))
            self._pen.end(node.chat.span, at)
            node.chat = None

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
            call = ToolCall(id=result.call_id, name=result.name, arguments="")
            self._forest.tool(node, event.agent, event.at - event.seconds, call, "function")

        self._forest.end_tool(node, result, event.at)

    # ------------------------------------------------------------------------------------------ where the work goes

    def _handed_off(self, event: HandedOff, node: Node) -> None:
        call = ToolCall(id=event.call_id, name=f"transfer_to_{event.target}", arguments="")
        open = self._forest.tool(node, event.agent, event.at, call, "handoff")
        del node.tools[call.id]
        self._pen.end(open.span, event.at)
        node.links.append(self._pen.link(open.span, {names.LINK: "handoff"}))

    def _routed(self, event: Routed, node: Node) -> None:
        if node.agent is not None and event.target is not None:
            node.links.append(self._pen.link(node.agent.span, {names.LINK: "route"}))

    def _branch_started(self, event: BranchStarted, node: Node) -> None:
        if event.group:
            self._forest.end_agent(node, event.at)
            base = self._forest.group(node, event.group, event.at).span
        else:
            call = ToolCall(id=event.branch.removeprefix(f"{event.run_id}/"), name=event.tool, arguments="")
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

            if event.outcome == "failed":
                self._pen.fail(child.agent.span, "branch_failed", safe(event.error))

        self._forest.fell(event.branch, at)
        call_id, succeeded = event.branch.removeprefix(f"{event.run_id}/"), event.outcome == "completed"

        if node.group is not None and child.base is node.group.span:
            self._forest.leave_group(node, node.group, event.at, succeeded=succeeded)
        elif call_id in node.tools:
            result = ToolResult(call_id=call_id, text="", outcome="ok" if succeeded else "error")
            self._forest.end_tool(node, result, event.at)

    # ------------------------------------------------------------------------------------------ the history

    def _pruning(self, event: HistoryPruned, node: Node) -> None:
        if event.where == "history":
            self._prunings += 1
            self._pruned += event.before - event.after

        span = self._pen.start(names.PRUNE, event.at, of_pruning(event), parent=node.innermost)
        self._pen.end(span, event.at)

    # ------------------------------------------------------------------------------------------ the end

    def _paused(self, event: Paused, node: Node) -> None:
        self._stop = "paused"

    def _failed(self, event: RunFailed, node: Node) -> None:
        if event.run_id == self._state.run_id:
            self._stop, self._failure = "failed", event
        elif node.agent is not None:
            self._pen.fail(node.agent.span, event.error_type, safe(event.error))

    def _finished(self, event: RunFinished, node: Node) -> None:
        self._stop, self._pen.latest = event.stop_reason, self.root
        self.root.set_attributes(of_total(event.usage))

    def close(self, error: BaseException | None, at: float) -> None:
        """The run is over here: nothing is left open."""
        at = max(at, self._forest.last)
        stop = self._stop or ("interrupted" if error is not None else "completed")

        try:
            self._forest.fell(self._state.run_id, at, stop)
        finally:
            told: dict[str, Any] = {names.STOP_REASON: stop, names.PRUNINGS: self._prunings, names.PRUNED: self._pruned}
            self.root.set_attributes(told)

            if self._failure is not None:
                self._pen.fail(self.root, self._failure.error_type or "error", safe(self._failure.error))
            elif isinstance(error, Exception):
                self._pen.fail(self.root, type(error).__name__, safe(describe(error)))

            self._pen.end(self.root, at)


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
    Summarised: lambda spans, event, node: summarised(spans._pen, event, node),
    Compacted: lambda spans, event, node: compacted(spans._pen, event, node),
    CompactionFailed: lambda spans, event, node: compaction_failed(spans._pen, event, node),
    Paused: Spans._paused,
    RunFailed: Spans._failed,
    RunFinished: Spans._finished,
}
