"""What a model's reply leads to: calls, a route, a pause, the next agent, or the end."""

from __future__ import annotations

import re
from dataclasses import replace

from pydantic import ValidationError

from crew.agents.agent import Agent, Route
from crew.history.token_budget import Calibration
from crew.history.view import View
from crew.messages import AssistantMessage, is_empty
from crew.runs.events import AgentStarted, FellBack, Replied, ReplyEmpty, Routed, TooLong, UsageChanged
from crew.runs.state import AskModel, AwaitInput
from crew.transitions.before_request import ask_model_next, give_up_on_output
from crew.transitions.branches import start_branches
from crew.transitions.plan import token_budget_for
from crew.transitions.step import Step
from crew.transitions.tool_calls import open_calls
from crew.transitions.usage import learn_from_bill
from crew.transitions.view_fitting import TARGET_SHARE, ViewFitter


def on_replied(step: Step, event: Replied) -> None:
    """A model replied."""
    state = step.state
    agent, tally = step.plan.agents[state.agent], state.counters
    again = state.next.repeat_reason if isinstance(state.next, AskModel) else ""
    mine = tally.by_agent.get(agent.name)
    step.count(
        usage=tally.usage + event.usage,
        rounds=tally.rounds + 1,
        by_agent={**tally.by_agent, agent.name: event.usage if mine is None else mine + event.usage},
    )
    tokens = learn_from_bill(step, event)
    step.emit(UsageChanged, usage=step.state.counters.usage)

    if is_empty(event.message):
        _on_empty(step, again)
    elif event.message.calls:
        open_calls(step, event.message, tokens)
    else:
        _on_text(step, agent, event.message, tokens, again)


def _on_empty(step: Step, again: str) -> None:
    if again == "empty":
        step.emit(ReplyEmpty, outcome="final")
        step.finish("completed", "")
        return

    step.emit(ReplyEmpty, outcome="asked_again")
    ask_model_next(step, "empty")


def _on_text(step: Step, agent: Agent, message: AssistantMessage, tokens: int, again: str) -> None:
    text = step.plan.output_text(agent.name, message.text)
    route = _match_route(agent, text)

    if route is not None:
        step.emit(Routed, signal=route.signal, target=route.target)
        _continue_with(step, message, tokens, route.target, f"the signal {route.signal}", "route")
    elif agent.output is not None and (problem := _schema_problem(agent, text)):
        _request_correction(step, agent, message, tokens, problem, again)
    elif agent.wait_for_signal:
        step.append(message, tokens)
        step.set(next=AwaitInput(pause_id=f"{step.state.run_id}:input.{step.event.sequence}"))
    elif agent.then is not None:
        target = agent.then if isinstance(agent.then, str) else agent.then.name
        step.emit(Routed, signal="", target=target)
        _continue_with(step, message, tokens, target, "its turn", "then")
    else:
        _continue_with(step, message, tokens, None, "", "then")


def _continue_with(
    step: Step, message: AssistantMessage, tokens: int, target: str | None, why: str, origin: str
) -> None:
    if target is None:
        step.append_final(message, tokens)
        step.finish("completed", message.text)
        return

    step.append(message, tokens)
    source = step.state.agent

    if target in step.plan.groups:
        start_branches(step, step.plan.groups[target])
        return

    step.set(agent=target)
    step.emit(AgentStarted)
    step.append_framework_message(
        f"[{source} passed the work on to you, {target}, by {why}. Go on with the user's request.]", origin
    )
    ask_model_next(step)


def _match_route(agent: Agent, text: str) -> Route | None:
    """The route whose signal is in the text: exactly, else without case, else with white space folded; in order."""

    def folded(words: str) -> str:
        # Not all white space is dropped: else the signal "stop" would be found in "first option".
        return re.sub(r"(?<=[\[({<]) | (?=[\])}>])", "", re.sub(r"\s+", " ", words.casefold()))

    for read in (str, str.casefold, folded):
        for route in agent.routes:
            if read(route.signal) in read(text):
                return route

    return None


def _schema_problem(agent: Agent, text: str) -> str:
    assert agent.output is not None

    try:
        agent.output.model_validate_json(text)
    except ValidationError as error:
        # Without the answer itself: the model knows it, and nobody else has to read it in an error.
        found = error.errors(include_url=False, include_context=False, include_input=False)
        return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'the answer'}: {one['msg']}" for one in found)

    return ""


def _request_correction(
    step: Step, agent: Agent, message: AssistantMessage, tokens: int, problem: str, again: str
) -> None:
    assert agent.output is not None

    step.append(message, tokens)
    step.append_framework_message(
        f"[Your answer does not fit the schema: {problem}\nAnswer again, with JSON that fits it and nothing else.]",
        "output",
    )

    if again == "output":
        give_up_on_output(
            step, f"The reply of {agent.name!r} does not fit {agent.output.__name__} after one repair round: {problem}"
        )
        return

    ask_model_next(step, "output")


MAX_OVERFLOW_RETRIES = 3


def on_too_long(step: Step, event: TooLong) -> None:
    """The window is learned and the view cut: by half, by half again, then down to what must be shown."""
    state = step.state
    again = state.next.repeat_reason if isinstance(state.next, AskModel) else ""
    _learn_window(step, event)
    seen = ViewFitter(step)
    attempt = seen.view.overflow_count + 1
    seen.view = replace(seen.view, overflow_count=attempt)
    step.set(views={**step.state.views, seen.name: seen.view})
    target = TARGET_SHARE * min(seen.tokens, seen.gauge.window) if attempt < MAX_OVERFLOW_RETRIES else 0.0

    if attempt > MAX_OVERFLOW_RETRIES or not _shrink_view(seen, target, event):
        raise seen.overflow_error(
            f"{event.model} refuses even what {seen.name!r} must see, about {seen.tokens} tokens, as too long: "
            f"{event.reason}",
            seen.gauge.window,
        )

    ask_model_next(step, again)


def _shrink_view(seen: ViewFitter, target: float, event: TooLong) -> bool:
    reason = f"the model refused about {event.tokens} tokens as too long"

    if seen.evict_to("too_long", reason, target=target, ceiling=target):
        return True

    # Estimates that are far too low would let everything fit: then at least something leaves, and strictly.
    oldest = seen.tokens - 1
    return seen.evict_to("too_long", reason, target=oldest, ceiling=oldest)


def _learn_window(step: Step, event: TooLong) -> None:
    """What the error said of the window holds for every agent with this model; without a number, what was refused."""
    state = step.state
    maximum = event.maximum or event.tokens
    gauges = {
        name: tuple(g.with_learned_window(event.model, maximum) for g in ranks)
        for name, ranks in state.token_budgets.items()
    }
    step.set(token_budgets=gauges)

    room = maximum - token_budget_for(step.plan, step.state, state.agent).reply_reserve

    if event.tokens < room:
        # More was sent than the window holds, though less was estimated: this model counts higher than thought.
        known = state.calibrations.get(event.model, Calibration())
        factor = min(4.0, room / max(1, event.tokens))
        scale = known.billed_scale if known.bill_count else known.billed_scale * factor
        raised = replace(known, estimate_ratio=min(4.0, known.estimate_ratio * factor), billed_scale=scale)
        step.set(calibrations={**state.calibrations, event.model: raised})


def on_fell_back(step: Step, event: FellBack) -> None:
    """The agent's backup takes over for the rest of the run, with a view for its own window."""
    state = step.state
    again = state.next.repeat_reason if isinstance(state.next, AskModel) else ""
    view = state.views.get(state.agent, View())
    view = replace(view, active_model="backup", overflow_count=0, moved_by="fallback")
    step.set(views={**state.views, state.agent: view})
    ask_model_next(step, again)
