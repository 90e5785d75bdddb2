"""From the calls of a reply to their results: tools, agents called as tools, and handoffs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from crew.agents.agent import AgentTool, Handoff
from crew.agents.handoff_tools import parse_payload, passed_text
from crew.fast_replace import fast_replace
from crew.history.handoff_filters import apply_handoff
from crew.history.history import History
from crew.history.tokens import TOKENS_PER_MESSAGE, estimate_message_tokens, estimate_tokens
from crew.history.view import View
from crew.message_rules.profiles import STRICTEST
from crew.messages import (
    AssistantMessage,
    ProviderData,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolResult,
    Transcript,
    UserMessage,
)
from crew.runs.events import AgentStarted, BranchStarted, CallsDeclined, HandedOff, ToolReturned
from crew.runs.open_calls import OpenCall
from crew.runs.state import AskModel, CallInDoubt, CallTools, CheckInput, Finished, HandoffPayload, RunBranches
from crew.tools.schema import InvalidArguments
from crew.tools.tool import truncate_middle
from crew.transitions.activation import activate_agent
from crew.transitions.before_request import ask_model_next
from crew.transitions.branches import (
    MAX_JOIN_CHARS,
    archive_children,
    child_output,
    evaluate_group,
    new_child,
    start_branches,
)
from crew.transitions.checks import agent_checks, pending_checks
from crew.transitions.choices import group_items, payload_result
from crew.transitions.plan import Toolkit
from crew.transitions.shared_limits import share_limits, warn_of_small_share
from crew.transitions.step import USER_ERRORS, Step


def _start_called_agent(step: Step, open: OpenCall, agent_tool: AgentTool, siblings: int) -> None:
    """Start the run of an agent that is called as a tool, with the request as its goal."""
    call = open.call
    request = _agent_request(open.effective_call)

    if request is None:
        text = 'The arguments are not valid: expected {"request": "…"} with a text that is not blank.'
        result = ToolResult(call_id=call.id, name=call.name, text=text, outcome="error")
        step.set_call(fast_replace(open, status="done", result=result))
        return

    name, limits = agent_tool.agent.name, share_limits(step, siblings)
    warn_of_small_share(step, limits, [name] * siblings, f"agents that {step.agent!r} calls")
    child = new_child(step, open.child_key, name, limits)
    child = fast_replace(child, history=History(goal=f"{child.run_id}:0"), transcript=Transcript(), billed_until=0)
    step.emit(BranchStarted, branch=child.run_id, tool=call.name, call_id=call.id)
    started = step.child_step(child)
    started.emit(AgentStarted)
    goal, checks = (
        UserMessage(request, id=started.history.goal, time=step.event.at),
        agent_checks(step.plan, started.agent),
    )
    started.unchecked_input = tuple(one.name for one in checks.parallel)

    if checks.input:
        names, tokens = tuple(one.name for one in checks.input), estimate_message_tokens(goal)
        started.next = CheckInput(guardrails=names, messages=(goal,), tokens=(tokens,))
    else:
        started.append(goal)
        activate_agent(started, checks_input=False)

    step.set_child(open.child_key, started.freeze())
    step.set_call(fast_replace(open, status="child"))

    if isinstance(started.next, Finished):
        _finish_called_agent(step, open.child_key)


def _agent_request(call: ToolCall) -> str | None:
    try:
        request = json.loads(call.arguments)["request"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None

    return request if isinstance(request, str) and request.strip() else None


def _finish_called_agent(step: Step, key: str) -> None:
    """Make the output of a called agent that has finished the result of its call."""
    open = next(open for open in step.open_calls.calls if open.child_key == key)
    text, is_complete = child_output(step.children[key])
    result = ToolResult(
        call_id=open.call.id,
        name=open.call.name,
        text=truncate_middle(text, MAX_JOIN_CHARS),
        outcome="ok" if is_complete else "error",
    )
    archive_children(step, [key])
    step.count_tool(open.call.name, is_error=not is_complete)
    step.set_call(fast_replace(open, status="done", result=result))


def open_calls(step: Step, reply: AssistantMessage, tokens: int) -> None:
    """Append the reply with its accepted calls, answer handoffs at once, and start agents that are called as tools."""
    reply = _with_valid_ids(step, reply)
    toolkit = step.plan.toolkits[step.agent]
    accepted = _accepted_calls(step, reply.calls, toolkit)
    keys = {call.id: f"{step.run_id}:{len(step.transcript)}.{index}" for index, call in enumerate(reply.calls)}
    declined = tuple(call.name for call in reply.calls if call not in accepted)
    shown = reply

    if declined:
        step.emit(CallsDeclined, calls=declined, accepted=len(accepted))
        ids = {call.id for call in accepted}
        shown = fast_replace(
            reply, calls=accepted, provider_data=_without_items_of(reply.provider_data, reply.calls, ids)
        )

    step.append(reply, tokens, shown=shown)
    handoff_call_id, results = _choose_handoff(step, accepted, toolkit)
    calls = tuple(_open_call(call, keys[call.id], results.get(call.id)) for call in accepted)
    step.next = CallTools(calls=calls, handoff_call_id=handoff_call_id, declined=declined)
    start_called_agents(step)
    finish_if_all_returned(step)


def start_called_agents(step: Step) -> None:
    """Start the agents that are called as tools and may start: guardrails may have to check their calls first."""
    if not isinstance(step.next, CallTools):
        return

    agents = step.plan.toolkits[step.agent].agents
    calls = [open for open in step.next.calls if open.call.name in agents]

    for open in calls:
        if open.status == "ready" and not pending_checks(step.plan, step.agent, open):
            _start_called_agent(step, open, agents[open.call.name], len(calls))


def _open_call(call: ToolCall, key: str, result: ToolResult | None) -> OpenCall:
    return OpenCall(call=call, key=key, status="ready" if result is None else "done", result=result)


def _with_valid_ids(step: Step, reply: AssistantMessage) -> AssistantMessage:
    """The reply with new ids for calls that reuse one, and with ids and names that every provider accepts."""
    shown = (entry.message for entry in step.history.entries)
    used = {call.id for message in shown if isinstance(message, AssistantMessage) for call in message.calls}
    calls: list[ToolCall] = []
    position = len(step.transcript)

    for number, call in enumerate(reply.calls):
        id, name = call.id, _valid_tool_name(call.name)

        if id in used or not STRICTEST.accepts_call_id(id):
            id = f"call_{position}_{number}"

            while id in used:
                id += "x"

        calls.append(call if (id, name) == (call.id, call.name) else fast_replace(call, id=id, name=name))
        used.add(id)

    same = tuple(calls) == reply.calls
    return reply if same else fast_replace(reply, calls=tuple(calls), provider_data=None)


def _valid_tool_name(name: str) -> str:
    """A name that every provider accepts; a changed one must not become the name of an existing tool."""
    fit = STRICTEST.fit_tool_name(name)
    return name if fit == name else STRICTEST.fit_tool_name(f"unknown_{fit}")


def _accepted_calls(step: Step, calls: tuple[ToolCall, ...], toolkit: Toolkit) -> tuple[ToolCall, ...]:
    """The first calls, as many as fit beside the mandatory messages; the first handoff is always among them."""
    if len(calls) == 1:
        return calls  # one always fits

    plan = step.plan
    view_summary = step.agent in plan.view_summarizers
    own = [policy.options.explicit_limit for policy in plan.view_policies.get(step.agent, ())]
    own = [None if limit is None else limit - view_summary for limit in own]
    bound = None if plan.budget.limit is None else plan.budget.limit - (plan.options.summarizes or view_summary)
    bounds = [size for size in (bound, step.parameters.max_history_size, *own) if size is not None]
    systems = {entry.message.text for entry in step.history.entries if isinstance(entry.message, SystemMessage)}
    room = max(1, min([step.limits.tool_calls_per_turn, *(size - len(systems) - 2 for size in bounds)]))
    first = next((index for index, call in enumerate(calls) if call.name in toolkit.handoffs), 0)
    return calls[:room] if first < room else (*calls[: room - 1], calls[first])


def _without_items_of(data: ProviderData | None, calls: Sequence[ToolCall], kept: set[str]) -> ProviderData | None:
    gone = {call.id for call in calls} - kept
    return data and fast_replace(data, items=tuple(item for item in data.items if item.get("call_id") not in gone))


def _choose_handoff(step: Step, calls: Sequence[ToolCall], toolkit: Toolkit) -> tuple[str, dict[str, ToolResult]]:
    """The id of the call that hands the work off (the first valid one), and a result for every handoff call.

    A handoff with `on_handoff` has no result before that function has returned, unless it can't happen.
    """
    handoff_call_id = ""
    results: dict[str, ToolResult] = {}

    for call in calls:
        if call.name not in toolkit.handoffs:
            continue

        problem = _payload_problem(toolkit.handoffs[call.name], call)

        if not problem and handoff_call_id:
            problem = "Not done: a reply can hand off once, and another handoff came first."

        handoff_call_id = handoff_call_id or ("" if problem else call.id)

        if not problem and call.name in toolkit.tools and not _is_at_handoff_limit(step):
            continue

        text = problem or passed_text(toolkit.handoffs[call.name])
        outcome: Literal["ok", "error"] = "error" if problem else "ok"
        results[call.id] = ToolResult(call_id=call.id, name=call.name, text=text, outcome=outcome)

    return handoff_call_id, results


def _payload_problem(handoff: Handoff, call: ToolCall) -> str:
    try:
        json.loads(call.arguments or "{}")
        parse_payload(handoff.payload, call.arguments)
    except InvalidArguments as error:
        return str(error)
    except ValueError as error:
        return str(InvalidArguments(str(error)))

    return ""


def on_tool_returned(step: Step, event: ToolReturned) -> None:
    """A tool call returned."""
    record_result(step, event.result, event.tokens)
    finish_if_all_returned(step)


def record_result(step: Step, result: ToolResult, tokens: int = 0) -> None:
    """Store the result of a call, with its token count."""
    open = next(open for open in step.open_calls.calls if open.call.id == result.call_id)
    step.count_tool(result.name, is_error=result.outcome not in ("ok", "retry"))
    step.set_call(fast_replace(open, status="done", result=result, tokens=tokens))

    if open.call.id == step.open_calls.handoff_call_id and result.outcome != "ok":
        step.next = fast_replace(step.open_calls, handoff_call_id="")  # `on_handoff` failed: control stays

    if result.outcome == "unknown":
        doubt = CallInDoubt(key=open.key, run_id=step.run_id, agent=step.agent, call=open.effective_call)
        step.in_doubt = (*step.in_doubt, doubt)


def finish_if_all_returned(step: Step) -> None:
    """Once every call has a result, append the results as one message and continue."""
    now = step.next

    if not isinstance(now, CallTools) or any(open.result is None for open in now.calls):
        return

    step.append(*collect_results(now))

    if now.handoff_call_id:
        hand_off(step, next(open.call for open in now.calls if open.call.id == now.handoff_call_id))
    else:
        ask_model_next(step)


def collect_results(now: CallTools) -> tuple[ToolMessage, int]:
    """The results of all calls as one message, with a note on declined calls in the last, and its tokens."""
    results = [open.result for open in now.calls if open.result is not None]

    if now.declined:
        names = ", ".join(now.declined)
        note = f"\n[{len(now.declined)} more calls were not run, at most {len(results)} fit in one turn: {names}.]"
        text = results[-1].text.removesuffix(note)  # a recorded result may end with it
        results[-1] = fast_replace(results[-1], text=text + note)

    tokens = sum(
        TOKENS_PER_MESSAGE + (open.tokens or estimate_tokens(open.result.text)) for open in now.calls if open.result
    )
    return ToolMessage(tuple(results)), tokens


def hand_off(step: Step, call: ToolCall) -> None:
    """Pass control to the target of this call, which is in the newest reply; a failing filter leaves it to a resume."""
    handoff = step.plan.toolkits[step.agent].handoffs[call.name]

    if _is_at_handoff_limit(step):
        step.stop_at_limit("handoffs", step.limits.handoffs or 0)
        return

    start = step.history.entries[-2].position
    group = step.plan.groups.get(handoff.target)
    view = View() if group is not None else step.views.get(handoff.target, View())

    items: tuple[str, ...] | None = None

    try:
        view = apply_handoff(view, step.history, start, handoff.history)

        if group is not None and group.items is not None:
            items = group_items(group, payload_result(step, _payload(handoff, call)))
    except USER_ERRORS as error:  # the filter, and the function of the items, are user code
        step.fail(error)
        step.next = AskModel(handoff=call.name)
        return

    step.counters = fast_replace(step.counters, handoffs=step.counters.handoffs + 1)
    step.emit(HandedOff, target=handoff.target, call_id=call.id)
    _pass_payload(step, handoff, call)

    if group is not None:
        start_branches(step, group, view, items)
        return

    step.agent = handoff.target
    step.views = {**step.views, handoff.target: view}
    step.emit(AgentStarted)
    activate_agent(step)


def _is_at_handoff_limit(step: Step) -> bool:
    return step.limits.handoffs is not None and step.counters.handoffs >= step.limits.handoffs


def _pass_payload(step: Step, handoff: Handoff, call: ToolCall) -> None:
    """Keep the payload for the target; a handoff without one ends that of an earlier handoff."""
    others = {name: payload for name, payload in step.payloads.items() if name != handoff.target}
    payload = HandoffPayload(sender=step.agent, tool=call.name, arguments=call.arguments or "{}")
    step.payloads = others if handoff.payload is None else {**others, handoff.target: payload}


def _payload(handoff: Handoff, call: ToolCall) -> object:
    """The payload of an accepted handoff."""
    return None if handoff.payload is None else handoff.payload.model_validate_json(call.arguments or "{}")


def on_child_changed(step: Step, key: str) -> None:
    """Continue the parent if this child has finished and the parent waits for it."""
    if not isinstance(step.children[key].next, Finished):
        return

    match step.next:
        case RunBranches(failure=""):
            evaluate_group(step)
        case CallTools():
            _finish_called_agent(step, key)
            finish_if_all_returned(step)
        case _:
            pass
