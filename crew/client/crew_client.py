"""`CrewClient`: runs crews on a service that `crew serve` started, with the methods of `CrewExecutor`."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import httpx2

from crew.client.remote_runs import (
    GatewayError,
    RemoteConversation,
    RemoteRun,
    adapter,
    check_stream,
    checked,
    checked_result,
    read_run,
    unreachable,
)
from crew.errors import CrewError, DefinitionError, InvalidInput
from crew.messages import Message
from crew.runs.answers import Approve, Refuse
from crew.runs.events import Event
from crew.runs.interfaces import Cursor
from crew.runs.parameters import RequestParameters
from crew.validation.validator import run_id_violations

OUTAGES = (httpx2.TransportError, GatewayError)
"""The errors of a service that is away for a time."""

FIRST_WAIT = 0.05
LONGEST_WAIT = 2.0


class CrewClient:
    """A client of one service.

    crew               the crew that runs; may be omitted if the service has one.
    reconnect_seconds  how long the client tries to reach a service that answered before and is away, also one behind
                       a proxy that answers 502, 503 or 504. A service that can't be connected to at first is an error
                       at once.
    """

    def __init__(
        self, url: str, token: str | None = None, *, crew: str | None = None, reconnect_seconds: float = 60.0
    ) -> None:
        if not url.lower().startswith(("http://", "https://")):
            raise DefinitionError("CrewClient", f"url must be like http://127.0.0.1:8000, not {url!r}")

        headers = {} if token is None else {"Authorization": f"Bearer {_checked_token(token)}"}
        # A stream is silent for at most the heartbeat of the service, 15 s.
        timeout = httpx2.Timeout(30.0, read=60.0)
        limits = httpx2.Limits(max_connections=None)  # each stream has a connection
        self._http = httpx2.AsyncClient(
            base_url=url.rstrip("/"), headers=headers, timeout=timeout, limits=limits, trust_env=False
        )
        self.url, self._crew, self.reconnect_seconds, self.was_reached = url, crew, reconnect_seconds, False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; runs continue on the service."""
        await self._http.aclose()

    # ------------------------------------------------------------------------------------------ running

    async def execute(self, input: str, **options: Any) -> RemoteRun:
        """Run the crew and wait for the result; the arguments are those of `execute_stream`."""
        return await self.execute_stream(input, **options).drain()

    def execute_stream(
        self,
        input: str,
        *,
        agent: str | None = None,
        parameters: RequestParameters | None = None,
        run_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        conversation: str | None = None,
        on_busy: Literal["error", "wait"] = "error",
        on_paused: Literal["error", "cancel"] = "error",
    ) -> RemoteStream:
        """The same run as a stream of events. The stream reconnects by itself; leaving it does not stop the run."""
        given = {
            "input": input,
            "crew": self._crew,
            "agent": agent,
            "conversation": conversation,
            "on_busy": on_busy,
            "on_paused": on_paused,
            "parameters": None if parameters is None else adapter(RequestParameters).dump_python(parameters),
            "metadata": dict(metadata or {}),
        }
        run_id = uuid.uuid4().hex if run_id is None else _checked_id(run_id)
        return RemoteStream(self, run_id, "/runs", given, after=None)

    async def resume(self, run_id: str, answers: Mapping[str, Any] | None = None) -> RemoteRun:
        """Answer pauses, or continue a run that was interrupted or failed, and wait for the result."""
        return await (await self.resume_stream(run_id, answers)).drain()

    async def resume_stream(self, run_id: str, answers: Mapping[str, Any] | None = None) -> RemoteStream:
        """The same as a stream of the events from the resume on."""
        before = await self.run(run_id)
        given = {id: one.as_json() if isinstance(one, Approve | Refuse) else one for id, one in (answers or {}).items()}
        after = Cursor.after_commit(before.version)
        return RemoteStream(self, run_id, f"{_run_path(run_id)}/answers", {"answers": given}, after=after)

    async def cancel(self, run_id: str) -> RemoteRun:
        """Cancel a run; one that ended stays as it is."""
        return read_run(await self.request("DELETE", _run_path(run_id)))

    # ------------------------------------------------------------------------------------------ reading

    async def run(self, run_id: str) -> RemoteRun:
        """One run, also one that is under way."""
        return read_run(await self.request("GET", _run_path(run_id)))

    async def runs(self, **filters: Any) -> tuple[Sequence[RemoteRun], str | None]:
        """A page of runs, newest first, and the `cursor` of the next page; None after the last one.

        The filters are `crew`, `status`, `conversation`, `since`, `limit` and `cursor`.
        """
        query = {name: value for name, value in filters.items() if value is not None}
        page = await self.request("GET", "/runs", params=query)
        return tuple(read_run(one) for one in page["runs"]), page["cursor"]

    async def conversation(self, id: str) -> RemoteConversation:
        """A stored conversation."""
        found: RemoteConversation = adapter(RemoteConversation).validate_python(
            await self.request("GET", f"/conversations/{_checked_id(id, 'conversation id')}")
        )
        return found

    async def transcript(self, run_id: str) -> tuple[Message, ...]:
        """Every message of a run, with those of the runs that it continues."""
        found = await self.request("GET", f"{_run_path(run_id)}/transcript")
        return tuple(adapter(list[Message]).validate_python(found["messages"]))

    async def request(self, method: str, path: str, **options: Any) -> Any:
        """The JSON answer to a request that may be repeated; an answer with an error raises it."""
        outage = Outage(self)

        while True:
            try:
                answer = await self._http.request(method, path, **options)
                self.was_reached = True
                return checked(answer).json()
            except OUTAGES as error:
                await outage.wait(error)

    def stream(self, method: str, path: str, **options: Any) -> Any:
        """An open response, as a context manager."""
        return self._http.stream(
            method, path, headers={"Accept": "text/event-stream"} | options.pop("headers", {}), **options
        )


def _checked_token(token: str) -> str:
    """A token that can be part of a header, without the line end of a file; an error does not show it."""
    stripped = token.strip()

    if not stripped or not (stripped.isascii() and stripped.isprintable()):
        text = "token must be printable ASCII characters (not shown); pass None for a service without tokens"
        raise DefinitionError("CrewClient", text)

    return stripped


def _run_path(run_id: str) -> str:
    return f"/runs/{_checked_id(run_id)}"


def _checked_id(id: str, name: str = "run id") -> str:
    """An id that can be part of a path."""
    if violations := [*run_id_violations(id, name)]:
        raise InvalidInput(violations)

    return id


class Outage:
    """The time in which a service does not answer: it begins with the first failed attempt."""

    def __init__(self, client: CrewClient) -> None:
        self._client, self._wait = client, FIRST_WAIT
        self._began: float | None = None

    def end(self) -> None:
        """The service answered: the next failure begins another outage."""
        self._began = None

    async def wait(self, error: Exception) -> None:
        """Wait before the next attempt, longer each time; raise `ServiceError` if it takes too long."""
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        is_over = now - self._began >= self._client.reconnect_seconds

        if is_over or not self._client.was_reached:
            raise unreachable(self._client.url, error) from error

        await asyncio.sleep(self._wait)
        self._wait = min(2 * self._wait, LONGEST_WAIT)


class RemoteStream:
    """The events of one run; `result` is available at the end.

    If the connection is cut, the stream connects again and continues after the last event: every stored event arrives
    exactly once and in order. Text deltas that were sent meanwhile are missing; `replied` has the whole text.
    """

    def __init__(self, client: CrewClient, run_id: str, path: str, body: Any, *, after: Cursor | None) -> None:
        self._client, self.run_id, self._path, self._body, self._after = client, run_id, path, body, after
        self._was_sent, self._is_accepted, self._is_ended = False, False, False
        self._outage = Outage(client)
        self._result: RemoteRun | None = None

    @property
    def result(self) -> RemoteRun:
        """The run as it stopped; raises `RunError` if it failed."""
        if self._result is None:
            raise CrewError(
                "The stream was not read to its end: iterate over all events before you ask for the result."
            )

        return checked_result(self._result)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the stream; the run continues on the service."""

    async def drain(self) -> RemoteRun:
        """Wait for the result."""
        async for _ in self:
            pass

        return self.result

    async def __aiter__(self) -> AsyncIterator[Event]:
        while not self._is_ended:
            try:
                async for event in self._read_connection():
                    self._outage = Outage(self._client)  # with the shortest wait
                    yield event

                cut: Exception = ConnectionError("the connection was closed")
            except OUTAGES as error:
                cut = error

            if not self._is_ended:
                await self._outage.wait(cut)

        self._result = await self._client.run(self.run_id)

    async def _read_connection(self) -> AsyncIterator[Event]:
        """The events of one connection: the first one starts or resumes the run, others continue it."""
        async with await self._open() as response:
            self._client.was_reached = True

            if not response.is_success:
                await response.aread()
                checked(response)

            check_stream(response)
            self._is_accepted = True

            async for fields in _read_fields(response, self._outage):
                if fields.get("event") == "end":
                    self._is_ended = True
                    return

                if "id" in fields:
                    self._after = Cursor.parse(fields["id"])

                event: Event = adapter(Event).validate_json(fields["data"])
                yield event

    async def _open(self) -> Any:
        if self._was_sent and not self._is_accepted and self._path != "/runs" and self._after is not None:
            # The answer to the attempt before may be lost: answers that are accepted must not be sent again.
            self._is_accepted = (await self._client.run(self.run_id)).version > self._after.version

        self._was_sent = True

        if self._is_accepted:
            headers = {} if self._after is None else {"Last-Event-ID": str(self._after)}
            return self._client.stream("GET", f"/runs/{self.run_id}/events", headers=headers)

        key = {"Idempotency-Key": self.run_id} if self._path == "/runs" else {}
        return self._client.stream("POST", self._path, json=self._body, headers=key)


async def _read_lines(response: Any) -> AsyncIterator[str]:
    """The lines of a body. `aiter_lines` would also split the texts of events, at separators such as U+2028."""
    pieces: list[str] = []

    async for text in response.aiter_text():
        first, *others = text.split("\n")
        pieces.append(first)

        for part in others:
            yield "".join(pieces).removesuffix("\r")
            pieces = [part]


async def _read_fields(response: Any, outage: Outage) -> AsyncIterator[dict[str, str]]:
    """The fields of each server-sent event that has data. Each line ends the outage, also one of a heartbeat."""
    fields: dict[str, str] = {}

    async for line in _read_lines(response):
        outage.end()

        if not line:
            if "data" in fields:
                yield fields

            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
