"""Crews as the tools of an MCP server: a call is a run, its events are progress, and its pauses are questions."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from crew.engine.stream import EventStream
from crew.errors import CrewError, abbreviate, describe
from crew.executor import CrewExecutor
from crew.mcp_server.pause_forms import NO_ANSWER, form_answer, form_schema
from crew.runs.event_text import event_text
from crew.runs.events import Event
from crew.runs.result import MissingOutput, RunResult
from crew.runs.state import Pause, pending_pauses

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.types import CallToolRequestParams, CallToolResult, InputRequiredResult, ListToolsResult

MAX_WAITING = 1_000
"""How many paused runs may wait for the answer of a client; answers to the oldest are no longer accepted then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One call of a crew: the request, and its run."""

    context: Any
    name: str
    executor: CrewExecutor
    run_id: str
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    """The numbers of the progress, which must grow, also after a pause."""


class CrewTools:
    """Serves the crews of executors as tools.

    `keeps_runs` says that runs are stored outside this process: then a run that waits for an answer which the client
    can't give stays paused, and `resume_hint` describes how to answer it, from the name of the tool and the id of the
    run. Otherwise it is cancelled.
    """

    def __init__(
        self,
        executors: Mapping[str, CrewExecutor],
        *,
        keeps_runs: bool = False,
        resume_hint: Callable[[str, str], str] = lambda name, run_id: f"executor.resume({run_id!r}, answers)",
    ) -> None:
        self._executors, self._keeps_runs, self._resume_hint = dict(executors), keeps_runs, resume_hint
        self._waiting: OrderedDict[str, _Call] = OrderedDict()
        self.is_closing = False
        """Set when the server ends: runs are interrupted then, and stay resumable, instead of being cancelled."""

    def server(self) -> Server[Any]:
        """The server of the SDK with these tools."""
        from mcp.server import Server

        return Server("crew", version=_version(), on_list_tools=self._list_tools, on_call_tool=self._call_tool)

    async def _list_tools(self, context: Any, params: Any) -> ListToolsResult:
        from mcp.types import ListToolsResult, Tool

        return ListToolsResult(
            tools=[
                Tool(name=name, description=_description(executor), input_schema=self._schema())
                for name, executor in self._executors.items()
            ]
        )

    def _schema(self) -> dict[str, Any]:
        conversation = {
            "type": "string",
            "description": "The id of a conversation, which the crew continues; a new id starts one.",
        }
        properties: dict[str, Any] = {"input": {"type": "string", "description": "The task for the crew."}}
        properties |= {"conversation": conversation} if self._keeps_runs else {}
        return {"type": "object", "properties": properties, "required": ["input"], "additionalProperties": False}

    async def _call_tool(self, context: Any, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        from mcp import MCPError
        from mcp.types import INVALID_PARAMS

        executor = self._executors.get(params.name)

        if executor is None:
            available = ", ".join(self._executors)
            raise MCPError(INVALID_PARAMS, f"Unknown tool {abbreviate(params.name)}. Available: {available}")

        try:
            if params.request_state is not None:
                return await self._continue(context, params)

            call = _Call(context=context, name=params.name, executor=executor, run_id=uuid.uuid4().hex)
            return await self._start(call, params.arguments or {})
        except CrewError as error:
            return _error(str(error))

    async def _start(self, call: _Call, arguments: Mapping[str, Any]) -> CallToolResult | InputRequiredResult:
        if problem := self._problem(arguments):
            return _error(problem)

        options = {"conversation": arguments["conversation"]} if "conversation" in arguments else {}
        stream = call.executor.execute_stream(arguments["input"], run_id=call.run_id, **options)
        return await self._finish(call, await self._run(call, stream))

    def _problem(self, arguments: Mapping[str, Any]) -> str:
        known = ("input", "conversation") if self._keeps_runs else ("input",)

        if unknown := [name for name in arguments if name not in known]:
            return f"Unknown argument {abbreviate(unknown[0])}. Accepted: {', '.join(known)}"

        wrong = [name for name in known if not isinstance(arguments.get(name, ""), str)]
        return f"{wrong[0]} must be a text" if wrong else "" if "input" in arguments else "input is required"

    async def _continue(self, context: Any, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        """Resume a run with the answers that the client sends with the call, which it repeats."""
        state = params.request_state or ""
        before = self._waiting.get(state)

        if before is None or before.name != params.name:
            return _error("The request state is not valid, or was used before. Call the tool again without it.")

        del self._waiting[state]
        call, executor = replace(before, context=context), before.executor
        pauses = executor.scrub(pending_pauses((await executor.store.load(call.run_id)).state))
        forms = params.input_responses or {}
        answers = {pause.id: form_answer(pause, forms[pause.id]) for pause in pauses if pause.id in forms}
        return await self._resume(call, pauses, answers)

    async def _resume(
        self, call: _Call, pauses: Sequence[Pause], answers: Mapping[str, Any]
    ) -> CallToolResult | InputRequiredResult:
        given = {id: answer for id, answer in answers.items() if answer is not NO_ANSWER}

        if not given:
            return await self._refuse(call, pauses, "The user gave no answer.")

        return await self._finish(call, await self._run(call, call.executor.resume_stream(call.run_id, given)))

    async def _finish(self, call: _Call, result: RunResult) -> CallToolResult | InputRequiredResult:
        """The result of a run that ended; a paused one asks the user of the client."""
        from mcp.types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        if result.stop_reason != "paused":
            return _result(result)

        session = call.context.session
        capabilities = session.client_capabilities

        if capabilities is None or capabilities.elicitation is None:
            return await self._refuse(call, result.pauses, "This client can't ask its user (it has no elicitation).")

        if session.protocol_version in MODERN_PROTOCOL_VERSIONS:
            forms: dict[str, Any] = {
                pause.id: ElicitRequest(
                    params=ElicitRequestFormParams(message=pause.full_text, requested_schema=form_schema(pause))
                )
                for pause in result.pauses
            }
            return InputRequiredResult(input_requests=forms, request_state=await self._remember(call))

        return await self._ask(call, result.pauses)

    async def _ask(self, call: _Call, pauses: Sequence[Pause]) -> CallToolResult | InputRequiredResult:
        """Send the questions to the client during the call, and resume the run with the answers."""
        session, related = call.context.session, call.context.request_id

        try:
            answers = {
                pause.id: form_answer(pause, await session.elicit_form(pause.full_text, form_schema(pause), related))
                for pause in pauses
            }
        except asyncio.CancelledError:
            await self._cancel_unless_kept(call)
            raise
        except Exception as error:  # the client boundary: it may answer with an error, or with anything else
            return await self._refuse(call, pauses, f"The client did not ask its user ({describe(error)}).")

        return await self._resume(call, pauses, answers)

    async def _remember(self, call: _Call) -> str:
        """A text that can't be guessed, by which the client continues this run."""
        state = secrets.token_urlsafe(24)
        self._waiting[state] = replace(call, context=None)

        while len(self._waiting) > MAX_WAITING:
            await self._cancel_unless_kept(self._waiting.popitem(last=False)[1])

        return state

    async def _cancel_unless_kept(self, call: _Call) -> None:
        """Cancel a paused run whose client will not answer; a stored run stays paused."""
        if not self._keeps_runs and not self.is_closing:
            await _cancel_run(call)

    async def _refuse(self, call: _Call, pauses: Sequence[Pause], reason: str) -> CallToolResult:
        """Report that a run waits for an answer that the client can't give."""
        questions = "\n".join(map(_question_line, pauses))
        text = f"The crew waits for an answer of a person:\n{questions}\n{reason} "

        if self._keeps_runs:
            hint = self._resume_hint(call.name, call.run_id)
            return _error(f"{text}The run {call.run_id} stays paused; answer it with: {hint}")

        await call.executor.cancel(call.run_id)
        return _error(f"{text}The run was cancelled, because runs are not stored.")

    async def _run(self, call: _Call, stream: EventStream) -> RunResult:
        """Drive a run and report its events as progress. If the client cancels the call, the run is cancelled."""
        texts: asyncio.Queue[str | None] = asyncio.Queue()

        def publish(event: Event) -> None:
            if text := event_text(event):
                texts.put_nowait(text)

        # A separate task: the SDK cancels the task of the call again and again until it ends.
        task = asyncio.ensure_future(stream.drain(publish))
        task.add_done_callback(lambda _: texts.put_nowait(None))

        try:
            while (text := await texts.get()) is not None:
                await call.context.session.report_progress(next(call.numbers), None, text)
        except asyncio.CancelledError:
            await self._cancel(call, task)
            raise

        return task.result()

    async def _cancel(self, call: _Call, task: asyncio.Future[RunResult]) -> None:
        import anyio

        with anyio.CancelScope(shield=True):
            if not self.is_closing:
                await _cancel_run(call)

            task.cancel()
            await asyncio.wait([task])

            if not task.cancelled():
                task.exception()  # mark it as retrieved: the call has ended


async def _cancel_run(call: _Call) -> None:
    """Cancel a run, also if the call was cancelled: the SDK cancels its task again and again."""
    import anyio

    with anyio.CancelScope(shield=True), suppress(CrewError):  # it has not begun, or has ended
        await call.executor.cancel(call.run_id)


def _description(executor: CrewExecutor) -> str:
    crew = executor.plan.crew
    purposes = [agent.purpose for agent in crew.agents if agent.name == crew.entry_name]
    return " ".join([f"Run the crew {crew.name}.", *purposes])


def _question_line(pause: Pause) -> str:
    choices = f" (one of {', '.join(map(repr, pause.choices))})" if pause.choices else ""
    return f"- {pause.text}{choices}"


def _result(result: RunResult) -> CallToolResult:
    from mcp.types import CallToolResult, TextContent

    output = result.output_json()
    text = output if isinstance(output, str) else to_json(output).decode()

    if result.stop_reason != "completed":
        limit = "" if result.limit is None else f"{result.limit.name}={result.limit.value:g}"
        reason = ": ".join(filter(None, (result.stop_reason, limit or result.stop_text)))
        return _error(f"The run {result.run_id} ended early ({reason}). Its output so far: {text or '(none)'}")

    if isinstance(result.answer, MissingOutput):
        return _error(f"The run {result.run_id} has no valid output: {result.answer.reason}. The last answer: {text}")

    return CallToolResult(
        content=[TextContent(type="text", text=text)],
        structured_content=output if isinstance(output, dict) else None,
        meta={"crew/run_id": result.run_id},
    )


def _error(text: str) -> CallToolResult:
    from mcp.types import CallToolResult, TextContent

    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


def _version() -> str:
    """The version of the installed distribution; "" if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("crew-executor")
    except PackageNotFoundError:
        return ""
