"""Performs `CallTools`: prepares the calls of a reply and runs them, each with a result whatever happens."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import to_jsonable_python

from crew.engine.concurrency import OnAbandoned, TimedOut, is_failure, run_in_daemon_thread, run_or_abandon
from crew.engine.run import ActiveRun
from crew.errors import RunError, describe, suggest
from crew.fast_replace import fast_replace
from crew.history.handoff_filters import messages_within_filter
from crew.history.view import View
from crew.messages import NO_OUTPUT, Message, ToolCall, ToolResult, Transcript, replace_surrogates
from crew.runs.events import CallHeld, ToolProgress, ToolReturned, ToolsStarted, Warned
from crew.runs.interfaces import RunReader
from crew.runs.state import UNKNOWN_EFFECT, CallTools, OpenCall, RunState, total_usage
from crew.secrets.scrubbing import scrub_and_cut, scrub_value
from crew.tools.context import Context
from crew.tools.schema import InvalidArguments
from crew.tools.tool import Tool, text_pieces

BATCH_SECONDS = 60.0
LONGEST_TURN = 0.02

Outcome = Literal["ok", "error", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCall:
    """A call that may run: its tool, its parsed arguments, and when all calls of the reply must have ended."""

    call: ToolCall
    key: str
    tool: Tool
    arguments: dict[str, Any]
    deadline: float = 0.0


async def start_calls(run: ActiveRun, state: RunState, now: CallTools) -> list[PreparedCall]:
    """Record which calls start; those that need approval are held, and invalid ones get an error result."""
    ready = [call for open in now.calls if open.status == "ready" and (call := await _prepare(run, state, open))]

    if ready:
        await run.record(ToolsStarted(run_id=state.run_id, calls=tuple(prepared.call for prepared in ready)))

    seconds = max([BATCH_SECONDS, *(prepared.tool.timeout for prepared in ready)])
    deadline = asyncio.get_running_loop().time() + seconds
    return [fast_replace(prepared, deadline=deadline) for prepared in ready]


async def _prepare(run: ActiveRun, state: RunState, open: OpenCall) -> PreparedCall | None:
    """The call with its tool and arguments; None if it is held, or has got an error result."""
    call, toolkit = open.call, run.plan.toolkits[state.agent]
    tool = toolkit.tools.get(call.name)

    if tool is None:
        text = f"Unknown tool {call.name!r}. {suggest(call.name, toolkit.names)}"
        await _record_result(run, state, call, text, "error")
        return None

    try:
        arguments = tool.signature.parse_arguments(call.arguments)
        held = not open.approved and tool.needs_approval(arguments)
    except InvalidArguments as error:
        await _record_result(run, state, call, str(error), "error")
        return None
    except Exception as error:  # the tool boundary: approval= may be any user function
        await _record_result(run, state, call, f"The approval check of this call failed: {describe(error)}", "error")
        return None

    if held:
        shown = to_jsonable_python(arguments, fallback=str, serialize_unknown=True)
        await run.record(CallHeld(run_id=state.run_id, call_id=call.id, arguments=shown))
        return None

    return PreparedCall(call=call, key=open.key, tool=tool, arguments=arguments)


async def _record_result(
    run: ActiveRun, state: RunState, call: ToolCall, text: str, outcome: Outcome, seconds: float = 0.0
) -> None:
    text = replace_surrogates(text)
    result = ToolResult(call_id=call.id, name=call.name, text=text, outcome=outcome)
    tokens = run.token_counter(state).count(text)
    event = ToolReturned(run_id=state.run_id, result=result, tokens=tokens, seconds=seconds)
    await run.record(event)


async def run_call(run: ActiveRun, state: RunState, prepared: PreparedCall) -> None:
    """Run one call, with its retries and within its deadline, and record its result."""
    loop = asyncio.get_running_loop()
    started, tool = loop.time(), prepared.tool
    text = ""
    outcome: Outcome = "error"

    for attempt in range(tool.retries + 1):
        seconds = min(tool.timeout, prepared.deadline - loop.time())

        if seconds <= 0:
            break

        if run.lease is not None and tool.effect == "write":
            await run.lease.check()  # another process may have taken the run over since the call was recorded

        text, outcome = await _attempt(run, state, prepared, seconds)

        if outcome != "error":
            break  # a write whose effect is unknown is not repeated

        if attempt < tool.retries:
            reason = scrub_and_cut(run.scrubber, text, 1_000)[:200]
            run.emit(Warned(run_id=state.run_id, text=f"Retrying {prepared.call.name}: {reason}"))

    run.register_keys()  # the tool may have set one
    text = scrub_and_cut(run.scrubber, text, tool.max_output_chars)
    await _record_result(run, state, prepared.call, text, outcome, loop.time() - started)


async def _attempt(run: ActiveRun, state: RunState, prepared: PreparedCall, seconds: float) -> tuple[str, Outcome]:
    tool, name, task = prepared.tool, prepared.call.name, asyncio.current_task()

    def abandon(outcome: asyncio.Future[Any]) -> None:
        run.abandon(state.run_id, f"the tool {name} ({prepared.key})", outcome)

    try:
        with run.observers.call_context(state.run_id, prepared.call):
            try:
                value = await run_or_abandon(_invoke(run, state, prepared, abandon), abandon, seconds)
            except TimedOut:  # an outcome, not an error of the tool
                late = f"{name} timed out after {seconds:g} s."
                return (late, "error") if tool.effect == "read" else (f"{late} {UNKNOWN_EFFECT}", "unknown")

        return await _to_text(value) or NO_OUTPUT, "ok"
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        raise RunError(f"The tool {name!r} raised {describe(error)}.") from error
    except BaseException as error:  # the tool boundary: the model gets the error as the result
        if _is_stopped(error, task):
            raise

        return f"{name} failed: {describe(error)}", "error"


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


async def _invoke(run: ActiveRun, state: RunState, prepared: PreparedCall, abandon: OnAbandoned) -> Any:
    tool, call, arguments = prepared.tool, prepared.call, dict(prepared.arguments)
    loop = asyncio.get_running_loop()
    is_running = True

    def emit_progress(data: Any) -> None:
        # A thread that keeps running after its timeout may still report progress: that is dropped.
        if is_running:
            run.emit(ToolProgress(run_id=state.run_id, call_id=call.id, data=data))

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
            call_id=call.id,
            idempotency_key=prepared.key,
            usage=total_usage(run.state),
            emit=emit,
            transcript=loaded.loaded(),
            metadata=deepcopy(state.metadata),
            readable=lambda: tuple(messages_within_filter(loaded, view, goal)),
            load_readable=load_readable if loaded.start else None,
        )

    try:
        if tool.is_async:
            return await tool.function(**arguments)

        value = await run_in_daemon_thread(
            lambda: tool.function(**arguments), name=f"crew-{call.name}", on_abandoned=abandon
        )
        return await value if inspect.isawaitable(value) else value
    finally:
        is_running = False
