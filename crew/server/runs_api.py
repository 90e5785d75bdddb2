"""The native API: start, list, read, follow, answer and cancel runs; conversations."""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from crew.errors import abbreviate
from crew.run_ids import RUN_ID_PATTERN
from crew.runs.interfaces import Cursor, StoredRunInfo
from crew.runs.state import pending_pauses
from crew.server.access import Principal
from crew.server.follow import ENDED, STOPPED
from crew.server.http_errors import HTTPError
from crew.server.invalid_requests import read_body, read_query
from crew.server.request_models import (
    CURSOR_PATTERN,
    Answers,
    ListConversations,
    ListRuns,
    ReadEvents,
    StartRun,
    StreamChoice,
    parse_cursor,
)
from crew.server.response_models import (
    ConversationAnswer,
    ConversationFacts,
    ConversationList,
    RunAnswer,
    RunFacts,
    RunList,
    TranscriptAnswer,
)
from crew.server.routing import path_id, route
from crew.server.run_control import NewRun, RunControl
from crew.server.run_json import json_response, pause_answer, run_answer, run_facts
from crew.server.server_context import ServerContext
from crew.server.sse import EventResponse, encode_all

IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The id of the run. A request that is repeated with it starts no second run.",
    "schema": {"type": "string", "pattern": f"^{RUN_ID_PATTERN}$"},
}
LAST_EVENT_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "The id of the last event that arrived; it takes precedence over `after`.",
    "schema": {"type": "string", "pattern": "^[0-9]{1,15}[.][0-9]{1,15}$"},
}


def run_routes(context: ServerContext) -> Sequence[BaseRoute]:
    """The routes of runs and conversations."""
    api = RunsAPI(context)
    streams = ["text/event-stream"]
    return [
        route(
            context,
            "/runs",
            api.start_run,
            method="POST",
            scope="run",
            body=StartRun,
            query=StreamChoice,
            answer=RunFacts,
            status=201,
            media_types=streams,
            headers=[IDEMPOTENCY_KEY],
        ),
        route(context, "/runs", api.list_runs, query=ListRuns, answer=RunList),
        route(context, "/runs/{run_id}", api.read_run, answer=RunAnswer),
        route(context, "/runs/{run_id}", api.cancel_run, method="DELETE", scope="run", answer=RunAnswer),
        route(
            context,
            "/runs/{run_id}/events",
            api.read_events,
            query=ReadEvents,
            media_types=streams,
            headers=[LAST_EVENT_ID],
        ),
        route(context, "/runs/{run_id}/transcript", api.read_transcript, answer=TranscriptAnswer),
        route(
            context,
            "/runs/{run_id}/answers",
            api.answer_pauses,
            method="POST",
            scope="approve",
            body=Answers,
            query=StreamChoice,
            answer=RunFacts,
            status=202,
            media_types=streams,
        ),
        route(context, "/conversations", api.list_conversations, query=ListConversations, answer=ConversationList),
        route(context, "/conversations/{conversation_id}", api.read_conversation, answer=ConversationAnswer),
    ]


class RunsAPI:
    """The endpoints of the native API."""

    def __init__(self, context: ServerContext) -> None:
        self._context, self._control = context, RunControl(context)

    # ------------------------------------------------------------------------------------------ starting

    async def start_run(self, request: Request, principal: Principal) -> Response:
        """Start a run; the answer has its id, or its events if the client asks for a stream."""
        is_stream = wants_stream(request)
        body = await read_body(request, StartRun)
        started = await self._control.start(
            principal,
            NewRun(
                input=body.input,
                crew=body.crew,
                agent=body.agent,
                conversation=body.conversation,
                on_busy=body.on_busy,
                on_paused=body.on_paused,
                parameters=body.parameters,
                metadata=body.metadata,
                headers=request.headers,
                key=request.headers.get("idempotency-key"),
            ),
        )
        status = 201 if started.is_new else 200
        return await self._answer_started(request, principal, started.run_id, status, is_stream=is_stream)

    async def _answer_started(
        self,
        request: Request,
        principal: Principal,
        run_id: str,
        status: int,
        *,
        is_stream: bool,
        after: Cursor | None = None,
    ) -> Response:
        location = {"Location": f"{request.scope.get('root_path', '')}/runs/{run_id}"}
        info = await self._context.info(principal, run_id)

        if is_stream:
            items = self._context.follow_batches(run_id, after, with_instructions=principal.may("all"))
            return EventResponse(encode_all(items), self._context.settings.send_seconds, status, location)

        return json_response(await self._facts(info), status, location)

    # ------------------------------------------------------------------------------------------ reading

    async def list_runs(self, request: Request, principal: Principal) -> Response:
        """A page of runs, newest first."""
        query = read_query(request, ListRuns)
        is_unfinished = query.status in ("running", "interrupted")
        page = await self._context.reader.runs(
            crew=query.crew,
            status="running" if is_unfinished else query.status,
            conversation=query.conversation,
            since=query.since,
            limit=query.limit,
            cursor=query.cursor,
            metadata=principal.own_runs,
        )
        found = [await self._facts(info) for info in page.runs]
        # A store does not know which unfinished runs a process drives: the page may be shorter than its limit.
        listed = [run for run in found if not is_unfinished or run.status == query.status]
        return json_response(RunList(runs=listed, cursor=page.cursor))

    async def _facts(self, info: StoredRunInfo) -> RunFacts:
        return self._context.scrub(info.crew, run_facts(info, await self._context.status(info)))

    async def read_run(self, request: Request, principal: Principal) -> Response:
        """One run: status, output, usage, pauses and times."""
        record = await self._context.run(principal, path_id(request))
        executor = self._context.executors.get(record.info.crew)
        status = await self._context.status(record.info)
        plan = None if executor is None else executor.plan
        may_answer = principal.may("approve")
        found = await run_answer(self._context.reader, record, status, plan, may_answer=may_answer)
        return json_response(self._context.scrub(record.info.crew, found))

    async def read_events(self, request: Request, principal: Principal) -> Response:
        """The events of a run after a cursor, then live."""
        query = read_query(request, ReadEvents)
        after = parse_cursor(_last_event_id(request) or query.after)
        run_id = path_id(request)
        await self._context.info(principal, run_id)
        items = self._context.follow_batches(
            run_id,
            after,
            until=ENDED if query.follow else STOPPED,
            reconnects=after is not None,
            with_instructions=principal.may("all"),
        )
        return EventResponse(encode_all(items), self._context.settings.send_seconds)

    async def read_transcript(self, request: Request, principal: Principal) -> Response:
        """Every message of a run, with those of the runs that it continues."""
        run_id = path_id(request)
        info = await self._context.info(principal, run_id)
        messages = self._context.scrub(info.crew, await self._context.reader.transcript(run_id))
        return json_response(TranscriptAnswer(run_id=run_id, messages=list(messages)))

    # ------------------------------------------------------------------------------------------ changing

    async def answer_pauses(self, request: Request, principal: Principal) -> Response:
        """Answer pauses, and resume the run; without answers, resume an interrupted or failed run."""
        is_stream = wants_stream(request)
        body = await read_body(request, Answers)
        run_id = path_id(request)
        before = (await self._control.resume(principal, run_id, body.answers)).info
        after = Cursor.after_commit(before.version)
        return await self._answer_started(request, principal, run_id, 202, after=after, is_stream=is_stream)

    async def cancel_run(self, request: Request, principal: Principal) -> Response:
        """Cancel a run that is under way, paused, failed or interrupted."""
        await self._control.cancel(principal, path_id(request))
        return await self.read_run(request, principal)

    # ------------------------------------------------------------------------------------------ conversations

    async def list_conversations(self, request: Request, principal: Principal) -> Response:
        """The conversations of a page of runs, newest first, each with its newest run."""
        query = read_query(request, ListConversations)
        page = await self._context.reader.runs(
            crew=query.crew, limit=query.limit, cursor=query.cursor, metadata=principal.own_runs
        )
        newest: dict[str, StoredRunInfo] = {}

        for info in page.runs:
            newest.setdefault(info.conversation_id, info)

        listed = [
            ConversationFacts(conversation_id=id, newest_run=await self._facts(info)) for id, info in newest.items()
        ]
        return json_response(ConversationList(conversations=listed, cursor=page.cursor))

    async def read_conversation(self, request: Request, principal: Principal) -> Response:
        """A conversation: its runs, its messages, and the pauses that wait for an answer."""
        id = path_id(request, "conversation_id")
        runs = await self._context.conversation(principal, id)
        # Read from the store, not by the executor: the service may not have the crew of this conversation.
        newest = await self._context.run(principal, runs[-1].run_id)
        messages = await self._context.reader.transcript(newest.info.run_id)
        may_answer = principal.may("approve")
        pauses = [pause_answer(pause, may_answer=may_answer) for pause in pending_pauses(newest.state)]
        return json_response(
            ConversationAnswer(
                conversation_id=id,
                crew=newest.info.crew,
                agent=newest.state.agent,
                runs=[await self._facts(info) for info in runs],
                messages=list(self._context.scrub(newest.info.crew, messages)),
                pauses=self._context.scrub(newest.info.crew, pauses),
            )
        )


def _last_event_id(request: Request) -> str | None:
    """The header of a client that continues a stream; `HTTPError` if it can't be the id of an event."""
    last = request.headers.get("last-event-id")

    if last and not re.fullmatch(CURSOR_PATTERN, last):
        text = f"The header Last-Event-ID must be the id of an event, such as 12.0, not {abbreviate(last)}."
        raise HTTPError(422, "invalid_input", text)

    return last or None


def wants_stream(request: Request) -> bool:
    """Whether a client asks for server-sent events, by the query or by its `Accept` header."""
    asked = read_query(request, StreamChoice).stream
    return asked or "text/event-stream" in request.headers.get("accept", "")
