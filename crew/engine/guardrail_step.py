"""Performs `CheckInput` and `CheckOutput`, and checks calls: runs guardrails and records their decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Literal

from pydantic_core import to_jsonable_python

from crew.agents.guardrail import Decision, GuardedCall, Guardrail, NeedsApproval, Refused, Rewritten
from crew.engine.concurrency import (
    USER_CODE_ERRORS,
    TimedOut,
    is_failure,
    run_all,
    run_in_daemon_thread,
    run_or_abandon,
)
from crew.engine.contexts import run_context
from crew.engine.run import ActiveRun
from crew.errors import RunError, describe
from crew.history.tokens import count_message_tokens
from crew.interfaces import ModelReply
from crew.messages import AssistantMessage, Message, Usage, UserMessage, replace_surrogates
from crew.runs.call_text import parse_json_object
from crew.runs.checked_text import input_text
from crew.runs.events import GuardrailChecked, TextDelta, Warned
from crew.runs.open_calls import OpenCall
from crew.runs.state import CallTools, CheckInput, CheckOutput, RunState, find_item
from crew.transitions.checks import checks_output, find_guardrail, pending_checks, unchecked_calls

Outcome = Literal["passed", "rewritten", "refused", "held"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The decision of a guardrail as data: its words, or what it wrote instead."""

    outcome: Outcome = "passed"
    words: str = ""
    text: str = ""
    arguments: dict[str, Any] | None = None
    seconds: float = 0.0


async def check_input(run: ActiveRun, state: RunState, now: CheckInput) -> None:
    """Let the next guardrail check the input, and record its decision."""
    guardrail, text = _guardrail(run, state, now.guardrails[0]), _input_text(run, state, now.messages)
    checked = await _check(run, state, guardrail, text, can_rewrite=bool(now.messages))
    tokens = _count(run, state, UserMessage(checked.text))
    await run.record(_event(state, guardrail, checked, tokens=tokens))


def _input_text(run: ActiveRun, state: RunState, messages: tuple[Message, ...] = ()) -> str:
    return input_text(state.history, messages, find_item(run.state, state.run_id))


async def check_output(run: ActiveRun, state: RunState, now: CheckOutput) -> None:
    """Let the next guardrail check the output, and record its decision; then the text that was held back appears."""
    guardrail = _guardrail(run, state, now.guardrails[0])
    text = now.text if now.message is None else run.plan.output_text(state.agent, now.message.text)
    checked = await _check(run, state, guardrail, text)
    tokens = _count(run, state, AssistantMessage(checked.text))

    if checked.outcome == "rewritten" and run.held_deltas.take(state.run_id):
        run.held_deltas.hold(state.run_id)
        run.held_deltas.keep(TextDelta(run_id=state.run_id, text=checked.text))

    if checked.outcome == "refused":
        run.held_deltas.take(state.run_id)
    elif checked.outcome != "held" and len(now.guardrails) == 1:
        run.release_deltas(state.run_id)

    await run.record(_event(state, guardrail, checked, tokens=tokens))


async def check_calls(run: ActiveRun, state: RunState, now: CallTools) -> None:
    """Let guardrails check the calls that they have not passed yet, and record their decisions."""
    await run_all(_check_call(run, state, open) for open in unchecked_calls(run.plan, state.agent, now))


async def _check_call(run: ActiveRun, state: RunState, open: OpenCall) -> None:
    """Check a call with each guardrail, until one of them does not let it pass."""
    call = open.effective_call
    arguments = parse_json_object(call.arguments)

    for name in pending_checks(run.plan, state.agent, open):
        guardrail, checked = _guardrail(run, state, name), Checked()

        if arguments is not None:  # else the call gets an error result
            try:
                checked = await _check(run, state, guardrail, GuardedCall(name=call.name, arguments=arguments))
            except RunError as error:  # the model gets the error as the result
                checked = Checked(outcome="refused", words=str(error))

        if checked.outcome == "rewritten":
            arguments = checked.arguments

        shown = arguments if checked.outcome in ("rewritten", "held") else None
        facts = {"call_id": call.id, "key": open.key, "tool": call.name, "arguments": shown}
        await run.record(_event(state, guardrail, checked, **facts))

        if checked.outcome in ("refused", "held"):
            return


class _NotPassed(Exception):
    """A guardrail beside a request did not let the input pass: nothing else is waited for."""

    def __init__(self, guardrail: Guardrail, checked: Checked) -> None:
        self.guardrail, self.checked = guardrail, checked
        super().__init__(guardrail.name)


async def ask_beside_checks(run: ActiveRun, state: RunState, ask: Coroutine[Any, Any, ModelReply]) -> ModelReply | None:
    """The reply to a request that is sent while guardrails check the input; None if one of them did not let it pass.

    Until all have passed, no text of the reply appears. If one does not let the input pass, the request is cancelled; a
    reply that is there already is billed, and discarded.
    """
    reply: list[ModelReply] = []
    errors: list[BaseException] = []
    waiting = set(state.unchecked_input)

    async def reply_to_request() -> None:
        try:
            reply.append(await ask)
        except USER_CODE_ERRORS as error:  # raised below, if the input passed
            if not is_failure(error):
                raise

            errors.append(error)

    async def check(name: str) -> None:
        guardrail = _guardrail(run, state, name)
        checked = await _check(run, state, guardrail, _input_text(run, state), can_rewrite=False)

        if checked.outcome != "passed":
            raise _NotPassed(guardrail, checked)

        await run.record(_event(state, guardrail, checked))
        waiting.discard(name)

        if not waiting and not checks_output(run.plan, state):
            run.release_deltas(state.run_id)

    run.held_deltas.hold(state.run_id)

    try:
        await run_all([reply_to_request(), *map(check, state.unchecked_input)])
    except _NotPassed as stopped:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError from stopped  # it was cancelled while the request was being stopped

        run.held_deltas.take(state.run_id)
        usage = reply[0].usage if reply else Usage()
        await run.record(_event(state, stopped.guardrail, stopped.checked, usage=usage))
        return None

    if errors:
        raise errors[0]

    return reply[0]


# ------------------------------------------------------------------------------------------ one guardrail


def _guardrail(run: ActiveRun, state: RunState, name: str) -> Guardrail:
    found = find_guardrail(run.plan, state.agent, name)
    assert found is not None  # a resume checks that the crew has it
    return found


def _event(state: RunState, guardrail: Guardrail, checked: Checked, **facts: Any) -> GuardrailChecked:
    given: dict[str, Any] = {"arguments": checked.arguments, **facts}
    return GuardrailChecked(
        run_id=state.run_id,
        guardrail=guardrail.name,
        on=guardrail.on,
        outcome=checked.outcome,
        words=checked.words,
        text=checked.text,
        seconds=checked.seconds,
        **given,
    )


def _count(run: ActiveRun, state: RunState, message: UserMessage | AssistantMessage) -> int:
    if state.agent not in run.plan.agents:
        return 0  # the output of a group is not part of a request

    return count_message_tokens(message, run.token_counter(state)) if message.text else 0


async def _check(
    run: ActiveRun, state: RunState, guardrail: Guardrail, value: str | GuardedCall, *, can_rewrite: bool = True
) -> Checked:
    """The decision of a guardrail. One that fails raises `RunError`, or passes with a warning if it is set up so."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    failure: BaseException | None = None

    def abandon(outcome: asyncio.Future[Any]) -> None:
        run.abandon(state.run_id, f"the guardrail {guardrail.name}", outcome)

    try:
        decision = await run_or_abandon(_call(run, state, guardrail, value, abandon), abandon, guardrail.timeout)
        return _read_decision(decision, guardrail, loop.time() - began, can_rewrite=can_rewrite)
    except TimedOut:
        failure = TimeoutError(f"it took more than {guardrail.timeout:g} s")
    except USER_CODE_ERRORS as error:  # the guardrail is user code: what it can't check does not pass
        if not is_failure(error):
            raise

        failure = error

    text = f"The guardrail {guardrail.name!r} failed: {describe(failure)}"

    if guardrail.on_error == "pass":
        run.emit(Warned(run_id=state.run_id, text=f"{text}; the check was skipped"))
        return Checked(seconds=loop.time() - began)

    # Raised outside the except block, so that the error is its cause and not also its context.
    raise RunError(text) from failure


async def _call(
    run: ActiveRun, state: RunState, guardrail: Guardrail, value: str | GuardedCall, abandon: Any
) -> object:
    context = run_context(run, state)

    if guardrail.is_async:
        return await guardrail.function(context, value)

    made = await run_in_daemon_thread(
        lambda: guardrail.function(context, value), name=f"crew-{guardrail.name}", on_abandoned=abandon
    )
    return await made if isawaitable(made) else made


def _read_decision(decision: object, guardrail: Guardrail, seconds: float, *, can_rewrite: bool) -> Checked:
    given: Decision = decision if isinstance(decision, Rewritten | Refused | NeedsApproval) else None

    match given:
        case None if decision is None:
            return Checked(seconds=seconds)
        case Refused(words=words):
            return Checked(outcome="refused", words=_words(words), seconds=seconds)
        case NeedsApproval(question=question):
            return Checked(outcome="held", words=_words(question), seconds=seconds)
        case Rewritten() if not can_rewrite:
            where = "beside a model request" if guardrail.parallel else "after the run has started"
            raise TypeError(f"it can't rewrite an input {where}; refuse it instead")
        case Rewritten(value=str(text)) if guardrail.on != "tool":
            return Checked(outcome="rewritten", text=_words(text), seconds=seconds)
        case Rewritten(value=Mapping() as arguments) if guardrail.on == "tool":
            written = to_jsonable_python(dict(arguments))
            return Checked(outcome="rewritten", arguments=written, seconds=seconds)
        case _:
            value = "the arguments as a dict" if guardrail.on == "tool" else "a text"

            if isinstance(decision, Rewritten):
                raise TypeError(f"Rewritten(…) must have {value}, not {decision.value!r:.80}")

            accepted = "None, Rewritten(…), Refused(…) or NeedsApproval(…)"
            raise TypeError(f"it must return {accepted}, not {type(decision).__name__}")


def _words(text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        raise TypeError(f"the text of its decision must not be blank, but is {text!r:.80}")

    return replace_surrogates(text)
