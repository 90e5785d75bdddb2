"""The open spans of one run, as a tree: for the run and each of its branches, who works and on what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from crew.agents.crew import Crew
from crew.messages import ToolCall, ToolResult
from crew.runs.state import CallTools, Finished, RunBranches, RunState
from crew.secrets.patterns import redact
from crew.telemetry import names
from crew.telemetry.span_attributes import arguments_attribute, group_attributes, result_attribute

Attributes = Mapping[str, Any]

MIN_SPAN_SECONDS = 2e-6
"""What has no length of its own is given this one, of which a microsecond is left when it is cut to those.

Backends take a span of no length for a broken one.
"""


class Span(Protocol):
    """What is started, told things, and ended."""

    def set_attribute(self, key: str, value: Any, /) -> None: ...

    def set_attributes(self, attributes: Attributes, /) -> None: ...

    def update_name(self, name: str, /) -> None: ...


class SpanWriter(Protocol):
    """Starts and ends spans, with parents and times of their own; `latest` is the one that it wrote of last."""

    root: Any
    began: float
    last_span: Any

    def start(
        self, name: str, at: float, told: Attributes, *, parent: Any, client: bool = False, links: Sequence[Any] = ()
    ) -> Any: ...

    def end(self, span: Any, at: float) -> None: ...

    def fail(self, span: Any, kind: str, text: str = "") -> None: ...

    def link(self, span: Any, told: Attributes) -> Any: ...

    def event(self, span: Any, name: str, at: float, told: Attributes) -> None: ...

    def ids(self, span: Any) -> tuple[str, str]:
        """The span's trace and its own id."""

    def attach(self, span: Any) -> Any:
        """Make it the current one; returns what `detach` takes."""

    def detach(self, token: Any) -> None: ...


@dataclass(slots=True, kw_only=True, eq=False)
class OpenSpan:
    """A span that has not ended."""

    span: Span
    began: float
    name: str = ""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class RunSpans:
    """One run or branch: the span that it stands under, its agent's, and those of what is under way."""

    run_id: str
    parent: Span
    agent: OpenSpan | None = None
    chat: OpenSpan | None = None
    group: OpenSpan | None = None
    compact: OpenSpan | None = None
    summary: OpenSpan | None = None
    tools: dict[str, OpenSpan] = field(default_factory=dict)
    calls: dict[str, ToolCall] = field(default_factory=dict)
    links: list[Any] = field(default_factory=list)
    last_event_at: float = 0.0
    previous_event_at: float = 0.0
    failed: bool = False

    @property
    def is_idle(self) -> bool:
        return self.chat is None and self.compact is None and not self.tools and self.group is None

    @property
    def innermost(self) -> Span:
        return self.agent.span if self.agent is not None else self.parent

    @property
    def request_span(self) -> Span:
        """The question that is under way, if one is."""
        asked = self.chat or self.summary
        return asked.span if asked is not None else self.innermost

    def tool_call(self, id: str, name: str) -> ToolCall:
        """The call of this id, with its arguments where those may be told."""
        return self.calls.get(id) or ToolCall(id=id, name=name, arguments="")

    def instant_start(self, at: float) -> float:
        """When something that ends now and takes no time began."""
        return max(self.agent.began, at - MIN_SPAN_SECONDS) if self.agent is not None else at - MIN_SPAN_SECONDS

    def pop_open_spans(self) -> Iterator[OpenSpan]:
        """Everything that is open here, the inner ones first; none of it is open here any more."""
        found = (self.chat, self.summary, self.compact, *self.tools.values(), self.agent, self.group)
        yield from (open for open in found if open is not None)
        self.chat = self.summary = self.compact = self.agent = self.group = None
        self.tools.clear()


class SpanTree:
    """A node for the run and one for each branch under way; what can be open in them, by kind."""

    def __init__(self, pen: SpanWriter, crew: Crew, state: RunState, *, capture: bool) -> None:
        self.writer, self.root, self.capture, self.last = pen, pen.root, capture, pen.began
        self._conversation_id = state.conversation_id
        self._groups = {group.name: group for group in crew.groups}
        self.nodes: dict[str, RunSpans] = {}
        self.add_run(state.run_id, pen.root, pen.began)

    def add_run(self, run_id: str, base: Span, at: float) -> None:
        """A run, or a branch, stands under this span from now on."""
        self.nodes[run_id] = RunSpans(run_id=run_id, parent=base, last_event_at=at, previous_event_at=at)

    def run_spans(self, run_id: str) -> RunSpans:
        """Where this run stands; one that nobody announced stands under the root."""
        if run_id not in self.nodes:
            self.add_run(run_id, self.root, self.last)

        return self.nodes[run_id]

    # ------------------------------------------------------------------------------------------ agents

    def agent(self, node: RunSpans, agent: str, at: float) -> OpenSpan:
        """The open span of who works here; made now if the run came back in the middle of the work."""
        if node.agent is None:
            told = {
                names.OPERATION: names.INVOKE_AGENT,
                names.AGENT_NAME: agent,
                names.CONVERSATION_ID: self._conversation_id,
                names.RUN_ID: node.run_id,
            }
            links, node.links = node.links, []
            span = self.writer.start(f"{names.INVOKE_AGENT} {agent}", at, told, parent=node.parent, links=links)
            node.agent = OpenSpan(span=span, began=at, name=agent)

        return node.agent

    def end_agent(self, node: RunSpans, at: float) -> None:
        """Whoever worked here is done."""
        if node.agent is not None:
            self.writer.end(node.agent.span, at)
            node.agent = None

    # ------------------------------------------------------------------------------------------ calls

    def tool(self, node: RunSpans, agent: str, at: float, call: ToolCall, kind: str) -> OpenSpan:
        """A call begins."""
        name = redact(call.name)
        told: dict[str, Any] = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: name,
            names.TOOL_TYPE: kind,
            names.TOOL_CALL_ID: redact(call.id),
            names.AGENT_NAME: agent,
        }

        if self.capture and call.arguments:
            told[names.TOOL_ARGUMENTS] = arguments_attribute(call.arguments)

        parent = self.agent(node, agent, at).span
        span = self.writer.start(f"{names.EXECUTE_TOOL} {name}", at, told, parent=parent)
        node.tools[call.id] = OpenSpan(span=span, began=at, name=call.name)
        return node.tools[call.id]

    def end_tool(self, node: RunSpans, result: ToolResult, at: float) -> None:
        """A call is answered."""
        open = node.tools.pop(result.call_id)

        if self.capture and result.text:
            open.span.set_attribute(names.TOOL_RESULT, result_attribute(result))

        if result.outcome == "error":
            # The words of a tool's error are content: the model reads them, and they may quote anything.
            self.writer.fail(open.span, open.details.get("error", "tool_error"))

        self.writer.end(open.span, at)

    # ------------------------------------------------------------------------------------------ groups

    def group(self, node: RunSpans, name: str, at: float) -> OpenSpan:
        """The open span of a group, with one branch more below it."""
        if node.group is None:
            told = group_attributes(self._groups.get(name), name) | {names.RUN_ID: node.run_id}
            links, node.links = node.links, []
            span = self.writer.start(f"{names.PARALLEL} {name}", at, told, parent=node.parent, links=links)
            node.group = OpenSpan(span=span, began=at, name=name, details={"open": 0, "succeeded": 0})

        node.group.details["open"] += 1
        return node.group

    def leave_group(self, node: RunSpans, group: OpenSpan, at: float, *, succeeded: bool) -> None:
        """A branch has ended; with the last one the group does, and leads on to whoever comes next."""
        group.details["open"] -= 1
        group.details["succeeded"] += succeeded

        if not group.details["open"]:
            group.span.set_attribute(names.SUCCEEDED, group.details["succeeded"])
            self.writer.end(group.span, at)
            node.links.append(self.writer.link(group.span, {names.LINK_TYPE: "route"}))
            node.group = None

    # ------------------------------------------------------------------------------------------ coming back, ending

    def restore(self, state: RunState, at: float) -> None:
        """What was open when the run stopped is open again: groups, and calls that other agents work on."""
        node = self.run_spans(state.run_id)

        match state.next:
            case RunBranches(group=group, branch_keys=keys):
                for key in keys:
                    self.add_run(f"{state.run_id}/{key}", self.group(node, group, at).span, at)
            case CallTools(calls=calls):
                for open in (open for open in calls if open.status == "child"):
                    base = self.tool(node, state.agent, at, open.call, "agent").span
                    self.add_run(f"{state.run_id}/{open.call.id}", base, at)
            case _:
                pass

        for child in state.children.values():
            self.restore(child, at)

    def end_subtree(self, run_id: str, at: float, why: str = "") -> None:
        """End the spans of a run and of all below it, the innermost first; the first failure is raised at the end."""
        below = [id for id in self.nodes if id == run_id or id.startswith(f"{run_id}/")]
        failures: list[Exception] = []

        for id in sorted(below, key=len, reverse=True):
            node = self.nodes.pop(id)
            # What fails is a branch, or the run; the others were cut off.
            told = "cancelled" if why == "failed" and "/" in id and id != run_id else why

            for open in node.pop_open_spans():
                try:
                    if told not in ("", "completed"):
                        open.span.set_attribute(names.STOP_REASON, told)

                    if "succeeded" in open.details:
                        open.span.set_attribute(names.SUCCEEDED, open.details["succeeded"])

                    self.writer.end(open.span, max(at, open.began))
                except Exception as error:  # the observer boundary: one processor's failure must not leave others open
                    failures.append(error)

        if failures:
            raise failures[0]

    def end_finished(self, state: RunState) -> None:
        """A branch that has ended did so with its last event, whenever those that wait for it hear of it."""
        for child in state.children.values():
            self.end_finished(child)
            self._end_finished_child(child)

    def _end_finished_child(self, child: RunState) -> None:
        node, end = self.nodes.get(child.run_id), child.next
        above = self.nodes.get(child.run_id.rpartition("/")[0])

        if node is None or node.agent is None or not isinstance(end, Finished):
            return

        node.agent.span.set_attribute(names.BRANCH_OUTCOME, end.stop_reason)

        if end.stop_reason == "failed" and not node.failed:
            self.writer.fail(node.agent.span, "branch_failed", redact(end.error))

        if end.stop_reason == "completed" and above is not None and above.group is not None:
            above.group.details["succeeded"] += 1

        at = max(node.last_event_at, node.agent.began) if node.is_idle else self.last
        self.end_subtree(child.run_id, at, "" if node.is_idle else end.stop_reason)

    def fail_open_groups(self, kind: str, text: str) -> None:
        """The run has failed, and with it the groups that are open; what still worked in them was cut off."""
        for node in self.nodes.values():
            if node.group is not None:
                self.writer.fail(node.group.span, kind, text)

            if "/" in node.run_id and node.agent is not None:
                node.agent.span.set_attribute(names.BRANCH_OUTCOME, "failed" if node.failed else "cancelled")
