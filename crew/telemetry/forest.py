"""The open spans of a run and its branches: opened and ended here, the inner ones before the outer ones."""

from __future__ import annotations

from typing import Any

from crew.agents import Crew
from crew.messages import ToolCall, ToolResult
from crew.runs import CallTools, Finished, RunBranches, RunState
from crew.telemetry import names
from crew.telemetry.attributes import of_group
from crew.telemetry.content import of_arguments, of_result
from crew.telemetry.nodes import Node, Open, Pen, Span
from crew.telemetry.redaction import safe


class Forest:
    """A node for the run and one for each branch under way; what can be open in them, by kind."""

    def __init__(self, pen: Pen, crew: Crew, state: RunState, *, capture: bool) -> None:
        self.pen, self.root, self.capture, self.last = pen, pen.root, capture, pen.began
        self._conversation_id = state.conversation_id
        self._groups = {group.name: group for group in crew.groups}
        self.nodes: dict[str, Node] = {}
        self.plant(state.run_id, pen.root, pen.began)

    def plant(self, run_id: str, base: Span, at: float) -> None:
        """A run, or a branch, stands under this span from now on."""
        self.nodes[run_id] = Node(run_id=run_id, base=base, last=at, before=at)

    def node(self, run_id: str) -> Node:
        """Where this run stands; one that nobody announced stands under the root."""
        if run_id not in self.nodes:
            self.plant(run_id, self.root, self.last)

        return self.nodes[run_id]

    # ------------------------------------------------------------------------------------------ agents

    def agent(self, node: Node, agent: str, at: float) -> Open:
        """The open span of who works here; made now if the run came back in the middle of the work."""
        if node.agent is None:
            told = {
                names.OPERATION: names.INVOKE_AGENT,
                names.AGENT_NAME: agent,
                names.CONVERSATION_ID: self._conversation_id,
                names.RUN_ID: node.run_id,
            }
            links, node.links = node.links, []
            span = self.pen.start(f"{names.INVOKE_AGENT} {agent}", at, told, parent=node.base, links=links)
            node.agent = Open(span=span, began=at, name=agent)

        return node.agent

    def end_agent(self, node: Node, at: float) -> None:
        """Whoever worked here is done."""
        if node.agent is not None:
            self.pen.end(node.agent.span, at)
            node.agent = None

    # ------------------------------------------------------------------------------------------ calls

    def tool(self, node: Node, agent: str, at: float, call: ToolCall, kind: str) -> Open:
        """A call begins."""
        name = safe(call.name)
        told: dict[str, Any] = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: name,
            names.TOOL_TYPE: kind,
            names.TOOL_CALL_ID: safe(call.id),
            names.AGENT_NAME: agent,
        }

        if self.capture and call.arguments:
            told[names.TOOL_ARGUMENTS] = of_arguments(call.arguments)

        parent = self.agent(node, agent, at).span
        span = self.pen.start(f"{names.EXECUTE_TOOL} {name}", at, told, parent=parent)
        node.tools[call.id] = Open(span=span, began=at, name=call.name)
        return node.tools[call.id]

    def end_tool(self, node: Node, result: ToolResult, at: float) -> None:
        """A call is answered."""
        open = node.tools.pop(result.call_id)

        if self.capture and result.text:
            open.span.set_attribute(names.TOOL_RESULT, of_result(result))

        if result.outcome == "error":
            # The words of a tool's error are content: the model reads them, and they may quote anything.
            self.pen.fail(open.span, open.facts.get("error", "tool_error"))

        self.pen.end(open.span, at)

    # ------------------------------------------------------------------------------------------ groups

    def group(self, node: Node, name: str, at: float) -> Open:
        """The open span of a group, with one branch more below it."""
        if node.group is None:
            told = of_group(self._groups.get(name), name) | {names.RUN_ID: node.run_id}
            links, node.links = node.links, []
            span = self.pen.start(f"{names.PARALLEL} {name}", at, told, parent=node.base, links=links)
            node.group = Open(span=span, began=at, name=name, facts={"open": 0, "succeeded": 0})

        node.group.facts["open"] += 1
        return node.group

    def leave_group(self, node: Node, group: Open, at: float, *, succeeded: bool) -> None:
        """A branch has ended; with the last one the group does, and leads on to whoever comes next."""
        group.facts["open"] -= 1
        group.facts["succeeded"] += succeeded

        if not group.facts["open"]:
            group.span.set_attribute(names.SUCCEEDED, group.facts["succeeded"])
            self.pen.end(group.span, at)
            node.links.append(self.pen.link(group.span, {names.LINK: "route"}))
            node.group = None

    # ------------------------------------------------------------------------------------------ coming back, ending

    def regrow(self, state: RunState, at: float) -> None:
        """What was open when the run stopped is open again: groups, and calls that other agents work on."""
        node = self.node(state.run_id)

        match state.next:
            case RunBranches(group=group, branches=keys):
                for key in keys:
                    self.plant(f"{state.run_id}/{key}", self.group(node, group, at).span, at)
            case CallTools(calls=calls):
                for open in (open for open in calls if open.status == "child"):
                    base = self.tool(node, state.agent, at, open.call, "agent").span
                    self.plant(f"{state.run_id}/{open.call.id}", base, at)
            case _:
                pass

        for child in state.children.values():
            self.regrow(child, at)

    def fell(self, run_id: str, at: float, why: str = "") -> None:
        """End the spans of a run and of all below it, the innermost first; the first failure is raised at the end."""
        below = [id for id in self.nodes if id == run_id or id.startswith(f"{run_id}/")]
        failures: list[Exception] = []

        for id in sorted(below, key=len, reverse=True):
            node = self.nodes.pop(id)
            # What fails is a branch, or the run; the others were cut off.
            told = "cancelled" if why == "failed" and "/" in id and id != run_id else why

            for open in node.take():
                try:
                    if told not in ("", "completed"):
                        open.span.set_attribute(names.STOP_REASON, told)

                    if "succeeded" in open.facts:
                        open.span.set_attribute(names.SUCCEEDED, open.facts["succeeded"])

                    self.pen.end(open.span, max(at, open.began))
                except Exception as error:  # the observer boundary: one processor's failure must not leave others open
                    failures.append(error)

        if failures:
            raise failures[0]

    def settle(self, state: RunState) -> None:
        """A branch that has ended did so with its last event, whenever those that wait for it hear of it."""
        for child in state.children.values():
            self.settle(child)
            self._settle(child)

    def _settle(self, child: RunState) -> None:
        node, end = self.nodes.get(child.run_id), child.next
        above = self.nodes.get(child.run_id.rpartition("/")[0])

        if node is None or node.agent is None or not isinstance(end, Finished):
            return

        node.agent.span.set_attribute(names.BRANCH_OUTCOME, end.stop_reason)

        if end.stop_reason == "failed" and not node.failed:
            self.pen.fail(node.agent.span, "branch_failed", safe(end.error))

        if end.stop_reason == "completed" and above is not None and above.group is not None:
            above.group.facts["succeeded"] += 1

        at = max(node.last, node.agent.began) if node.idle else self.last
        self.fell(child.run_id, at, "" if node.idle else end.stop_reason)

    def cut_off(self, kind: str, text: str) -> None:
        """The run has failed, and with it the groups that are open; what still worked in them was cut off."""
        for node in self.nodes.values():
            if node.group is not None:
                self.pen.fail(node.group.span, kind, text)

            if "/" in node.run_id and node.agent is not None:
                node.agent.span.set_attribute(names.BRANCH_OUTCOME, "failed" if node.failed else "cancelled")
