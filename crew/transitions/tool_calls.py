"""From the calls of a reply to their results, and on to whom the work is handed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from pydantic import ValidationError

from crew.agents.agent import AgentTool, Handoff
from crew.change import changed
from crew.history.history import History
from crew.history.tokens import TOKENS_PER_MESSAGE, estimate_tokens
from crew.history.view import View, apply_handoff
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
from crew.runs.counters import ToolCounters
from crew.runs.events import AgentStarted, BranchStarted, CallsDeclined, HandedOff, ToolReturned
from crew.runs.state import CallStatus, CallTools, Finished, OpenCall, RunBranches
from crew.tools.tool import truncate_middle
from crew.transitions.before_request import ask_model_next
from crew.transitions.branches import (
    MAX_JOIN_CHARS,
    archive_children,
    child_output,
    evaluate_group,
    new_child,
    share_limits,
    start_branches,
)
from crew.transitions.plan import Toolkit
from crew.transitions.step import Step


def start_called_agent(step: Step, call: ToolCall, used: AgentTool, siblings: int) -> None:
    """An agent called as a tool begins a run of its own, with the request as its goal."""
    now = step.state.next
    assert isinstance(now, CallTools)
    request = _agent_request(call)
    status: CallStatus = "child"
    result: ToolResult | None = None

    if request is None:
        text = 'The arguments are not valid: {"request": "…"} is wanted, with a text that is not blank.'
        status, result = "done", ToolResult(call_id=call.id, name=call.name, text=text, outcome="error")
    else:
        child = new_child(step.state, call.id, used.agent.name, share_limits(step.state, siblings))
        begun = Step(step.plan, child, step.event)
        step.emit(BranchStarted, branch=child.run_id, tool=call.name)
        begun.emit(AgentStarted)
        goal = UserMessage(request, id=f"{child.run_id}:0", time=step.event.at)
        begun.set(history=History(goal=goal.id), transcript=Transcript(), billed_until=0)
        begun.append(goal)
        ask_model_next(begun)
        step.set(children={**step.state.children, call.id: begun.state})
        step.emitted.extend(begun.emitted)

    calls = tuple(
        replace(open, status=status, result=result) if open.call.id == call.id else open for open in now.calls
    )
    step.set(next=replace(now, calls=calls))

    if result is None and isinstance(step.state.children[call.id].next, Finished):
        finish_called_agent(step, call.id)


def _agent_request(call: ToolCall) -> str | None:
    try:
        request = json.loads(call.arguments)["request"]
    except (ValueError, KeyError, TypeError):
        return None

    return request if isinstance(request, str) and request.strip() else None


def finish_called_agent(step: Step, key: str) -> ToolResult:
    """An agent called as a tool has ended: its answer is the call's result."""
    now, child = step.state.next, step.state.children[key]
    assert isinstance(now, CallTools)
    assert isinstance(child.next, Finished)
    name = next(open.call.name for open in now.calls if open.call.id == key)
    text, ok = child_output(child)
    result = ToolResult(
        call_id=key, name=name, text=truncate_middle(text, MAX_JOIN_CHARS), outcome="ok" if ok else "error"
    )
    archive_children(step, [key])
    calls = tuple(replace(open, status="done", result=result) if open.call.id == key else open for open in now.calls)
    by_tool = step.state.counters.by_tool
    tally = by_tool.get(name, ToolCounters())
    step.count(by_tool={**by_tool, name: ToolCounters(calls=tally.calls + 1, errors=tally.errors + (not ok))})
    step.set(next=replace(now, calls=calls))
    return result


def open_calls(step: Step, reply: AssistantMessage, tokens: int) -> None:
    """The reply enters the history with the calls that are accepted; what needs no work is answered at once."""
    reply = _with_valid_ids(step, reply)
    kit = step.plan.toolkits[step.state.agent]
    accepted = _accepted_calls(step, reply.calls, kit)
    declined = tuple(call.name for call in reply.calls if call not in accepted)
    shown = reply

    if declined:
        step.emit(CallsDeclined, calls=declined, accepted=len(accepted))
        ids = {call.id for call in accepted}
        shown = replace(reply, calls=accepted, provider_data=_without_items_of(reply.provider_data, reply.calls, ids))

    step.append(reply, tokens, shown=shown)
    winner, answered = _handoff_results(accepted, kit)
    calls = tuple(_open_call(call, answered.get(call.id)) for call in accepted)
    step.set(next=CallTools(calls=calls, handoff_call_id=winner, declined=declined))

    for call in accepted:
        if call.name in kit.agents:
            start_called_agent(step, call, kit.agents[call.name], sum(c.name in kit.agents for c in accepted))

    finish_if_all_returned(step)


def _open_call(call: ToolCall, result: ToolResult | None) -> OpenCall:
    return OpenCall(call=call) if result is None else OpenCall(call=call, status="done", result=result)


def _with_valid_ids(step: Step, reply: AssistantMessage) -> AssistantMessage:
    """Ids that are reused, and ids and names that some provider would not take, are changed at birth."""
    shown = (entry.message for entry in step.state.history.entries)
    used = {call.id for message in shown if isinstance(message, AssistantMessage) for call in message.calls}
    calls: list[ToolCall] = []

    place = len(step.state.transcript)

    for number, call in enumerate(reply.calls):
        id, name = call.id, _valid_tool_name(call.name)

        if id in used or not STRICTEST.accepts_call_id(id):
            id = f"call_{place}_{number}"

            while id in used:
                id += "x"

        calls.append(call if (id, name) == (call.id, call.name) else replace(call, id=id, name=name))
        used.add(id)

    same = tuple(calls) == reply.calls
    return reply if same else replace(reply, calls=tuple(calls), provider_data=None)


def _valid_tool_name(name: str) -> str:
    """A name that every provider takes. A changed one must not turn into the name of a tool: nothing may run by it."""
    fit = STRICTEST.fit_tool_name(name)
    return name if fit == name else STRICTEST.fit_tool_name(f"unknown_{fit}")


def _accepted_calls(step: Step, calls: tuple[ToolCall, ...], kit: Toolkit) -> tuple[ToolCall, ...]:
    """The first calls, as many as fit beside what must stay; the first handoff is always among them."""
    if len(calls) == 1:
        return calls  # one always fits

    plan, state = step.plan, step.state
    own = [policy.options.explicit_limit for policy in plan.view_policies.get(state.agent, ())]
    bound = None if plan.budget.limit is None else plan.budget.limit - plan.options.summarizes
    bounds = [size for size in (bound, state.parameters.max_history_size, *own) if size is not None]
    systems = {entry.message.text for entry in state.history.entries if isinstance(entry.message, SystemMessage)}
    room = max(1, min([state.limits.tool_calls_per_turn, *(size - len(systems) - 2 for size in bounds)]))
    first = next((index for index, call in enumerate(calls) if call.name in kit.handoffs), 0)
    return calls[:room] if first < room else (*calls[: room - 1], calls[first])


def _without_items_of(data: ProviderData | None, calls: Sequence[ToolCall], kept: set[str]) -> ProviderData | None:
    gone = {call.id for call in calls} - kept
    return data and replace(data, items=tuple(item for item in data.items if item.get("call_id") not in gone))


def _handoff_results(calls: Sequence[ToolCall], kit: Toolkit) -> tuple[str, dict[str, ToolResult]]:
    """Which call hands the work over (the first that can), and the answers to all that tried."""
    winner = ""
    answers: dict[str, ToolResult] = {}

    for call in calls:
        if call.name not in kit.handoffs:
            continue

        problem = _payload_problem(kit.handoffs[call.name], call)

        if problem:
            answers[call.id] = ToolResult(call_id=call.id, name=call.name, text=problem, outcome="error")
        elif winner:
            text = "Not done: the work can be handed over once in a reply, and another handoff came first."
            answers[call.id] = ToolResult(call_id=call.id, name=call.name, text=text, outcome="error")
        else:
            winner = call.id
            text = f"The work is handed to {kit.handoffs[call.name].target}."
            answers[call.id] = ToolResult(call_id=call.id, name=call.name, text=text)

    return winner, answers


def _payload_problem(handoff: Handoff, call: ToolCall) -> str:
    try:
        if handoff.payload is not None:
            handoff.payload.model_validate_json(call.arguments or "{}")
        else:
            json.loads(call.arguments or "{}")
    except (ValidationError, ValueError) as error:
        return f"The arguments are not valid: {error}. Call it again with arguments that fit its schema."

    return ""


def on_tool_returned(step: Step, event: ToolReturned) -> None:
    """A call came back."""
    record_result(step, event.result, event.tokens)
    finish_if_all_returned(step)


def record_result(step: Step, result: ToolResult, tokens: int = 0) -> None:
    """Write a call's result down, with its tokens as they were counted."""
    now = step.state.next
    assert isinstance(now, CallTools)
    calls = tuple(
        changed(open, status="done", result=result, tokens=tokens) if open.call.id == result.call_id else open
        for open in now.calls
    )
    by_tool = step.state.counters.by_tool
    tally = by_tool.get(result.name, ToolCounters())
    tally = ToolCounters(calls=tally.calls + 1, errors=tally.errors + (result.outcome == "error"))
    step.count(by_tool={**by_tool, result.name: tally})
    step.set(next=changed(now, calls=calls))


def finish_if_all_returned(step: Step) -> None:
    """Once every call is answered, the results enter the history as one message, and the work goes on."""
    now = step.state.next

    if not isinstance(now, CallTools) or any(open.result is None for open in now.calls):
        return

    step.append(*collect_results(now))

    if now.handoff_call_id:
        call = next(open.call for open in now.calls if open.call.id == now.handoff_call_id)
        _hand_off(step, call)
    else:
        ask_model_next(step)


def collect_results(now: CallTools) -> tuple[ToolMessage, int]:
    """The results of all calls as one message, the last of which names those that were declined, and its tokens."""
    results = [open.result for open in now.calls if open.result is not None]

    if now.declined:
        names = ", ".join(now.declined)
        note = f"\n[{len(now.declined)} more calls were not run, at most {len(results)} fit in one turn: {names}.]"
        text = results[-1].text.removesuffix(note)  # a recorded result may have it already
        results[-1] = replace(results[-1], text=text + note)

    tokens = sum(
        TOKENS_PER_MESSAGE + (open.tokens or estimate_tokens(open.result.text)) for open in now.calls if open.result
    )
    return ToolMessage(tuple(results)), tokens


def _hand_off(step: Step, call: ToolCall) -> None:
    state = step.state
    handoff = step.plan.toolkits[state.agent].handoffs[call.name]
    limit = state.limits.handoffs

    if limit is not None and state.counters.handoffs >= limit:
        step.stop_at_limit("handoffs", limit)
        return

    step.count(handoffs=state.counters.handoffs + 1)
    step.emit(HandedOff, target=handoff.target, call_id=call.id)
    start = state.history.entries[-2].position
    group = step.plan.groups.get(handoff.target)

    if group is not None:
        crossing = apply_handoff(View(), state.history, start, handoff.history)
        start_branches(step, group, crossing)
        return

    view = apply_handoff(state.views.get(handoff.target, View()), state.history, start, handoff.history)
    step.set(agent=handoff.target, views={**state.views, handoff.target: view})
    step.emit(AgentStarted)
    ask_model_next(step)


def on_child_finished(step: Step, key: str) -> None:
    """A child moved: if it has ended, what waits for it may go on."""
    child = step.state.children[key]

    if not isinstance(child.next, Finished):
        return

    match step.state.next:
        case RunBranches(failure=""):
            evaluate_group(step)
        case CallTools():
            finish_called_agent(step, key)
            finish_if_all_returned(step)
        case _:
            pass
