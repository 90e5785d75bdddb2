"""Calling tools: all calls of a reply at once, each answered in words, whatever happens."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from crew.engine.concurrency import run_all, run_in_daemon_thread
from crew.engine.run import ActiveRun
from crew.errors import describe, suggest
from crew.messages import ToolCall, ToolResult, replace_surrogates
from crew.runs.events import CallHeld, ToolProgress, ToolReturned, ToolsStarted, Warned
from crew.runs.state import CallTools, OpenCall, RunState, is_blocked, total_usage
from crew.secrets.scrubbing import scrub_value
from crew.tools.context import Context
from crew.tools.schema import InvalidArguments
from crew.tools.tool import Tool, to_text, truncate_middle

BATCH_SECONDS = 60.0
EMPTY_OUTPUT = "(no output)"

Drive = Callable[[ActiveRun, str], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PreparedCall:
    call: ToolCall
    tool: Tool
    arguments: dict[str, Any]


async def start_calls(run: ActiveRun, state: RunState, now: CallTools, drive: Drive) -> None:
    """Run the calls that can run; those that need a person's word are held."""
    ready = [r for open in now.calls if open.status == "ready" and (r := await _prepare(run, state, open))]

    if ready:
        calls = tuple(r.call for r in ready)
        await run.record(ToolsStarted(run_id=state.run_id, calls=calls))

    seconds = max([BATCH_SECONDS, *(r.tool.timeout for r in ready)])
    deadline = asyncio.get_running_loop().time() + seconds
    working = [_run_call(run, state, r, deadline) for r in ready]
    asked = [state.children[open.call.id] for open in now.calls if open.status == "child"]
    await run_all([*working, *(drive(run, child.run_id) for child in asked if not is_blocked(child))])


async def _prepare(run: ActiveRun, state: RunState, open: OpenCall) -> _PreparedCall | None:
    """The call with its tool and arguments; None if it is answered or held already."""
    call, kit = open.call, run.plan.toolkits[state.agent]
    tool = kit.tools.get(call.name)

    if tool is None:
        text = f"There is no tool {call.name!r}. {suggest(call.name, kit.names)}"
        await _record_result(run, state, call, text, "error")
        return None

    try:
        arguments = tool.signature.parse_arguments(call.arguments)
        held = not open.approved and tool.needs_approval(arguments)
    except InvalidArguments as error:
        await _record_result(run, state, call, str(error), "error")
        return None
    except Exception as error:  # the tool boundary: approval= may be any function
        await _record_result(
            run, state, call, f"Whether this call may be made could not be decided: {describe(error)}", "error"
        )
        return None

    if held:
        await run.record(CallHeld(run_id=state.run_id, call_id=call.id))
        return None

    return _PreparedCall(call=call, tool=tool, arguments=arguments)


async def _record_result(
    run: ActiveRun, state: RunState, call: ToolCall, text: str, outcome: Any, seconds: float = 0.0
) -> None:
    text = replace_surrogates(text)
    result = ToolResult(call_id=call.id, name=call.name, text=text, outcome=outcome)
    tokens = run.token_counter(state).count(text)
    event = ToolReturned(run_id=state.run_id, result=result, tokens=tokens, seconds=seconds)
    await run.record(event)


async def _run_call(run: ActiveRun, state: RunState, ready: _PreparedCall, deadline: float) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    text, outcome = "", "error"

    for attempt in range(ready.tool.retries + 1):
        seconds = min(ready.tool.timeout, deadline - loop.time())

        if seconds <= 0:
            break

        text, outcome = await _attempt(run, state, ready, seconds)

        if outcome == "ok":
            break

        if attempt < ready.tool.retries:
            run.emit(
                Warned(
                    run_id=state.run_id,
                    text=f"{ready.call.name} is tried again: {scrub_value(run.scrubber, text)[:200]}",
                )
            )

    # Before it is cut: half a secret would no longer be known as one.
    text = truncate_middle(scrub_value(run.scrubber, text), ready.tool.max_output_chars)
    await _record_result(run, state, ready.call, text, outcome, loop.time() - began)


async def _attempt(run: ActiveRun, state: RunState, ready: _PreparedCall, seconds: float) -> tuple[str, str]:
    tool, name = ready.tool, ready.call.name

    try:
        async with asyncio.timeout(seconds) as clock:
            with run.around(state.run_id, ready.call):
                value = await _invoke(run, state, ready)

        return to_text(value) or EMPTY_OUTPUT, "ok"
    except TimeoutError as error:
        if not clock.expired():
            return f"{name} failed: {describe(error)}", "error"

        if not tool.is_async:
            text = f"{name} did not end within {seconds:g} s; it is left on a daemon thread"
            run.emit(Warned(run_id=state.run_id, text=text))

        return f"{name} did not end within {seconds:g} s and was given up.", "error"
    except asyncio.CancelledError as error:
        task = asyncio.current_task()

        if task is not None and task.cancelling():
            raise

        return f"{name} failed: {describe(error)}", "error"
    except (Exception, SystemExit) as error:  # the tool boundary: whatever a tool raises is told to the model
        return f"{name} failed: {describe(error)}", "error"


async def _invoke(run: ActiveRun, state: RunState, ready: _PreparedCall) -> Any:
    tool, arguments = ready.tool, dict(ready.arguments)
    loop = asyncio.get_running_loop()
    open_ = True

    def tell(data: Any) -> None:
        # A thread that was given up may still speak; nobody listens any more.
        if open_:
            run.emit(ToolProgress(run_id=state.run_id, call_id=ready.call.id, data=data))

    def emit(data: Any) -> None:
        tell(data) if tool.is_async else loop.call_soon_threadsafe(tell, data)

    if tool.signature.context_parameter is not None:
        arguments[tool.signature.context_parameter] = Context(
            deps=run.deps,
            run_id=state.run_id,
            agent=state.agent,
            call_id=ready.call.id,
            usage=total_usage(run.state),
            emit=emit,
            transcript=state.transcript,
        )

    try:
        if tool.is_async:
            return await tool.function(**arguments)

        value = await run_in_daemon_thread(lambda: tool.function(**arguments), name=f"crew-{ready.call.name}")
        return await value if inspect.isawaitable(value) else value
    finally:
        open_ = False
