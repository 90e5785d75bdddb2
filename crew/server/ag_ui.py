"""The AG-UI endpoint: front ends that speak this protocol run a crew, and answer its pauses as interrupts."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from crew.errors import UnknownPause, UnknownRun
from crew.messages import UserMessage
from crew.runs.events import Cancelled, Paused, Replied, Resumed
from crew.runs.interfaces import Cursor, StoredEvent
from crew.runs.state import Pause, pending_pauses
from crew.server.access import Principal
from crew.server.ag_ui_events import AgUiEvent, AgUiMapper, open_call_keys, reply_call_keys
from crew.server.follow import Followed, Heartbeat, RunStopped
from crew.server.http_errors import HTTPError
from crew.server.invalid_requests import read_body
from crew.server.request_models import RunId
from crew.server.routing import route
from crew.server.run_control import NewRun, RunControl, attributed
from crew.server.server_context import ServerContext
from crew.server.sse import HEARTBEAT, EventResponse
from crew.validation.message_import import import_messages

EVENTS = "text/event-stream"
_ROLES = ("user", "assistant", "system", "developer", "tool")


class _AgUiModel(BaseModel):
    model_config = ConfigDict(extra="allow", alias_generator=to_camel, populate_by_name=True)


class ResumeEntry(_AgUiModel):
    """The answer to one interrupt."""

    interrupt_id: str = Field(max_length=1_000)
    status: Literal["resolved", "cancelled"]
    payload: JsonValue = None


class RunAgentInput(_AgUiModel):
    """The body of `POST /ag-ui`. Tools and context of the client are not passed on; a custom event says so."""

    thread_id: RunId
    run_id: RunId
    messages: list[dict[str, JsonValue]] = Field(default_factory=list)
    tools: list[JsonValue] | None = None
    context: list[JsonValue] | None = None
    resume: list[ResumeEntry] | None = None


def ag_ui_routes(context: ServerContext) -> Sequence[BaseRoute]:
    """The route of the only crew, and one for each crew."""
    api = AgUiAPI(context)
    return [
        route(context, path, api.run_ag_ui, method="POST", scope="run", body=RunAgentInput, media_types=[EVENTS])
        for path in ("/ag-ui", "/ag-ui/{crew}")
    ]


class AgUiAPI:
    """Starts a run, or resumes one, and streams it. The thread is the conversation, which the service stores."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._control = RunControl(context)

    async def run_ag_ui(self, request: Request, principal: Principal) -> Response:
        """One run of the protocol: until Crew's run ends or pauses."""
        body = await read_body(request, RunAgentInput)
        crew: str | None = request.path_params.get("crew")

        if body.resume:
            return await self._resume(principal, body, body.resume)

        history, input = _split(body.messages)
        is_known = await self._is_known(principal, body.thread_id)
        new = NewRun(
            input=input,
            crew=crew,
            # A thread that the service has not stored, with earlier messages: the client keeps its history.
            history=None if is_known or not history else history,
            conversation=body.thread_id if is_known or not history else None,
            headers=request.headers,
            key=body.run_id,
        )
        started = await self._control.start(principal, new)
        return self._stream(body, started.run_id, None, {})

    async def _is_known(self, principal: Principal, thread_id: str) -> bool:
        """Whether the service has stored this thread, and the principal may see it."""
        try:
            await self._context.conversation(principal, thread_id)
        except UnknownRun:
            return False

        return True

    # ------------------------------------------------------------------------------------------ interrupts

    async def _resume(self, principal: Principal, body: RunAgentInput, entries: Sequence[ResumeEntry]) -> Response:
        if not principal.may("approve"):
            raise HTTPError(403, "forbidden", "The token lacks the scope 'approve': it can't answer.", scope="approve")

        run_id = root_of(entries[0].interrupt_id)
        record = await self._context.run(principal, run_id)
        pauses = {pause.id: pause for pause in pending_pauses(record.state)}

        if unknown := [entry.interrupt_id for entry in entries if entry.interrupt_id not in pauses]:
            if (earlier := await self._find_resume(principal, run_id, entries)) is None:
                raise UnknownPause(run_id, unknown, [*pauses])

            return self._stream(body, run_id, *earlier)

        answers = _answers(pauses, entries)

        if answers is None:
            await self._control.cancel(principal, run_id)
        else:
            await self._control.resume(principal, run_id, answers)

        # The events of the resumed run are in later commits.
        after = Cursor.after_commit(record.info.version)
        return self._stream(body, run_id, after, open_call_keys(record.state))

    async def _find_resume(
        self, principal: Principal, run_id: str, entries: Sequence[ResumeEntry]
    ) -> tuple[Cursor, dict[tuple[str, str], str]] | None:
        """Where the events after an earlier request with these answers begin, and the keys of the calls until then.

        A client whose connection was cut sends its request again.
        """
        pauses: dict[str, Pause] = {}
        keys: dict[tuple[str, str], str] = {}
        last: Cursor | None = None

        def is_answered_by(answers: Mapping[str, Any] | None) -> bool:
            if not all(entry.interrupt_id in pauses for entry in entries):
                return False

            asked = _answers(pauses, entries)
            given = None if asked is None else attributed(asked, [*pauses.values()], principal.name)
            return self._context.scrub_all(answers) == self._context.scrub_all(given)  # the log has no secrets

        while page := await self._context.reader.events(run_id, last):
            for stored in page:
                match stored.event:
                    case Replied() as reply:
                        keys |= reply_call_keys(reply)
                    case Paused(pauses=found):
                        pauses |= {pause.id: pause for pause in found}
                    case Resumed(answers=answers) if last is not None and is_answered_by(answers):
                        return last, keys
                    case Cancelled() if last is not None and is_answered_by(None):
                        return last, keys
                    case _:
                        pass

                last = stored.cursor

        return None

    # ------------------------------------------------------------------------------------------ streams

    def _stream(
        self, body: RunAgentInput, run_id: str, after: Cursor | None, keys: dict[tuple[str, str], str]
    ) -> Response:
        mapper = AgUiMapper(body.thread_id, body.run_id, call_keys=keys)
        ignored = [name for name in ("tools", "context") if getattr(body, name)]
        return EventResponse(self._events(mapper, run_id, after, ignored), self._context.settings.send_seconds)

    async def _events(
        self, mapper: AgUiMapper, run_id: str, after: Cursor | None, ignored: Sequence[str]
    ) -> AsyncGenerator[bytes, None]:
        yield _encode(mapper.start(run_id))

        for name in ignored:
            text = f"The crew does not use the {name} of the client."
            yield _encode({"type": "CUSTOM", "name": "crew.warned", "value": {"text": text}})

        async with aclosing(self._context.follow(run_id, after)) as items:
            async for item in items:
                for event in _mapped(mapper, item):
                    yield event

                if mapper.is_finished:
                    return

        for last in mapper.stop("interrupted"):  # the server shuts down
            yield _encode(last)


def _mapped(mapper: AgUiMapper, item: Followed) -> Iterator[bytes]:
    match item:
        case Heartbeat():
            yield HEARTBEAT
        case RunStopped(status=status):
            yield from map(_encode, mapper.stop(status))
        case StoredEvent(event=event):
            yield from map(_encode, mapper.map(event))
        case _:
            yield from map(_encode, mapper.map(item))


def root_of(interrupt_id: str) -> str:
    """The id of the run to which an interrupt belongs: a pause has the path of its run in its id."""
    return interrupt_id.rpartition(":")[0].partition("/")[0]


def _answers(pauses: Mapping[str, Pause], entries: Sequence[ResumeEntry]) -> dict[str, Any] | None:
    """The answers to pauses; None if an interrupt is cancelled that has no refusal."""
    answers: dict[str, Any] = {}

    for entry in entries:
        pause = pauses[entry.interrupt_id]
        answer = _answer(entry.payload) if entry.status == "resolved" else _refusal(pause)

        if answer is None:
            return None

        answers[pause.id] = answer

    return answers


def _answer(payload: JsonValue) -> Any:
    """The payload, which follows the interrupt's `responseSchema`; {"approved": …} is accepted too."""
    if isinstance(payload, Mapping) and isinstance(payload.get("approved"), bool):
        return payload["approved"]

    return "" if payload is None else payload


def _refusal(pause: Pause) -> bool | str | None:
    match pause.reason:
        case "approval" | "consent":
            return False
        case "in_doubt":
            return "skip"
        case _:
            return None


def _split(messages: Sequence[dict[str, JsonValue]]) -> tuple[list[dict[str, JsonValue]], UserMessage]:
    """The earlier messages of the conversation, and the newest one, which must be the user's."""
    shown = [message for message in messages if message.get("role") in _ROLES and not message.get("subagentRunId")]
    found, violations = import_messages([_plain(message) for message in shown[-1:]])
    newest = found[-1][1] if found else None

    if violations or not isinstance(newest, UserMessage):
        text = "The last message must be one of the user, with text or images; or send `resume` to answer interrupts."
        raise HTTPError(422, "invalid_input", text, field="messages")

    return [_plain(message) for message in shown[:-1]], newest


def _plain(message: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """A message in the format of OpenAI, which the import understands."""
    plain: dict[str, JsonValue] = {"role": message.get("role"), "content": message.get("content")}

    if isinstance(content := message.get("content"), list):
        plain["content"] = [_plain_part(part) for part in content]

    if message.get("toolCalls"):
        plain["tool_calls"] = message["toolCalls"]

    if message.get("toolCallId"):
        plain["tool_call_id"] = message["toolCallId"]

    return plain


def _plain_part(part: JsonValue) -> JsonValue:
    source = part.get("source") if isinstance(part, dict) and part.get("type") == "image" else None

    if not isinstance(source, dict):
        return part

    value = str(source.get("value", ""))
    url = f"data:{source.get('mimeType', 'image/png')};base64,{value}" if source.get("type") == "data" else value
    return {"type": "image_url", "image_url": {"url": url}}


def _encode(event: AgUiEvent) -> bytes:
    return b"data: %s\n\n" % json.dumps(event, ensure_ascii=False).encode("utf-8", "replace")
