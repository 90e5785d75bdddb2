"""Runs in a PostgreSQL database, for processes on several machines."""

from __future__ import annotations

import json
import weakref
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Annotated, Any, TypeVar
from uuid import uuid4

from pydantic import Field, JsonValue

from crew.errors import ConversationBusy, DefinitionError, RunConflict, RunExists, StoreError, UnknownRun
from crew.messages import Message
from crew.runs.events import Event, RunFailed
from crew.runs.interfaces import Cursor, FoundMessage, RunPage, RunRecord, StoredEvent, StoredRun, StoredRunInfo
from crew.runs.leases import Lease
from crew.runs.state import Finished, RunState, run_status
from crew.settings import Accepts, PositiveInt, Seconds, value_problems
from crew.store.codec import encode_messages
from crew.store.postgres_effects import PostgresEffects
from crew.store.postgres_leases import PostgresLeases
from crew.store.postgres_reader import PostgresReader
from crew.store.postgres_server import KeyTaken, PostgresServer
from crew.store.postgres_statements import APPEND, CONTINUE, INSERT, UPDATE
from crew.store.postgres_url import PostgresUrl, check_url
from crew.store.rows import NewRows, Written, WrittenRuns, check_page, event_rows, metadata_rows, new_rows

Value = TypeVar("Value")

ATTEMPTS = 5
_LongestWait = Annotated[float, Field(ge=0), Accepts("a number of seconds, 0 or above")]


class PostgresStore:
    """Stores every run with its messages and events in the tables of one schema; finished runs can't be resumed.

    url                such as `postgresql://user@host:5432/database`. Its query may hold options of the connection and
                       settings of the server, such as `?sslmode=require&application_name=shop`.
    pool_size          the largest number of connections for commits and reads; one more receives notifications.
    schema             where the tables are; created by the first process that connects.
    reconnect_seconds  how long a commit waits for a server that went away before the run fails; it can be resumed.
    lease_seconds      how long a process that stopped renewing the lease of its run still owns it.
    read_only          the tables must exist and are never changed.

    A commit is one statement, guarded by the version. It has an id: if its answer is lost, the store reconnects,
    repeats it, and recognises it by the id if the first attempt was stored.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 10,
        schema: str = "crew",
        reconnect_seconds: float = 20.0,
        lease_seconds: float = 15.0,
        read_only: bool = False,
    ) -> None:
        if find_spec("asyncpg") is None:
            raise StoreError("", "PostgresStore needs the extra `postgres`: pip install 'crew-executor[postgres]'")

        check_url(url)
        problems = [
            *value_problems(PositiveInt, {"pool_size": pool_size}),
            *value_problems(_LongestWait, {"reconnect_seconds": reconnect_seconds}),
            *value_problems(Seconds, {"lease_seconds": lease_seconds}),
        ]

        if not (schema.isascii() and schema.isidentifier() and schema == schema.lower() and len(schema) <= 40):
            problems += [f"schema: {schema!r} is not a name of at most 40 lower-case letters, digits and _"]

        if problems:
            raise DefinitionError("PostgresStore", problems)

        self._server = PostgresServer(
            url, schema=schema, pool_size=pool_size, reconnect_seconds=reconnect_seconds, read_only=read_only
        )
        self._reader, self._written = PostgresReader(self._server), WrittenRuns()
        self._uncertain: dict[str, tuple[str, tuple[Event, ...]]] = {}
        """By run: the commit id and the events of an append that may have been stored."""
        self._leases = PostgresLeases(self._server, seconds=lease_seconds)
        # Closes the connections of a store that was not closed, with its last reference or at the exit.
        self._close = weakref.finalize(self, self._server.close)

    @classmethod
    def from_url(cls, url: str, *, read_only: bool = False) -> PostgresStore:
        """A store whose options may be in the query of the URL: `postgresql://host/runs?pool_size=20&schema=shop`."""
        parsed = PostgresUrl.parse(url)
        return cls(
            parsed.text,
            pool_size=parsed.number("pool_size", 10),
            schema=parsed.options.get("schema", "crew"),
            reconnect_seconds=parsed.number("reconnect_seconds", 20.0),
            lease_seconds=parsed.number("lease_seconds", 15.0),
            read_only=read_only,
        )

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        """Write the step in one statement."""
        await self._run(self._commit(run_id, version, events, state), run_id, "could not be stored")

    async def commit_first(self, run_id: str, events: Sequence[Event], state: RunState, lease: Lease) -> None:
        """Write the first step of a run and its lease in one statement."""
        await self._run(self._commit(run_id, 0, events, state, lease), run_id, "could not be stored")

    async def load(self, run_id: str) -> StoredRun:
        """The newest state, with its whole transcript."""
        return await self._run(self._load(run_id), run_id, "can't be loaded")

    async def append_events(self, run_id: str, version: int, events: Sequence[Event]) -> None:
        """Append events to the newest commit; a run that failed gets the status `failed`."""
        await self._run(self._append(run_id, version, events), run_id, "could not be stored")

    async def last_turn(self, conversation_id: str) -> StoredRun | None:
        """The newest run of a conversation, with the messages that its state refers to."""
        return await self._run(self._reader.last_turn(conversation_id))

    async def runs(
        self,
        *,
        crew: str | None = None,
        status: str | None = None,
        conversation: str | None = None,
        since: float | None = None,
        limit: int = 50,
        cursor: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> RunPage:
        """The runs that match, newest first, a page of them."""
        check_page(status, limit, cursor, metadata)
        filters = {"crew = ": crew, "status = ": status, "conversation_id = ": conversation, "updated >= ": since}
        return await self._run(self._reader.runs(filters, limit, cursor, metadata or {}))

    async def info(self, run_id: str) -> StoredRunInfo:
        """The facts of a run, without its state and its messages."""
        return await self._run(self._reader.info(run_id), run_id, "can't be read")

    async def run(self, run_id: str) -> RunRecord:
        """A run with its newest state, also a finished one."""
        return await self._run(self._reader.run(run_id), run_id, "can't be read")

    async def events(self, run_id: str, after: Cursor | None = None, limit: int = 1_000) -> tuple[StoredEvent, ...]:
        """The stored events of a run after a cursor, in order."""
        check_page(limit=limit)
        return await self._run(self._reader.events(run_id, after, limit), run_id, "can't be read")

    async def transcript(self, run_id: str) -> tuple[Message, ...]:
        """Every message of a run, or of the newest run of a conversation."""
        return await self._run(self._reader.transcript(run_id), run_id, "can't be read")

    async def conversation(self, conversation_id: str) -> tuple[StoredRunInfo, ...]:
        """The runs of a conversation, oldest first."""
        return await self._run(self._reader.conversation(conversation_id))

    async def search(self, words: str, *, limit: int = 20) -> tuple[FoundMessage, ...]:
        """The messages that contain all these words, newest first; messages are scanned until the limit is reached."""
        check_page(limit=limit)
        return await self._run(self._reader.search(words, limit))

    async def forget(self, id: str, *, conversation: bool = False) -> int:
        """Erase a run or a conversation; the number of runs erased."""
        return await self._run(self._forget(id, is_conversation=conversation), id, "can't be erased")

    async def wait_for_events(self, run_id: str, after: Cursor | None = None, timeout: float | None = None) -> bool:
        """Wait until the run has a stored event after this cursor, written by any process; False after `timeout`."""
        newer = (
            "SELECT 1 FROM {schema}.events WHERE run_id = $1 AND (version, number) > ($2::bigint, $3::bigint) LIMIT 1"
        )

        async def is_stored() -> bool:
            return bool(await self._server.fetch(newer, run_id, *(after or (0, -1))))

        waiting = self._server.wait_until(run_id, is_stored, timeout)
        return await self._run(waiting, run_id, "can't be followed")

    def leases(self) -> PostgresLeases:
        """The leases of the runs in this store: each run under way has one owner among all processes."""
        return self._leases

    def effects(self) -> PostgresEffects:
        """The outcomes of effects that other processes perform."""
        return PostgresEffects(self._server)

    def close(self) -> None:
        """Close the connections."""
        self._close()

    async def _run(self, work: Coroutine[Any, Any, Value], run_id: str = "", failure: str = "") -> Value:
        """Run work on the loop of the connections; errors name the run."""
        try:
            return await self._server.run(work)
        except StoreError as error:
            if error.run_id or not run_id:
                raise

            # The coroutine of the store may raise errors of the codec, which know neither the run nor the server.
            raise StoreError(run_id, f"Run {run_id!r} {failure}: {error}") from error

    # ------------------------------------------------------------------------------------------ writing

    async def _commit(
        self, run_id: str, version: int, events: Sequence[Event], state: RunState, lease: Lease | None = None
    ) -> None:
        commit_id, events = uuid4().hex, await self._without_stored(run_id, events)
        known = None if version == 0 else self._written.find(run_id, version)

        if version and known is None:
            known = await self._find_written(run_id, version)

        for statement, written, more in _attempts(known, state, self._leases.first_values(lease)):
            rows = new_rows(written, events, state)
            values = [run_id, version, commit_id, *_row_values(rows), *_run_values(state, rows), *more]

            if await self._write(statement, values):
                break
        else:
            await self._check_own_commit(version, commit_id, state)

        self._written.record_commit(written, rows, state)
        self._server.notify_soon(run_id)

    async def _write(self, statement: str, values: list[object]) -> bool:
        """Whether the rows were written; not if the version differs, or another turn came first."""
        for _ in range(ATTEMPTS):
            try:
                return bool(await self._server.fetch(statement, *values))
            except KeyTaken as error:
                taken = error  # two runs continued the same run at the same time: now the other one is visible

        raise taken

    async def _check_own_commit(self, version: int, commit_id: str, state: RunState) -> None:
        """Raise unless a commit that wrote nothing is stored already, because its first answer was lost."""
        run_id, conversation_id = state.run_id, state.conversation_id
        found = await self._server.fetch("SELECT version, commit_id FROM {schema}.runs WHERE run_id = $1", run_id)

        if found and found[0]["commit_id"] == commit_id:
            return

        if version:
            raise RunConflict(run_id, version, found[0]["version"] if found else 0)

        if found:
            raise RunExists(run_id)

        newest = await self._reader.newest_run(conversation_id)

        if newest is None or newest == state.parent_run:
            raise StoreError(
                run_id, f"The conversation {conversation_id!r} was erased while this turn began; try again."
            )

        raise ConversationBusy(conversation_id, newest)

    async def _append(self, run_id: str, version: int, events: Sequence[Event]) -> None:
        commit_id, events = uuid4().hex, await self._without_stored(run_id, events)
        failed = any(isinstance(event, RunFailed) and event.run_id == run_id for event in events)
        columns = [[row[column] for row in event_rows(events, 0)] for column in range(4)]

        try:
            await self._server.fetch(APPEND, run_id, version, commit_id, failed, *columns)
        except BaseException:  # the server may have stored them nevertheless; the error is raised again
            self._uncertain[run_id] = (commit_id, tuple(events))
            raise

        self._server.notify_soon(run_id)

    async def _without_stored(self, run_id: str, events: Sequence[Event]) -> Sequence[Event]:
        """The events without those at their start that an append stored whose answer was lost."""
        if run_id not in self._uncertain:
            return events

        commit_id, appended = self._uncertain[run_id]
        found = await self._server.fetch("SELECT commit_id FROM {schema}.runs WHERE run_id = $1", run_id)
        del self._uncertain[run_id]
        is_stored = bool(found) and found[0]["commit_id"] == commit_id and tuple(events[: len(appended)]) == appended
        return events[len(appended) :] if is_stored else events

    async def _find_written(self, run_id: str, version: int) -> Written:
        """What an earlier process stored of this run."""
        found = await self._server.fetch("SELECT version, messages FROM {schema}.runs WHERE run_id = $1", run_id)

        if not found or found[0]["version"] != version:
            raise RunConflict(run_id, version, found[0]["version"] if found else 0)

        below = "SELECT path, max(position) + 1 FROM {schema}.messages WHERE path >= $1 AND path < $2 GROUP BY path"
        ends = await self._server.fetch(below, f"{run_id}/", f"{run_id}0")
        positions = {**dict(map(tuple, ends)), run_id: found[0]["messages"]}
        return Written(version=version, next_positions=positions)

    # ------------------------------------------------------------------------------------------ reading

    async def _load(self, run_id: str) -> StoredRun:
        record = await self._reader.run(run_id)

        if isinstance(record.state.next, Finished):
            raise UnknownRun(run_id, is_finished=True)

        self._written.record_load(record.info.version, record.state)
        return StoredRun(version=record.info.version, state=record.state)

    async def _forget(self, id: str, *, is_conversation: bool) -> int:
        self._written.clear()
        return await self._reader.forget(id, is_conversation=is_conversation)


def _attempts(
    known: Written | None, state: RunState, lease: Sequence[object]
) -> Iterator[tuple[str, Written, list[object]]]:
    """The statements to try in order, until one of them writes: with what is stored before it, and its last values."""
    if known is not None:
        yield UPDATE, known, []
        return

    run_id, inherited = state.run_id, state.inherited_messages
    rows = metadata_rows(state.metadata)
    first: list[object] = [state.conversation_id, state.crew, state.parent_run, json.dumps(state.metadata), state.turn]
    first += [[key for key, _ in rows], [value for _, value in rows], *lease]

    if state.parent_run and inherited:
        written = Written(version=0, next_positions={run_id: inherited})
        # A turn of a conversation was loaded from here, perhaps in part.
        last = b"" if state.turn else encode_messages(state.transcript[inherited - 1 : inherited])[0]
        yield CONTINUE, written, [*first, inherited, last]

        if state.turn:
            return

    yield INSERT, Written(version=0, next_positions={}), first


def _row_values(rows: NewRows) -> Iterator[Sequence[object]]:
    """The columns of the messages and of the events."""
    yield from ([row[column] for row in rows.messages] for column in range(3))
    yield from ([row[column] for row in rows.events] for column in range(4))


def _run_values(state: RunState, rows: NewRows) -> tuple[object, ...]:
    return (state.agent, run_status(state), len(state.transcript), state.last_event_at, rows.state)
