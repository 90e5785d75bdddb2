"""Performs `CallTools`: prepares the calls of a reply and runs them, each with a result whatever happens."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import to_jsonable_python

from crew.engine.concurrency import OnAbandoned, TimedOut, is_failure, run_in_daemon_thread, run_or_abandon
from crew.engine.fairness import enter_tool
from crew.engine.run import ActiveRun
from crew.engine.toolsets import find_tool
from crew.errors import RunError, describe
from crew.fast_replace import fast_replace
from crew.history.handoff_filters import messages_within_filter
from crew.history.view import View
from crew.messages import NO_OUTPUT, Message, ToolCall, ToolMessage, ToolResult, Transcript, replace_surrogates
from crew.runs.events import CallHeld, QuestionAsked, RunStopped, ToolProgress, ToolReturned, ToolsStarted, Warned
from crew.runs.interfaces import RunReader
from crew.runs.open_calls import OpenCall
from crew.runs.state import UNKNOWN_EFFECT, CallTools, RunState, total_usage
from crew.secrets.scrubbing import scrub_and_cut, scrub_value
from crew.tools.context import Context
from crew.tools.questions import AwaitingAnswer, Question, Questions
from crew.tools.schema import InvalidArguments
from crew.tools.tool import Tool, text_pieces
from crew.tools.tool_exceptions import EffectUnknown, StopRun, ToolRetry, raised_on_purpose
from crew.transitions.payloads import received_payload

BATCH_SECONDS = 60.0
LONGEST_TURN = 0.02

Outcome = Literal["ok", "error", "unknown", "retry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCall:
    """A call that may run: its tool, its parsed arguments, and when all calls of the reply must have ended.

    `call` has the arguments with which it runs, which a person may have edited; `open` has those of the model.
    """

    call: ToolCall
    key: str
    tool: Tool
    arguments: dict[str, Any]
    open: OpenCall
    deadline: float = 0.0


async def start_calls(run: ActiveRun, state: RunState, now: CallTools) -> list[PreparedCall]:
    """Record which calls start; those that need approval are held, and invalid ones get an error result."""
    ready = [call for open in now.calls if open.status == "ready" and (call := await _prepare(run, state, open))]

    if ready:
        calls, keys = tuple(prepared.call for prepared in ready), tuple(prepared.key for prepared in ready)
        await run.record(ToolsStarted(run_id=state.run_id, calls=calls, keys=keys))

    return _with_deadline(ready)


def starts_without_user_code(run: ActiveRun, state: RunState, now: CallTools) -> bool:
    """Whether the calls can be started without I/O and without functions of users: toolsets, approval functions."""
    tools, toolkit = run.plan.toolkits[state.agent].tools, run.toolkit(state)
    ready = [tools.get(open.call.name) or open.call.name for open in now.calls if open.status == "ready"]
    return not any(tool in toolkit.names if isinstance(tool, str) else callable(tool.approval) for tool in ready)


async def prepare_started(run: ActiveRun, state: RunState, open: OpenCall) -> PreparedCall | None:
    """A call that another process recorded as started, to be run here; None if it has got an error result."""
    prepared = await _prepare(run, state, fast_replace(open, approved=True))
    return None if prepared is None else _with_deadline([prepared])[0]


def _with_deadline(calls: Sequence[PreparedCall]) -> list[PreparedCall]:
    seconds = max([BATCH_SECONDS, *(prepared.tool.timeout for prepared in calls)])
    deadline = asyncio.get_running_loop().time() + seconds
    return [fast_replace(prepared, deadline=deadline) for prepared in calls]


async def _prepare(run: ActiveRun, state: RunState, open: OpenCall) -> PreparedCall | None:
    """The call with its tool and arguments; None if it is held, or has got an error result."""
    call = open.effective_call
    tool = await find_tool(run, state, call.name)

    if isinstance(tool, str):
        await _record_result(run, state, open, tool, "error")
        return None

    try:
        arguments = tool.signature.parse_arguments(call.arguments)
        held = not open.approved and tool.needs_approval(arguments)
    except InvalidArguments as error:
        # The model can't correct arguments that it did not write.
        edited = f"Not done: {open.edited_by} changed the arguments to invalid ones: {error.problems}."
        await _record_result(run, state, open, edited if open.edited_by else str(error), "error")
        return None
    except Exception as error:  # the tool boundary: approval= may be any user function
        await _record_result(run, state, open, f"The approval check of this call failed: {describe(error)}", "error")
        return None

    if held:
        shown = to_jsonable_python(arguments, fallback=str, serialize_unknown=True)
        await run.record(
            CallHeld(run_id=state.run_id, call_id=call.id, arguments=shown, key=open.key, effect=tool.effect)
        )
        return None

    return PreparedCall(call=call, key=open.key, tool=tool, arguments=arguments, open=open)


async def _record_result(
    run: ActiveRun, state: RunState, made: OpenCall | PreparedCall, text: str, outcome: Outcome, seconds: float = 0.0
) -> None:
    text, call = replace_surrogates(text), made.call
    result = ToolResult(call_id=call.id, name=call.name, text=text, outcome=outcome)
    tokens = run.token_counter(state).count(text)
    event = ToolReturned(
        run_id=state.run_id,
        result=result,
        tokens=tokens,
        seconds=seconds,
        key=made.key,
        position=len(state.transcript),  # the reply is the last message: the results follow it
    )
    await run.record(event)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What an attempt of a call led to: its result, the end of the run (`text` is the reason), or a question."""

    text: str
    outcome: Outcome | Literal["stopped", "asking"] = "error"
    question: Question | None = None


async def run_call(run: ActiveRun, state: RunState, prepared: PreparedCall) -> None:
    """Run one call, with its retries and within its deadline, and record its result, or what it asks."""
    loop = asyncio.get_running_loop()
    started, tool = loop.time(), prepared.tool
    made = Attempt("")

    for attempt in range(tool.retries + 1):
        seconds = min(tool.timeout, prepared.deadline - loop.time())

        if seconds <= 0:
            break

        if run.lease is not None and tool.effect == "write":
            await run.lease.check()  # another process may have taken the run over since the call was recorded

        made = await _attempt(run, state, prepared, seconds)

        if made.outcome != "error":
            break  # a write whose effect is unknown is not repeated

        if attempt < tool.retries:
            reason = scrub_and_cut(run.scrubber, made.text, 1_000)[:200]
            run.emit(Warned(run_id=state.run_id, text=f"Retrying {prepared.call.name}: {reason}"))

    run.register_keys()  # the tool may have set one
    text = replace_surrogates(scrub_and_cut(run.scrubber, made.text, tool.max_output_chars))

    match made.outcome:
        case "stopped":
            await run.record(RunStopped(run_id=state.run_id, **_call_fields(prepared), reason=text))
        case "asking":
            assert made.question is not None
            await run.record(QuestionAsked(run_id=state.run_id, **_call_fields(prepared), question=made.question))
        case outcome:
            text = prepared.open.with_edit_note(text)
            await _record_result(run, state, prepared, text, outcome, loop.time() - started)


def _call_fields(prepared: PreparedCall) -> dict[str, Any]:
    return {"call_id": prepared.call.id, "key": prepared.key, "tool": prepared.call.name}


async def _attempt(run: ActiveRun, state: RunState, prepared: PreparedCall, seconds: float) -> Attempt:
    tool, name, task = prepared.tool, prepared.call.name, asyncio.current_task()
    questions = _questions(run, prepared)

    def abandon(outcome: asyncio.Future[Any]) -> None:
        run.abandon(state.run_id, f"the tool {name} ({prepared.key})", outcome)

    try:
        with run.observers.call_context(state.run_id, prepared.call):
            try:
                invoked = _until_asked(_invoke(run, state, prepared, questions, abandon), questions)
                value = await run_or_abandon(invoked, abandon, seconds)
            except TimedOut:  # an outcome, not an error of the tool
                late = f"{name} timed out after {seconds:g} s."
                is_read = tool.effect == "read"
                return Attempt(late) if is_read else Attempt(f"{late} {UNKNOWN_EFFECT}", "unknown")

        match value:
            case AwaitingAnswer():
                return Attempt("", "asking", questions.pending if questions is not None else None)
            case StopRun():
                return Attempt(value.reason, "stopped")
            case ToolRetry():
                return _bounded_retry(state, prepared, value.words)
            case _:
                return Attempt(await _to_text(value) or NO_OUTPUT, "ok")
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        raise RunError(f"The tool {name!r} raised {describe(error)}.") from error
    except BaseException as error:  # the tool boundary: the model gets the error as the result
        if _is_stopped(error, task):
            raise

        raised = raised_on_purpose(error)
        text = f"{name} failed: {describe(error if raised is None else raised)}"
        is_unknown = isinstance(raised, EffectUnknown) and tool.effect == "write"
        return Attempt(f"{text} {UNKNOWN_EFFECT}", "unknown") if is_unknown else Attempt(text)


def _questions(run: ActiveRun, prepared: PreparedCall) -> Questions | None:
    if not prepared.tool.asks:
        return None

    def scrub(text: str) -> str:
        return replace_surrogates(scrub_value(run.scrubber, text))

    return Questions(tool=prepared.call.name, answered=prepared.open.answers, scrub=scrub)


async def _until_asked(work: Coroutine[Any, Any, Any], questions: Questions | None) -> Any:
    """The value of the call, or `AwaitingAnswer` if it asked: also if the tool caught that, or raised a group of it."""
    enter_tool()

    try:
        value = await work
    except (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError):
        raise
    except BaseException:  # the tool boundary: what unwinds the call is not an error
        if questions is None or questions.pending is None:
            raise

        value = None

    if questions is not None and questions.pending is not None:
        return AwaitingAnswer()

    if questions is not None and questions.problem:
        raise RuntimeError(questions.problem)

    return value


def _bounded_retry(state: RunState, prepared: PreparedCall, words: str) -> Attempt:
    """The words of a `ToolRetry` for the model; too many of them in a row are an error."""
    name, limit = prepared.call.name, prepared.tool.model_retries
    before = 0

    for index in range(len(state.transcript) - 1, state.inherited_messages - 1, -1):
        message = state.transcript[index]
        outcomes = [r.outcome for r in message.results if r.name == name] if isinstance(message, ToolMessage) else []

        if "ok" in outcomes and "retry" not in outcomes:
            break

        before += "retry" in outcomes

    if before < limit:
        return Attempt(words, "retry")

    asked = "once" if before == 1 else f"{before} times in a row"
    note = f"it has asked for another attempt {asked}" if before else "it accepts no further attempt"
    return Attempt(f"{words}\n[{name} gave up: {note}. Do not call it again for this.]")


async def _to_text(value: object) -> str:
    """The text of a result; other tasks get their turn while a large one is converted."""
    loop = asyncio.get_running_loop()
    began, pieces = loop.time(), []

    for piece in text_pieces(value):
        pieces.append(piece)

        if loop.time() - began > LONGEST_TURN:
            await asyncio.sleep(0)
            began = loop.time()

    return "".join(pieces)


def _is_stopped(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether the call was stopped: its task was cancelled, or its coroutine was abandoned and is closed."""
    if isinstance(error, GeneratorExit):
        try:
            return asyncio.current_task() is not task
        except RuntimeError:
            return True  # no event loop runs

    return isinstance(error, asyncio.CancelledError) and not is_failure(error)


async def _whole_transcript(run: ActiveRun, loaded: Transcript) -> Transcript:
    """The messages of a stored conversation: those that are not loaded, from the store, and those of this run."""
    assert isinstance(run.store, RunReader)
    older: Sequence[Message] = await run.store.transcript(run.state.parent_run)
    return Transcript([*scrub_value(run.scrubber, older[: loaded.start]), *loaded[loaded.start :]])


async def _invoke(
    run: ActiveRun, state: RunState, prepared: PreparedCall, questions: Questions | None, abandon: OnAbandoned
) -> Any:
    """The value that the tool returns, or what it raises on purpose: that is not an error, which would be logged."""
    tool, call, arguments = prepared.tool, prepared.call, dict(prepared.arguments)
    loop = asyncio.get_running_loop()
    is_running = True

    def emit_progress(data: Any) -> None:
        # A thread that keeps running after its timeout may still report progress: that is dropped.
        if is_running:
            run.emit(ToolProgress(run_id=state.run_id, **_call_fields(prepared), data=data))

    def emit(data: Any) -> None:
        emit_progress(data) if tool.is_async else loop.call_soon_threadsafe(emit_progress, data)

    if tool.signature.context_parameter is not None:
        view, goal, loaded = state.views.get(state.agent, View()), state.history.goal, state.transcript

        async def load_readable() -> Sequence[Message]:
            return tuple(messages_within_filter(await _whole_transcript(run, loaded), view, goal))

        arguments[tool.signature.context_parameter] = Context(
            deps=run.deps,
            run_id=state.run_id,
            agent=state.agent,
            conversation_id=state.conversation_id,
            call_id=call.id,
            idempotency_key=prepared.key,
            usage=total_usage(run.state),
            emit=emit,
            transcript=loaded.loaded(),
            metadata=deepcopy(state.metadata),
            readable=lambda: tuple(messages_within_filter(loaded, view, goal)),
            load_readable=load_readable if loaded.start else None,
            questions=questions,
            load_payload=lambda: received_payload(run.plan, state),
        )

    try:
        if tool.is_async:
            return await tool.function(**arguments)

        value = await run_in_daemon_thread(
            lambda: tool.function(**arguments), name=f"crew-{call.name}", on_abandoned=abandon
        )
        return await value if inspect.isawaitable(value) else value
    except Exception as error:  # the tool boundary: what is raised on purpose may be within a group of errors
        raised = raised_on_purpose(error)

        if isinstance(raised, ToolRetry | StopRun):
            return raised

        raise
    finally:
        is_running = False
