"""What follows a model's reply or failure: tool calls, a route, a pause, another agent, a smaller view, the end."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pydantic import ValidationError

from crew.agents.agent import Agent
from crew.agents.choice import Choice
from crew.agents.output_type import OutputType
from crew.errors import OutputInvalid, describe
from crew.history.token_budget import Calibration
from crew.history.view import View
from crew.history.view_fitting import TARGET_SHARE, ViewFitter
from crew.messages import AssistantMessage, is_empty
from crew.runs.events import FellBack, Replied, ReplyEmpty, Routed, TooLong, UsageChanged, Warned
from crew.runs.state import AnswerReason, AskModel, AwaitInput, CheckOutput, ChooseNext, RepeatReason
from crew.transitions.before_request import accept_view, ask_model_next, view_fitter
from crew.transitions.branches import choose_next, follow_join, pass_control
from crew.transitions.checks import checks_output, output_checks
from crew.transitions.choices import before_newest, input_result, newest_text, reply_result
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


def _answer_reason(step: Step, finish_reason: str) -> AnswerReason:
    """Why the reply ended; an incomplete one emits a warning."""
    reason, problem = _INCOMPLETE.get(finish_reason, ("stop", ""))

    if problem:
        step.emit(Warned, text=f"The reply of {step.agent!r} {problem}.")

    return reason


def _on_text(step: Step, agent: Agent, reply: Replied, tokens: int, repeat_reason: RepeatReason) -> None:
    """Let guardrails check the reply before it takes effect, where there are some."""
    if guardrails := _guardrails_of(step, agent, reply.message):
        step.next = CheckOutput(
            guardrails=guardrails,
            message=reply.message,
            tokens=tokens,
            finish_reason=reply.finish_reason,
            repeat_reason=repeat_reason,
        )
    else:
        accept_text(step, reply.message, tokens, reply.finish_reason, repeat_reason)


def _guardrails_of(step: Step, agent: Agent, message: AssistantMessage) -> tuple[str, ...]:
    """The guardrails of this reply; none if it has to be corrected first, to match the output type."""
    if not checks_output(step.plan, step):
        return ()

    text = step.plan.output_text(agent.name, message.text)
    route = find_route(agent, text)

    if route is None and agent.output_type is not None and _schema_problem(agent.output_type, text):
        return ()

    # A function may end the run, which is known only after the guardrails may have rewritten the reply.
    may_end = agent.wait_for_signal or agent.then is None or isinstance(agent.then, Choice)
    is_shown = route.target is None if route is not None else may_end
    return output_checks(step.plan, step, is_shown=is_shown)


def accept_text(step: Step, message: AssistantMessage, tokens: int, ended: str, repeat_reason: RepeatReason) -> None:
    """Follow a route, correct the reply, pause, pass control on, or end the run; `ended` is why the reply ended."""
    agent, finish_reason = step.plan.agents[step.agent], _answer_reason(step, ended)
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
            result = partial(reply_result, step, message.text, step.transcript)
            step.append(message, tokens)
            pass_control(step, route.target, result, ChooseNext(after=step.agent), "route")
    elif agent.output_type is not None and (problem := _schema_problem(agent.output_type, text)):
        _request_correction(step, agent.output_type.name, message, tokens, problem, repeat_reason)
    elif agent.wait_for_signal:
        step.append(message, tokens)
        step.next = AwaitInput(pause_id=f"{step.run_id}:{len(step.transcript) - 1}.input")
    elif agent.then is not None:
        _follow_then(step, agent, message, tokens, finish_reason)
    else:
        step.append_final(message, tokens)
        step.finish("completed", message.text, finish_reason=finish_reason)


def _follow_then(step: Step, agent: Agent, message: AssistantMessage, tokens: int, finish_reason: AnswerReason) -> None:
    """Append the reply, and continue with the agent or group that follows it, or end the run."""
    result = partial(reply_result, step, message.text, step.transcript)
    retry = ChooseNext(after=agent.name, finish_reason=finish_reason)
    chosen = choose_next(step, agent.then, result, retry)

    if chosen is None:
        step.append_final(message, tokens)
        step.finish("completed", message.text, finish_reason=finish_reason)
        return

    if isinstance(chosen, str) and not isinstance(agent.then, Choice):
        step.emit(Routed, signal="", target=chosen)

    step.append(message, tokens)

    if isinstance(chosen, str):
        pass_control(step, chosen, result, retry, "then")


def choose_again(step: Step, now: ChooseNext) -> None:
    """After a resume, call the function again that decides what follows the newest message: a reply or a join."""
    if now.after in step.plan.groups:
        follow_join(step, step.plan.groups[now.after], now.branches, now.target)
        return

    text, before = newest_text(step), before_newest(step)
    result = partial(reply_result, step, text, before) if now.after else partial(input_result, step)
    chosen = now.target or choose_next(step, step.plan.agents[now.after].then, result, now)

    if chosen is None:
        step.finish("completed", text, finish_reason=now.finish_reason)
    elif isinstance(chosen, str):
        pass_control(step, chosen, result, now, "then")


def _schema_problem(output: OutputType, text: str) -> str:
    try:
        output.parse(without_code_fence(text))
    except ValidationError as error:
        # Without the reply itself: the model has it, and it may be private.
        found = error.errors(include_url=False, include_context=False, include_input=False)
        return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'the reply'}: {one['msg']}" for one in found)
    except Exception as error:  # a validator of the output type may raise anything
        return f"the check of the reply failed: {describe(error)}"

    return ""


def _request_correction(
    step: Step, output: str, message: AssistantMessage, tokens: int, problem: str, repeat_reason: RepeatReason
) -> None:
    failure = f"The reply of {step.agent!r} does not match {output} after one correction: {problem}"
    note = f"[Your reply does not match the output schema: {problem}\nReply again with only JSON that matches it.]"
    ask_for_another_reply(step, message, tokens, note, failure, repeat_reason)


def ask_for_another_reply(
    step: Step, message: AssistantMessage, tokens: int, note: str, failure: str, repeat_reason: RepeatReason
) -> None:
    """Append a reply that is not accepted, with a note for the model; the second time the run fails."""
    step.append(message, tokens)
    step.append_framework_message(note, "output")

    if repeat_reason == "output":
        step.fail(OutputInvalid(failure))  # a resume asks once more

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
