"""The routes of the inspector: its page, and the data that the page reads."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib.resources import files
from mimetypes import guess_type
from typing import Any
from weakref import WeakValueDictionary

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from crew.messages import UserMessage
from crew.runs.events import RunFinished, RunStarted
from crew.runs.interfaces import Cursor, RunRecord, StoredEvent, StoredRunInfo
from crew.server.access import Principal
from crew.server.http_errors import HTTPError
from crew.server.inspector_data import (
    MAX_LISTED_GOAL,
    RunView,
    find_message,
    list_facts,
    message_bytes,
    recording_json,
    search_messages,
    to_json_in_parts,
)
from crew.server.inspector_instructions import describe_head
from crew.server.inspector_what_if import describe, replay
from crew.server.invalid_requests import read_query
from crew.server.request_models import CursorText, RunId, parse_cursor
from crew.server.routing import Endpoint, checked, page_route, path_id
from crew.server.run_json import event_json, run_facts, without_instructions
from crew.server.server_context import ServerContext

PAGE_EVENTS = 2_000
MAX_VIEWS = 24
MAX_FACTS = 2_000
MAX_LISTED_MESSAGES = 500
"""Reading the state of a run with more messages takes too long for a list of runs."""
NO_STORE = {"Cache-Control": "no-store"}
STATIC = files("crew.server") / "static"
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def inspector_routes(context: ServerContext) -> Sequence[BaseRoute]:
    """The page for browsers, and its data."""
    api = InspectorAPI(context)

    def data(path: str, endpoint: Endpoint) -> Route:
        # Not made with `route`: the page and the server belong together, so that the OpenAPI document leaves them out.
        return Route(path, checked(context, endpoint, "read"), methods=["GET"])

    return [
        data("/", api.page),
        page_route(context, "/runs", api.page),
        page_route(context, "/runs/{run_id}", api.page),
        page_route(context, "/conversations/{conversation_id}", api.page),
        data("/static/{name}", api.static),
        data("/inspect/runs", api.list_runs),
        data("/inspect/runs/{run_id}", api.read),
        data("/inspect/runs/{run_id}/message", api.message),
        data("/inspect/runs/{run_id}/instructions", api.instructions),
        data("/inspect/runs/{run_id}/search", api.search),
        data("/inspect/runs/{run_id}/what-if", api.what_if),
        data("/inspect/runs/{run_id}/export", api.export),
        data("/inspect/conversations/{conversation_id}", api.conversation),
    ]


class _Query(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ListQuery(_Query):
    """The query of `GET /inspect/runs`."""

    conversation: RunId | None = None
    limit: int = Field(100, ge=1, le=500)
    cursor: str | None = Field(None, max_length=500)


class ReadQuery(_Query):
    """The query of `GET /inspect/runs/{run_id}`."""

    after: CursorText | None = None


class MessageQuery(_Query):
    """The query of `GET /inspect/runs/{run_id}/message`."""

    path: str = Field(max_length=1_000)
    position: int = Field(ge=0)


class InstructionsQuery(_Query):
    """The query of `GET /inspect/runs/{run_id}/instructions`; `head` is that of the request."""

    agent: str = Field(max_length=500)
    head: str = Field("", max_length=100)


class SearchQuery(_Query):
    """The query of `GET /inspect/runs/{run_id}/search`."""

    q: str = Field(max_length=500)


class WhatIfQuery(_Query):
    """The query of `GET /inspect/runs/{run_id}/what-if`; without a policy, it lists what can be asked."""

    policy: str | None = Field(None, max_length=100)
    limit: int = Field(50, ge=2, le=10_000)


class InspectorAPI:
    """The endpoints of the inspector."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._views: OrderedDict[str, RunView] = OrderedDict()
        self._facts: OrderedDict[tuple[str, int, str], dict[str, Any]] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._replays = asyncio.Semaphore(1)

    # ------------------------------------------------------------------------------------------ the page

    async def page(self, request: Request, principal: Principal) -> Response:
        """The page; it finds the run in its own address."""
        text = (STATIC / "index.html").read_text(encoding="utf-8")
        text = text.replace("{root}", request.scope.get("root_path", ""))
        return Response(text, media_type="text/html", headers=SECURITY_HEADERS)

    async def static(self, request: Request, principal: Principal) -> Response:
        """A file of the page."""
        name: str = request.path_params["name"]
        known = {entry.name for entry in STATIC.iterdir() if entry.is_file()}

        if name not in known:
            raise HTTPError(404, "not_found", "There is no such file.")

        media_type = "text/javascript" if name.endswith(".js") else guess_type(name)[0]
        return Response((STATIC / name).read_bytes(), media_type=media_type, headers=SECURITY_HEADERS)

    # ------------------------------------------------------------------------------------------ runs

    async def list_runs(self, request: Request, principal: Principal) -> Response:
        """A page of runs, newest first, with their cost."""
        query = read_query(request, ListQuery)
        context = self._context
        page = await context.reader.runs(
            conversation=query.conversation, limit=query.limit, cursor=query.cursor, metadata=principal.own_runs
        )
        rights = {
            "run": bool(context.executors) and principal.may("run"),
            "approve": bool(context.executors) and principal.may("approve"),
            "read_only": not context.executors,
        }
        listed = [await self._run_facts(info) for info in page.runs]
        return _json({"runs": listed, "cursor": page.cursor, "rights": rights, "crews": [*context.executors]})

    async def _run_facts(self, info: StoredRunInfo) -> dict[str, Any]:
        status = await self._context.status(info)
        key = (info.run_id, info.version, status)
        facts = self._facts.get(key)

        if facts is None:
            facts = self._facts[key] = await self._read_facts(info)

            if len(self._facts) > MAX_FACTS:
                self._facts.popitem(last=False)

        return self._context.scrub(info.crew, {**asdict(run_facts(info, status)), **facts})

    async def _read_facts(self, info: StoredRunInfo) -> dict[str, Any]:
        """The usage, input and active time of a run from its state; of a long finished one, from its events.

        Those events do not have the active time: it is None.
        """
        events = self._context.reader.events
        last = await events(info.run_id, Cursor(info.version, -1), 100)
        ended = next((one.event for one in reversed(last) if isinstance(one.event, RunFinished)), None)

        if ended is None or info.messages <= MAX_LISTED_MESSAGES:
            record = await self._context.reader.run(info.run_id)
            return list_facts(record.state, max((one.event.at for one in last), default=0.0))

        first = await events(info.run_id, None, 1)
        inputs = [one.event.messages[-1] for one in first if isinstance(one.event, RunStarted)]
        goal = next((one.text[:MAX_LISTED_GOAL] for one in inputs if isinstance(one, UserMessage)), "")
        usage = ended.usage
        return {"tokens": usage.total_tokens, "cost": usage.cost, "pauses": [], "goal": goal, "seconds": None}

    async def read(self, request: Request, principal: Principal) -> Response:
        """A run: what changed after a cursor, or all of it."""
        query = read_query(request, ReadQuery)
        record = await self._context.run(principal, path_id(request))
        status, after = await self._context.status(record.info), parse_cursor(query.after)
        may_answer, plan = principal.may("approve"), self._context.plan(record.info.crew)

        def encode(view: RunView) -> bytes:
            # With the cursor of another store, the page gets everything.
            known = after if after is not None and view.cursor is not None and after <= view.cursor else None
            changes = view.changes(known, status, may_answer=may_answer, plan=plan)
            return to_json_in_parts({**changes, "clock": time.time()})

        async with self._view(record) as view:
            data = await asyncio.to_thread(encode, view)

        return Response(data, media_type="application/json", headers=NO_STORE)

    @asynccontextmanager
    async def _view(self, record: RunRecord) -> AsyncGenerator[RunView, None]:
        """The view of a run with all stored events that led to this record.

        A large run takes seconds: threads update and read the view, one at a time. A view in use is not in `_views`,
        so that it is dropped if its reader is cancelled, because the thread goes on. A lock exists as long as a reader
        holds it or waits for it: readers of one run always have the same lock.
        """
        run_id = record.info.run_id

        async with self._locks.setdefault(run_id, asyncio.Lock()):
            view = self._views.pop(run_id, None) or RunView()

            while True:
                page = await self._context.reader.events(run_id, view.cursor, PAGE_EVENTS)

                if await asyncio.to_thread(self._update, view, record, page) < PAGE_EVENTS:
                    break

            yield view
            self._views[run_id] = view

            while len(self._views) > MAX_VIEWS:
                self._views.popitem(last=False)

    def _update(self, view: RunView, record: RunRecord, page: Sequence[StoredEvent]) -> int:
        return view.update(record, self._context.scrub(record.info.crew, page))

    async def conversation(self, request: Request, principal: Principal) -> Response:
        """The runs of a conversation, oldest first."""
        id = path_id(request, "conversation_id")
        runs = await self._context.conversation(principal, id)
        return _json({"conversation": id, "runs": [await self._run_facts(info) for info in runs]})

    # ------------------------------------------------------------------------------------------ messages

    async def message(self, request: Request, principal: Principal) -> Response:
        """A whole message."""
        query = read_query(request, MessageQuery)
        record = await self._context.run(principal, path_id(request))
        message = find_message(record.state, query.path, query.position)

        if message is None:
            raise HTTPError(404, "not_found", f"The transcript has no message at position {query.position}.")

        return Response(message_bytes(message), media_type="application/json", headers=NO_STORE)

    async def instructions(self, request: Request, principal: Principal) -> Response:
        """The instructions of an agent in a request; they belong to the operator, not to those who start runs."""
        query = InstructionsQuery.model_validate(dict(request.query_params))
        record = await self._context.run(principal, path_id(request))

        if not principal.may("all"):
            raise HTTPError(403, "forbidden", "The token lacks the scope 'all', which shows instructions.", scope="all")

        crew = record.info.crew
        plan = self._context.plan(crew)

        async with self._view(record) as view:
            found = describe_head(record, view, plan, query.agent, query.head)

        return _json(self._context.scrub(crew, found))

    async def search(self, request: Request, principal: Principal) -> Response:
        """The positions of the messages of a run that contain all words."""
        query = read_query(request, SearchQuery)
        record = await self._context.run(principal, path_id(request))
        return _json({"found": await asyncio.to_thread(search_messages, record.state, query.q)})

    async def export(self, request: Request, principal: Principal) -> Response:
        """A run with its transcript, branches and events, as a file that `crew simulate` reads."""
        record = await self._context.run(principal, path_id(request))
        info, after = record.info, None
        events: list[bytes] = []

        def encode(page: Sequence[StoredEvent]) -> list[bytes]:
            shown = [stored.event if principal.may("all") else without_instructions(stored.event) for stored in page]
            return [*map(event_json, self._context.scrub(info.crew, shown))]

        while page := await self._context.reader.events(info.run_id, after, PAGE_EVENTS):
            after = page[-1].cursor
            events += await asyncio.to_thread(encode, page)

        facts = self._context.scrub(info.crew, asdict(run_facts(info, await self._context.status(info))))
        data = await asyncio.to_thread(recording_json, facts, record, events)
        headers = {"Content-Disposition": f'attachment; filename="crew-{info.run_id.replace(":", "_")}.json"'}
        return Response(data, media_type="application/json", headers=headers)

    # ------------------------------------------------------------------------------------------ what if

    async def what_if(self, request: Request, principal: Principal) -> Response:
        """The run under another policy, replayed by the simulator in a thread; one replay at a time."""
        query = read_query(request, WhatIfQuery)
        record = await self._context.run(principal, path_id(request))

        async with self._view(record) as view:
            offered = describe(view)

        if query.policy is None:
            return _json(offered)

        async with self._replays:  # it reads of the view what its first events set: they do not change
            return _json(await asyncio.to_thread(replay, record.state, view, query.policy, query.limit))


def _json(value: object) -> JSONResponse:
    return JSONResponse(value, headers=NO_STORE)
