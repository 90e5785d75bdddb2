"""The open spans of one run as a tree: one `RunSpans` for the run and for each of its branches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from crew.agents.crew import Crew
from crew.messages import ToolCall, ToolResult
from crew.runs.prepared import PreparedAgent, PreparedTool
from crew.runs.state import CallTools, Finished, RunBranches, RunState
from crew.secrets.patterns import redact
from crew.telemetry import names
from crew.telemetry.span_attributes import arguments_attribute, group_attributes, result_attribute
from crew.tools.toolset import TracedToolset

AttributeValue: TypeAlias = str | bool | int | float | Sequence[str]
Attributes: TypeAlias = Mapping[str, AttributeValue]

WriterSpan: TypeAlias = Any
"""A span of the writer's type, OpenTelemetry's or `TextSpan`; both satisfy `Span`."""

WriterLink: TypeAlias = Any
"""A link of the writer's type."""

MIN_SPAN_SECONDS = 2e-6
"""The length of a span for something instantaneous; a microsecond is left after rounding.

Backends treat a span without length as broken.
"""


class Span(Protocol):
    """The part of a span that span builders use directly."""

    def set_attribute(self, key: str, value: AttributeValue, /) -> None: ...

    def set_attributes(self, attributes: Attributes, /) -> None: ...

    def update_name(self, name: str, /) -> None: ...


class SpanWriter(Protocol):
    """Starts and ends spans with explicit parents and times; `last_span` is the span that was written last."""

    root: WriterSpan
    began: float
    last_span: WriterSpan | None

    def start(
        self,
        name: str,
        at: float,
        attributes: Attributes,
        *,
        parent: WriterSpan,
        client: bool = False,
        links: Sequence[WriterLink] = (),
    ) -> WriterSpan: ...

    def end(self, span: WriterSpan, at: float) -> None: ...

    def fail(self, span: WriterSpan, error_type: str, text: str = "") -> None: ...

    def link(self, span: WriterSpan, attributes: Attributes) -> WriterLink: ...

    def event(self, span: WriterSpan, name: str, at: float, attributes: Attributes) -> None: ...

    def ids(self, span: WriterSpan) -> tuple[str, str]:
        """The trace id and the span id."""

    def attach(self, span: WriterSpan) -> object:
        """Make the span the current one; returns the token for `detach`."""

    def detach(self, token: object) -> None: ...


@dataclass(slots=True, kw_only=True, eq=False)
class OpenSpan:
    """A span that has not ended.

    `error_type` is the class of what the call raised. A request span is `early` until the event of its request arrives,
    and keeps a `failure` until then. `open_branches` and `succeeded` count the branches of a group's span.
    """

    span: Span
    began: float
    name: str = ""
    error_type: str = ""
    early: bool = False
    failure: tuple[BaseException, float] | None = None
    open_branches: int = 0
    succeeded: int | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class RunSpans:
    """The open spans of one run or branch, and the span that they are below."""

    run_id: str
    parent: Span
    agent: OpenSpan | None = None
    chat: OpenSpan | None = None
    group: OpenSpan | None = None
    compact: OpenSpan | None = None
    summary: OpenSpan | None = None
    tools: dict[str, OpenSpan] = field(default_factory=dict)
    calls: dict[str, ToolCall] = field(default_factory=dict)
    links: list[WriterLink] = field(default_factory=list)
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
        """The span of the open model request, if there is one."""
        request = self.chat or self.summary
        return request.span if request is not None else self.innermost

    def tool_call(self, id: str, name: str) -> ToolCall:
        """The call with this id; its arguments are known only if content is captured."""
        return self.calls.get(id) or ToolCall(id=id, name=name, arguments="")

    def instant_start(self, at: float) -> float:
        """The start of a span for something instantaneous that ends now."""
        return max(self.agent.began, at - MIN_SPAN_SECONDS) if self.agent is not None else at - MIN_SPAN_SECONDS

    def pop_open_spans(self) -> Iterator[OpenSpan]:
        """Every open span, inner ones first; afterwards none is open."""
        open_spans = (self.chat, self.summary, self.compact, *self.tools.values(), self.agent, self.group)
        yield from (open_span for open_span in open_spans if open_span is not None)
        self.chat = self.summary = self.compact = self.agent = self.group = None
        self.tools.clear()


class SpanTree:
    """The open spans of a run and of its active branches, by run id; starts and ends each kind of span."""

    def __init__(self, writer: SpanWriter, crew: Crew, state: RunState, *, capture: bool) -> None:
        self.writer, self.root, self.capture, self.last_event_at = writer, writer.root, capture, writer.began
        self._conversation_id = state.conversation_id
        self._groups = {group.name: group for group in crew.groups}
        self._toolsets = {one.name: one for agent in crew.agents_by_name.values() for one in agent.toolsets}
        self._toolset_names = {(agent, tool.name): tool.toolset for agent, tool in _prepared_tools(state)}
        self.by_run: dict[str, RunSpans] = {}
        self.add_run(state.run_id, writer.root, writer.began)

    def add_run(self, run_id: str, parent: Span, at: float) -> None:
        """Place the spans of a run or branch below this span."""
        self.by_run[run_id] = RunSpans(run_id=run_id, parent=parent, last_event_at=at, previous_event_at=at)

    def run_spans(self, run_id: str) -> RunSpans:
        """The spans of a run; an unknown run is placed below the root."""
        if run_id not in self.by_run:
            self.add_run(run_id, self.root, self.last_event_at)

        return self.by_run[run_id]

    # ------------------------------------------------------------------------------------------ agents

    def agent(self, run: RunSpans, agent: str, at: float) -> OpenSpan:
        """The span of the active agent; started here if the run resumed while the agent was active."""
        if run.agent is None:
            attributes = {
                names.OPERATION: names.INVOKE_AGENT,
                names.AGENT_NAME: agent,
                names.CONVERSATION_ID: self._conversation_id,
                names.RUN_ID: run.run_id,
            }
            links, run.links = run.links, []
            span = self.writer.start(f"{names.INVOKE_AGENT} {agent}", at, attributes, parent=run.parent, links=links)
            run.agent = OpenSpan(span=span, began=at, name=agent)

        return run.agent

    def end_agent(self, run: RunSpans, at: float) -> None:
        """End the span of the active agent."""
        if run.agent is not None:
            self.writer.end(run.agent.span, at)
            run.agent = None

    # ------------------------------------------------------------------------------------------ calls

    def prepared(self, agent: str, prepared: PreparedAgent) -> None:
        """Remember which toolsets the tools of an agent belong to."""
        self._toolset_names |= {(agent, tool.name): tool.toolset for tool in prepared.tools}

    def _toolset_attributes(self, agent: str, tool: str) -> Attributes:
        if (name := self._toolset_names.get((agent, tool))) is None:
            return {}

        toolset = self._toolsets.get(name)
        added: Attributes = toolset.span_attributes(tool) if isinstance(toolset, TracedToolset) else {}
        return {names.TOOLSET: name, **added}

    def tool(self, run: RunSpans, agent: str, at: float, call: ToolCall, kind: str) -> OpenSpan:
        """Start the span of a tool call."""
        name = redact(call.name)
        attributes = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: name,
            names.TOOL_TYPE: kind,
            names.TOOL_CALL_ID: redact(call.id),
            names.AGENT_NAME: agent,
            **self._toolset_attributes(agent, call.name),
        }

        if self.capture and call.arguments:
            attributes[names.TOOL_ARGUMENTS] = arguments_attribute(call.arguments)

        parent = self.agent(run, agent, at).span
        span = self.writer.start(f"{names.EXECUTE_TOOL} {name}", at, attributes, parent=parent)
        run.tools[call.id] = OpenSpan(span=span, began=at, name=call.name)
        return run.tools[call.id]

    def end_tool(self, run: RunSpans, result: ToolResult, at: float) -> None:
        """End the span of a tool call."""
        open_span = run.tools.pop(result.call_id)

        if self.capture and result.text:
            open_span.span.set_attribute(names.TOOL_RESULT, result_attribute(result))

        if result.outcome not in ("ok", "retry"):
            # No error text: it is content that the model reads, and it may quote anything.
            self.writer.fail(open_span.span, open_span.error_type or f"tool_{result.outcome}")

        self.writer.end(open_span.span, at)

    # ------------------------------------------------------------------------------------------ groups

    def group(self, run: RunSpans, name: str, at: float) -> OpenSpan:
        """The span of a group, with one more open branch."""
        if run.group is None:
            attributes = group_attributes(self._groups.get(name), name) | {names.RUN_ID: run.run_id}
            links, run.links = run.links, []
            span = self.writer.start(f"{names.PARALLEL} {name}", at, attributes, parent=run.parent, links=links)
            run.group = OpenSpan(span=span, began=at, name=name, succeeded=0)

        run.group.open_branches += 1
        group = self._groups.get(name)

        if group is not None and group.items is not None:  # its branches are known only when they have started
            run.group.span.set_attribute(names.BRANCHES, run.group.open_branches)

        return run.group

    def leave_group(self, run: RunSpans, group: OpenSpan, at: float, *, succeeded: bool) -> None:
        """Count a branch that ended; the last one ends the group's span, to which the next agent's span links."""
        group.open_branches -= 1
        group.succeeded = (group.succeeded or 0) + succeeded

        if not group.open_branches:
            group.span.set_attribute(names.SUCCEEDED, group.succeeded)
            self.writer.end(group.span, at)
            run.links.append(self.writer.link(group.span, {names.LINK_TYPE: "route"}))
            run.group = None

    # ------------------------------------------------------------------------------------------ resume and end

    def restore(self, state: RunState, at: float) -> None:
        """Reopen the spans that were open when the run stopped: groups, and calls of agents as tools."""
        run = self.run_spans(state.run_id)

        match state.next:
            case RunBranches(group=group, branch_keys=keys):
                for key in keys:
                    self.add_run(f"{state.run_id}/{key}", self.group(run, group, at).span, at)
            case CallTools(calls=calls):
                for open_call in (open_call for open_call in calls if open_call.status == "child"):
                    parent = self.tool(run, state.agent, at, open_call.call, "agent").span
                    self.add_run(f"{state.run_id}/{open_call.child_key}", parent, at)
            case _:
                pass

        for child in state.children.values():
            self.restore(child, at)

    def end_subtree(self, run_id: str, at: float, stop_reason: str = "") -> None:
        """End the spans of a run and its branches, innermost first; raise the first error when all have ended."""
        run_ids = [id for id in self.by_run if id == run_id or id.startswith(f"{run_id}/")]
        failures: list[Exception] = []

        for id in sorted(run_ids, key=len, reverse=True):
            # The run or branch itself failed; the branches below it were cancelled.
            reason = "cancelled" if stop_reason == "failed" and "/" in id and id != run_id else stop_reason

            for open_span in self.by_run.pop(id).pop_open_spans():
                try:
                    self._end_early(open_span, at, reason)
                except Exception as error:  # the observer boundary: a span processor's error must not leave spans open
                    failures.append(error)

        if failures:
            raise failures[0]

    def _end_early(self, open_span: OpenSpan, at: float, stop_reason: str) -> None:
        if stop_reason not in ("", "completed"):
            open_span.span.set_attribute(names.STOP_REASON, stop_reason)

        if open_span.succeeded is not None:
            open_span.span.set_attribute(names.SUCCEEDED, open_span.succeeded)

        self.writer.end(open_span.span, max(at, open_span.began))

    def end_finished(self, state: RunState) -> None:
        """End the spans of branches that finished, at their last event, though the group still waits for others."""
        for child in state.children.values():
            self.end_finished(child)
            self._end_finished_child(child)

    def _end_finished_child(self, child: RunState) -> None:
        run, end = self.by_run.get(child.run_id), child.next
        parent = self.by_run.get(child.run_id.rpartition("/")[0])

        if run is None or run.agent is None or not isinstance(end, Finished):
            return

        run.agent.span.set_attribute(names.BRANCH_OUTCOME, end.stop_reason)

        if end.stop_reason == "failed" and not run.failed:
            self.writer.fail(run.agent.span, "branch_failed", redact(end.error))

        if end.stop_reason == "completed" and parent is not None and parent.group is not None:
            parent.group.succeeded = (parent.group.succeeded or 0) + 1

        at = max(run.last_event_at, run.agent.began) if run.is_idle else self.last_event_at
        self.end_subtree(child.run_id, at, "" if run.is_idle else end.stop_reason)

    def fail_open_groups(self, error_type: str, text: str) -> None:
        """Mark the open groups of a failed run as failed, and their unfinished branches as cancelled."""
        for run in self.by_run.values():
            if run.group is not None:
                self.writer.fail(run.group.span, error_type, text)

            if "/" in run.run_id and run.agent is not None:
                run.agent.span.set_attribute(names.BRANCH_OUTCOME, "failed" if run.failed else "cancelled")


def _prepared_tools(state: RunState) -> Iterator[tuple[str, PreparedTool]]:
    """The tools of toolsets in a run that is resumed, and in its children, with their agents."""
    yield from ((agent, tool) for agent, prepared in state.prepared.items() for tool in prepared.tools)

    for child in state.children.values():
        yield from _prepared_tools(child)
