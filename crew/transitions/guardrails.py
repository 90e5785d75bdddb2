"""What follows the decision of a guardrail, or the answer of a person whom it asked."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, assert_never

from crew.errors import OutputInvalid
from crew.fast_replace import fast_replace
from crew.messages import AssistantMessage, ToolResult, UserMessage, replace_surrogates
from crew.runs.answers import is_approval, refusal_reason
from crew.runs.call_text import parse_json_object
from crew.runs.events import AgentStarted, GuardrailChecked, Resumed, RunStarted, UsageChanged
from crew.runs.state import CheckInput, CheckOutput, ChooseNext, Finished, guardrail_pause_id
from crew.transitions.activation import activate_agent
from crew.transitions.before_request import ask_model_next
from crew.transitions.branches import pass_control
from crew.transitions.checks import is_root, start_checks
from crew.transitions.choices import input_result
from crew.transitions.replies import accept_text, ask_for_another_reply
from crew.transitions.step import Step
from crew.transitions.tool_calls import finish_if_all_returned, record_result, start_called_agents


def start_run(step: Step, event: RunStarted) -> None:
    """Check the input of a run next, or add it to the history and start the first agent or group."""
    blocking, step.unchecked_input = start_checks(step.plan, step.agent)

    if blocking:
        step.next = CheckInput(guardrails=blocking, messages=event.messages, tokens=event.tokens)
    else:
        step.append_input(event.messages, event.tokens)
        _start_entry(step)


def _start_entry(step: Step) -> None:
    if step.agent in step.plan.groups:
        pass_control(step, step.agent, partial(input_result, step), ChooseNext(after=""))
        return

    step.emit(AgentStarted)
    activate_agent(step, checks_input=False)


def on_guardrail_checked(step: Step, event: GuardrailChecked) -> None:
    """A guardrail passed, rewrote or refused what it checked, or asks a person."""
    if event.usage.requests:
        step.count_usage(event.usage)
        step.emit(UsageChanged, usage=step.counters.usage)

    match event.on:
        case "input":
            _on_input_checked(step, event)
        case "tool":
            _on_call_checked(step, event)
        case "output":
            assert isinstance(step.next, CheckOutput)
            _on_output_checked(step, step.next, event.outcome, event.words, event)
        case _:
            assert_never(event.on)


def resume_check(step: Step, now: CheckInput | CheckOutput, event: Resumed) -> None:
    """Apply the answer of a person, if there is one: an approval passes, all else refuses."""
    name = now.guardrails[0]
    id = guardrail_pause_id(step, name)

    if not now.held or id not in event.answers:
        return

    outcome: Literal["passed", "refused"] = "passed" if is_approval(event.answers[id]) else "refused"
    words = _refusal(event.answers[id])
    step.next = fast_replace(now, held="")

    match step.next:
        case CheckInput():
            _continue_input(step, step.next, outcome, words)
        case CheckOutput():
            _on_output_checked(step, step.next, outcome, words)


def _refusal(answer: object) -> str:
    reason = f": {replace_surrogates(refusal_reason(answer))}" if refusal_reason(answer) else "."
    return f"A person refused it{reason}"


# ---------------------------------------------------------------------------------------------------- input


def _on_input_checked(step: Step, event: GuardrailChecked) -> None:
    now = step.next

    if isinstance(now, CheckInput):
        if event.outcome == "held":
            step.next = fast_replace(now, held=event.words)
        elif event.outcome == "rewritten":
            _continue_input(step, _with_text(now, event), "passed", "")
        else:
            _continue_input(step, now, event.outcome, event.words)

        return

    # Beside the first request: the model has seen the input, and its reply waits for this decision.
    step.unchecked_input = tuple(name for name in step.unchecked_input if name != event.guardrail)
    asked = CheckInput(guardrails=(event.guardrail,), held=event.words, is_active=True)

    if event.outcome == "held":
        step.next = asked
    elif event.outcome == "refused":
        _continue_input(step, asked, "refused", event.words)


def _with_text(now: CheckInput, event: GuardrailChecked) -> CheckInput:
    """The input with another text of its last message, the goal."""
    *before, goal = now.messages
    assert isinstance(goal, UserMessage)
    goal = fast_replace(goal, text=event.text)
    return fast_replace(now, messages=(*before, goal), tokens=(*now.tokens[:-1], event.tokens))


def _continue_input(step: Step, now: CheckInput, outcome: Literal["passed", "refused"], words: str) -> None:
    if outcome == "refused":
        _refuse_input(step, now, words)
        return

    if rest := now.guardrails[1:]:
        step.next = fast_replace(now, guardrails=rest)
        return

    if now.messages:
        step.append_input(now.messages, now.tokens)

    if now.is_active:
        ask_model_next(step)
    elif now.messages and is_root(step):
        _start_entry(step)
    else:
        activate_agent(step, checks_input=False)


def _refuse_input(step: Step, now: CheckInput, words: str) -> None:
    """End the run with these words; a branch or an agent called as a tool fails with them."""
    step.append_refused_input(now.messages, now.tokens)

    if is_root(step):
        step.finish("stopped", "", stop_text=words)
    else:
        step.next = Finished(stop_reason="failed", error=f"the input was refused by {now.guardrails[0]}: {words}")


# ---------------------------------------------------------------------------------------------------- calls


def _on_call_checked(step: Step, event: GuardrailChecked) -> None:
    open = next(open for open in step.open_calls.calls if open.key == event.key)
    checked = fast_replace(open, checks=(*open.checks, event.guardrail))

    match event.outcome:
        case "passed":
            step.set_call(checked)
        case "rewritten":
            is_edited_by_person = open.edited is not None and not open.edited_by
            step.set_call(
                fast_replace(
                    checked,
                    edited=_arguments(event),
                    edited_by=f"{'A person and the' if is_edited_by_person else 'The'} guardrail {event.guardrail}",
                    arguments=parse_json_object(open.call.arguments),
                )
            )
        case "held":
            # Those of the model stay known beside those that were written in their place.
            arguments = _arguments(event) if open.edited is None else open.arguments
            step.set_call(fast_replace(checked, status="held", held_question=event.words, arguments=arguments))
        case "refused":
            text = open.with_edit_note(f"Not done: {event.words}")
            record_result(step, ToolResult(call_id=open.call.id, name=open.call.name, text=text, outcome="error"))
        case _:
            assert_never(event.outcome)

    start_called_agents(step)
    finish_if_all_returned(step)


def _arguments(event: GuardrailChecked) -> dict[str, Any]:
    return {} if event.arguments is None else event.arguments


# ---------------------------------------------------------------------------------------------------- output


def _on_output_checked(
    step: Step,
    now: CheckOutput,
    outcome: Literal["passed", "rewritten", "refused", "held"],
    words: str,
    event: GuardrailChecked | None = None,
) -> None:
    match outcome:
        case "held":
            step.next = fast_replace(now, held=words)
            return
        case "refused":
            _refuse_output(step, now, words)
            return
        case "rewritten":
            assert event is not None
            now = _with_output(now, event)
        case "passed":
            pass
        case _:
            assert_never(outcome)

    if rest := now.guardrails[1:]:
        step.next = fast_replace(now, guardrails=rest)
    elif now.message is None:
        step.finish("completed", now.text)
    else:
        accept_text(step, now.message, now.tokens, now.finish_reason, now.repeat_reason)


def _with_output(now: CheckOutput, event: GuardrailChecked) -> CheckOutput:
    if now.message is None:
        return fast_replace(now, text=event.text)

    # What the provider returned beside the text may hold the text that was replaced.
    message: AssistantMessage = fast_replace(now.message, text=event.text, provider_data=None)
    return fast_replace(now, message=message, tokens=event.tokens)


def _refuse_output(step: Step, now: CheckOutput, words: str) -> None:
    """Ask for another reply, once; a second one that is refused fails the run, as an invalid output does."""
    if now.message is None:
        step.fail(OutputInvalid(f"The joined output was refused by {now.guardrails[0]}: {words}"))
        return

    failure = f"The reply of {step.agent!r} was refused by {now.guardrails[0]} after one correction: {words}"
    note = f"[Your reply was refused: {words}\nReply again.]"
    ask_for_another_reply(step, now.message, now.tokens, note, failure, now.repeat_reason)
