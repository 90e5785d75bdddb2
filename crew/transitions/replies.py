"""What follows a model's reply or failure: tool calls, a route, a pause, another agent, a smaller view, the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import ValidationError

from crew.agents.agent import Agent, node_name
from crew.errors import OutputInvalid, describe
from crew.history.token_budget import Calibration
from crew.history.view import View
from crew.history.view_fitting import TARGET_SHARE, ViewFitter
from crew.messages import AssistantMessage, is_empty
from crew.runs.events import AgentStarted, FellBack, Replied, ReplyEmpty, Routed, TooLong, UsageChanged, Warned
from crew.runs.state import AnswerReason, AskModel, AwaitInput, RepeatReason
from crew.transitions.before_request import accept_view, ask_model_next, view_fitter
from crew.transitions.branches import start_branches
from crew.transitions.markdown import without_code_fence
from crew.transitions.routes import find_route, misplaced_signals, without_signal
from crew.transitions.step import Step
from crew.transitions.tool_calls import open_calls
from crew.transitions.usage import learn_from_bill


def on_replied(step: Step, event: Replied) -> None:
    """A model replied: call its tools, follow a route, pause, pass control on, or end the run."""
    agent = step.plan.agents[step.agent]
    repeat_reason = _repeat_reason(step)
    step.count_usage(event.usage)
    tokens = learn_from_bill(step, event)
    step.emit(UsageChanged, usage=step.counters.usage)

    if is_empty(event.message):
        _on_empty(step, repeat_reason)
    elif event.message.calls:
        open_calls(step, event.message, tokens)
    else:
        _on_text(step, agent, event, tokens, repeat_reason)


def _repeat_reason(step: Step) -> RepeatReason:
    return step.next.repeat_reason if isinstance(step.next, AskModel) else ""


def _on_empty(step: Step, repeat_reason: RepeatReason) -> None:
    if repeat_reason == "empty":
        step.emit(ReplyEmpty, outcome="final")
        step.finish("completed", "", finish_reason="empty")
        return

    step.emit(ReplyEmpty, outcome="asked_again")
    ask_model_next(step, "empty")


_INCOMPLETE: dict[str, tuple[AnswerReason, str]] = {
    "length": ("length", "was cut off: it reached the output limit of the model or of max_output_tokens"),
    "refusal": ("refusal", "is a refusal of the model"),
    "filter": ("filter", "was stopped by the content filter of the service"),
}


def _answer_reason(step: Step, agent: Agent, reply: Replied) -> AnswerReason:
    """Why the reply ended; an incomplete one emits a warning."""
    reason, problem = _INCOMPLETE.get(reply.finish_reason, ("stop", ""))

    if problem:
        step.emit(Warned, text=f"The reply of {agent.name!r} {problem}.")

    return reason


def _on_text(step: Step, agent: Agent, reply: Replied, tokens: int, repeat_reason: RepeatReason) -> None:
    message, finish_reason = reply.message, _answer_reason(step, agent, reply)
    text = step.plan.output_text(agent.name, message.text)
    route = find_route(agent, text)

    for signal in misplaced_signals(agent, text, route):
        found = f"The reply of {agent.name!r} has the signal {signal!r}, but not at its end, or in code or a quotation"
        step.emit(Warned, text=f"{found}: its route was not taken.")

    if route is not None:
        step.emit(Routed, signal=route.signal, target=route.target)

        if route.target is None:
            step.append_final(message, tokens)
            step.finish("completed", without_signal(message.text, route.signal), finish_reason=finish_reason)
        else:
            _continue_with(step, message, tokens, route.target, "route")
    elif agent.output is not None and (problem := _schema_problem(agent, text)):
        _request_correction(step, agent, message, tokens, problem, repeat_reason)
    elif agent.wait_for_signal:
        step.append(message, tokens)
        step.next = AwaitInput(pause_id=f"{step.run_id}:{len(step.transcript) - 1}.input")
    elif agent.then is not None:
        target = node_name(agent.then)
        step.emit(Routed, signal="", target=target)
        _continue_with(step, message, tokens, target, "then")
    else:
        step.append_final(message, tokens)
        step.finish("completed", message.text, finish_reason=finish_reason)


def _continue_with(
    step: Step, message: AssistantMessage, tokens: int, target: str, origin: Literal["route", "then"]
) -> None:
    """Append the reply and pass control to an agent or a group."""
    step.append(message, tokens)
    source = step.agent

    if target in step.plan.groups:
        start_branches(step, step.plan.groups[target])
        return

    step.agent = target
    step.emit(AgentStarted)
    text = f"[Control passed from {source} to {target}. Continue the user's request.]"
    step.append_framework_message(text, origin)
    ask_model_next(step)


def _schema_problem(agent: Agent, text: str) -> str:
    assert agent.output is not None

    try:
        agent.output.model_validate_json(without_code_fence(text))
    except ValidationError as error:
        # Without the reply itself: the model has it, and it may be private.
        found = error.errors(include_url=False, include_context=False, include_input=False)
        return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'the reply'}: {one['msg']}" for one in found)
    except Exception as error:  # a validator of the output type may raise anything
        return f"the check of the reply failed: {describe(error)}"

    return ""


def _request_correction(
    step: Step, agent: Agent, message: AssistantMessage, tokens: int, problem: str, repeat_reason: RepeatReason
) -> None:
    assert agent.output is not None

    step.append(message, tokens)
    step.append_framework_message(
        f"[Your reply does not match the output schema: {problem}\nReply again with only JSON that matches it.]",
        "output",
    )

    if repeat_reason == "output":
        text = f"The reply of {agent.name!r} does not match {agent.output.__name__} after one correction: {problem}"
        step.fail(OutputInvalid(text))  # a resume asks once more

    ask_model_next(step, "output")


MAX_OVERFLOW_RETRIES = 3


def on_too_long(step: Step, event: TooLong) -> None:
    """The model refused the request as too long: learn its window and halve the view, at last to the mandatory part."""
    repeat_reason = _repeat_reason(step)
    _learn_window(step, event)
    fitter = view_fitter(step)
    attempt = fitter.view.overflow_count + 1
    fitter.view = replace(fitter.view, overflow_count=attempt)
    window = fitter.token_budget.window
    target = TARGET_SHARE * min(fitter.tokens, window) if attempt < MAX_OVERFLOW_RETRIES else 0.0

    if attempt > MAX_OVERFLOW_RETRIES or not _shrink_view(fitter, target, event, cuts=attempt == MAX_OVERFLOW_RETRIES):
        text = f"{event.model} refuses even the mandatory part of a request of {fitter.agent!r}, about {fitter.tokens} "
        step.fail(fitter.overflow_error(f"{text}tokens, as too long: {event.reason}", window))
    else:
        accept_view(step, fitter)

    ask_model_next(step, repeat_reason)


def _shrink_view(fitter: ViewFitter, target: float, event: TooLong, *, cuts: bool) -> bool:
    """Make the view smaller: evict, and where nothing may leave, or with `cuts`, cut the newest messages."""
    reason, window = f"the model refused about {event.tokens} tokens as too long", fitter.token_budget.window
    evicted = fitter.evict_to("too_long", reason, target=target, ceiling=target, limit=window)

    if (cuts or not evicted) and fitter.cut_newest("too_long", reason, target=target, limit=window):
        return True

    if evicted:
        return True

    # Estimates that are far too low would let everything fit: then evict the oldest that may leave.
    below = fitter.tokens - 1
    return fitter.evict_to("too_long", reason, target=below, ceiling=below, limit=window)


def _learn_window(step: Step, event: TooLong) -> None:
    """Learn the window that the error states, for every agent with this model; without a number, the refused size."""
    maximum = event.maximum or event.tokens
    step.token_budgets = {
        name: tuple(budget.with_learned_window(event.model, maximum) for budget in budgets)
        for name, budgets in step.token_budgets.items()
    }
    available = maximum - step.token_budget.reply_reserve

    if event.tokens < available:
        # The request was estimated to fit, yet it did not: this model counts more tokens than estimated.
        known = step.calibrations.get(event.model, Calibration())
        factor = min(4.0, available / max(1, event.tokens))
        scale = known.billed_scale if known.bill_count else known.billed_scale * factor
        raised = replace(known, estimate_ratio=min(4.0, known.estimate_ratio * factor), billed_scale=scale)
        step.calibrations = {**step.calibrations, event.model: raised}


def on_fell_back(step: Step, event: FellBack) -> None:
    """The backup model takes over for the rest of the run, with a view for its window."""
    repeat_reason = _repeat_reason(step)
    view = step.views.get(step.agent, View())
    view = replace(view, active_model="backup", overflow_count=0, moved_by="fallback")
    step.views = {**step.views, step.agent: view}
    ask_model_next(step, repeat_reason)
