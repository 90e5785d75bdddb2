"""Runs in a PostgreSQL database, for processes on several machines."""

from __future__ import annotations

import json
import weakref
from collections.abc import Coroutine, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit
from uuid import uuid4

from crew.errors import ConversationBusy, DefinitionError, RunConflict, RunExists, StoreError, UnknownRun
from crew.messages import Message
from crew.runs.events import Event, RunFailed
from crew.runs.interfaces import Cursor, FoundMessage, RunPage, RunRecord, StoredEvent, StoredRun, StoredRunInfo
from crew.runs.state import Finished, RunState, run_status
from crew.settings import PositiveInt, value_problems
from crew.store.codec import encode_messages
from crew.store.postgres_leases import PostgresLeases
from crew.store.postgres_reader import PostgresReader
from crew.store.postgres_server import KeyTaken, PostgresServer
from crew.store.rows import NewRows, Written, WrittenRuns, check_page, event_rows, new_rows

Value = TypeVar("Value")

ATTEMPTS = 5

_ADD_ROWS = """
added AS (
  INSERT INTO {schema}.messages (path, position, message)
  SELECT CASE WHEN m.run_id = run.run_id THEN run.path ELSE m.run_id END, m.position, m.message
  FROM run, unnest($4::text[], $5::integer[], $6::bytea[]) AS m (run_id, position, message)
), recorded AS (
  INSERT INTO {schema}.events (run_id, version, number, kind, at, event)
  SELECT run.run_id, $2::integer + 1, e.* FROM run,
    unnest($7::integer[], $8::text[], $9::double precision[], $10::bytea[]) AS e
)
SELECT run_id FROM run
"""

_INSERT_RUN = """
  INSERT INTO {schema}.runs (run_id, version, commit_id, agent, status, messages, updated, state,
    conversation_id, crew, parent_run, metadata, created, turn, path, inherited)
"""

_FOLLOWS = """($20::integer = 0 OR $18 = coalesce(
  (SELECT run_id FROM {schema}.runs WHERE conversation_id = $16 ORDER BY id DESC LIMIT 1), $18
))"""
"""Whether a turn follows the newest run of its conversation. Of two that do at once, an index refuses the second."""

_UPDATE = (
    """
WITH run AS (
  UPDATE {schema}.runs
  SET version = $2::integer + 1, commit_id = $3, agent = $11, status = $12, messages = $13, updated = $14, state = $15
  WHERE run_id = $1 AND version = $2::integer RETURNING run_id, path
), """
    + _ADD_ROWS
)
"""A later commit. A commit of another process that is under way is waited for; then the version differs."""

_INSERT = (
    "WITH run AS ("
    + _INSERT_RUN
    + """
  SELECT $1, $2::integer + 1, $3, $11, $12, $13::integer, $14::double precision, $15::bytea, $16, $17, $18, $19,
    $14::double precision, $20::integer, $1, 0 WHERE """
    + _FOLLOWS
    + """
  ON CONFLICT (run_id) DO NOTHING RETURNING run_id, path
), """
    + _ADD_ROWS
)
"""The first commit of a run."""

_CONTINUE = (
    """
WITH RECURSIVE parent AS (
  SELECT path, status FROM {schema}.runs WHERE run_id = $18 AND messages >= $21 FOR KEY SHARE
), line (path) AS (
  SELECT path FROM parent
  UNION ALL SELECT paths.parent FROM line JOIN {schema}.paths USING (path) WHERE fork >= $21
), place AS (
  SELECT path, status IN ('running', 'paused', 'failed') OR EXISTS (
    SELECT 1 FROM {schema}.messages m WHERE m.path = parent.path AND m.position >= $21
  ) AS forks
  FROM parent WHERE $20::integer > 0 OR EXISTS (
    SELECT 1 FROM line JOIN {schema}.messages m ON m.path = line.path AND m.position = $21 - 1 AND m.message = $22
  )
), run AS ("""
    + _INSERT_RUN
    + """
  SELECT $1, $2::integer + 1, $3, $11, $12, $13::integer, $14::double precision, $15::bytea, $16, $17, $18, $19,
    $14::double precision, $20::integer, CASE WHEN forks THEN $1 ELSE path END, $21 FROM place WHERE """
    + _FOLLOWS
    + """
  ON CONFLICT (run_id) DO NOTHING RETURNING run_id, path
), forked AS (
  INSERT INTO {schema}.paths (path, parent, fork) SELECT run.run_id, place.path, $21 FROM run, place WHERE forks
), """
    + _ADD_ROWS
)
"""The first commit of a run that continues another one; no row if that one, or its last message, is not stored here."""


_APPEND = """
WITH run AS (
  UPDATE {schema}.runs SET status = CASE WHEN $4 THEN 'failed' ELSE status END, commit_id = $3
  WHERE run_id = $1 AND version = $2 AND commit_id <> $3 RETURNING run_id, version
), first AS (
  SELECT coalesce(max(number) + 1, 0) AS number FROM {schema}.events WHERE run_id = $1 AND version = $2
), recorded AS (
  INSERT INTO {schema}.events (run_id, version, number, kind, at, event)
  SELECT run.run_id, run.version, first.number + e.number, e.kind, e.at, e.event FROM run, first,
    unnest($5::integer[], $6::text[], $7::double precision[], $8::bytea[]) AS e (number, kind, at, event)
)
SELECT run_id FROM run
"""
"""Events after the newest commit; nothing if another commit followed, or if these were appended already."""


class PostgresStore:
    """Stores every run with its messages and events in the tables of one schema; finished runs can't be resumed.

    url                such as `postgresql://user@host:5432/database`; the options of libpq are accepted in its query.
    pool_size          the largest number of connections for commits and reads; one more receives notifications.
    schema             where the tables are; created by the first process that connects.
    reconnect_seconds  how long a commit waits for a server that went away before the run fails; it can be resumed.
    lease_seconds      how long a process that stopped renewing the lease of its run still owns it.

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
    ) -> None:
        if find_spec("asyncpg") is None:
            raise StoreError("", "PostgresStore needs the extra `postgres`: pip install crew-executor[postgres]")

        problems = value_problems(PositiveInt, {"pool_size": pool_size})

        if not (schema.isascii() and schema.isidentifier() and schema == schema.lower() and len(schema) <= 40):
            problems += [f"schema: {schema!r} is not a name of at most 40 lower-case letters, digits and _"]

        if problems:
            raise DefinitionError("PostgresStore", problems)

        self._server = PostgresServer(url, schema=schema, pool_size=pool_size, reconnect_seconds=reconnect_seconds)
        self._reader, self._written = PostgresReader(self._server), WrittenRuns()
        self._leases = PostgresLeases(self._server, seconds=lease_seconds)
        # Closes the connections of a store that was not closed, with its last reference or at the exit.
        self._close = weakref.finalize(self, self._server.close)

    @classmethod
    def from_url(cls, url: str) -> PostgresStore:
        """A store whose options may be in the query of the URL: `postgresql://host/runs?pool_size=20&schema=shop`."""
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True)
        options = {name: value for name, value in query if name in ("pool_size", "schema", "reconnect_seconds")}
        rest = urlencode([(name, value) for name, value in query if name not in options])

        try:
            size, seconds = int(options.get("pool_size", 10)), float(options.get("reconnect_seconds", 20))
        except ValueError as error:
            raise DefinitionError("PostgresStore", f"an option of the URL is not a number: {error}") from error

        address = urlunsplit(parts._replace(query=rest))
        return cls(address, pool_size=size, schema=options.get("schema", "crew"), reconnect_seconds=seconds)

    async def commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        """Write the step in one statement."""
        await self._run(self._commit(run_id, version, events, state), run_id, "could not be stored")

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
    ) -> RunPage:
        """The runs that match, newest first, a page of them."""
        check_page(status, limit, cursor)
        filters = {"crew = ": crew, "status = ": status, "conversation_id = ": conversation, "updated >= ": since}
        return await self._run(self._reader.runs(filters, limit, cursor))

    async def run(self, run_id: str) -> RunRecord:
        """A run with its newest state, also a finished one."""
        return await self._run(self._reader.run(run_id), run_id, "can't be read")

    async def events(self, run_id: str, after: Cursor | None = None, limit: int = 1_000) -> tuple[StoredEvent, ...]:
        """The stored events of a run after a cursor, in order."""
        return await self._run(self._reader.events(run_id, after, limit), run_id, "can't be read")

    async def transcript(self, run_id: str) -> tuple[Message, ...]:
        """Every message of a run, or of the newest run of a conversation."""
        return await self._run(self._reader.transcript(run_id), run_id, "can't be read")

    async def conversation(self, conversation_id: str) -> tuple[StoredRunInfo, ...]:
        """The runs of a conversation, oldest first."""
        return await self._run(self._reader.conversation(conversation_id))

    async def search(self, words: str, *, limit: int = 20) -> tuple[FoundMessage, ...]:
        """The messages that contain all these words, newest first; messages are scanned until the limit is reached."""
        return await self._run(self._reader.search(words, limit))

    async def forget(self, id: str) -> int:
        """Erase a run or a conversation; the number of runs erased."""
        return await self._run(self._forget(id), id, "can't be erased")

    async def wait_for_events(self, run_id: str, after: Cursor | None = None) -> None:
        """Wait until the run has a stored event after this cursor, written by any process."""
        newer = "SELECT 1 FROM {schema}.events WHERE run_id = $1 AND (version, number) > ($2, $3) LIMIT 1"

        async def is_stored() -> bool:
            return bool(await self._server.fetch(newer, run_id, *(after or (0, -1))))

        await self._run(self._server.wait_until("events", run_id, is_stored), run_id, "can't be followed")

    def leases(self) -> PostgresLeases:
        """The leases of the runs in this store: each run under way has one owner among all processes."""
        return self._leases

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

    async def _commit(self, run_id: str, version: int, events: Sequence[Event], state: RunState) -> None:
        commit_id = uuid4().hex
        known = None if version == 0 else self._written.find(run_id, version)

        if version and known is None:
            known = await self._find_written(run_id, version)

        for statement, written, more in _attempts(known, state):
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
        failed = any(isinstance(event, RunFailed) and event.run_id == run_id for event in events)
        columns = [[row[column] for row in event_rows(events, 0)] for column in range(4)]
        await self._server.fetch(_APPEND, run_id, version, uuid4().hex, failed, *columns)
        self._server.notify_soon(run_id)

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
            raise UnknownRun(run_id)

        self._written.record_load(record.info.version, record.state)
        return StoredRun(version=record.info.version, state=record.state)

    async def _forget(self, id: str) -> int:
        self._written.clear()
        return await self._reader.forget(id)


def _attempts(known: Written | None, state: RunState) -> Iterator[tuple[str, Written, list[object]]]:
    """The statements to try in order, until one of them writes: with what is stored before it, and its last values."""
    if known is not None:
        yield _UPDATE, known, []
        return

    run_id, inherited = state.run_id, state.inherited_messages
    first: list[object] = [state.conversation_id, state.crew, state.parent_run, json.dumps(state.metadata), state.turn]

    if state.parent_run and inherited:
        written = Written(version=0, next_positions={run_id: inherited})
        # A turn of a conversation was loaded from here, perhaps in part.
        last = b"" if state.turn else encode_messages(state.transcript[inherited - 1 : inherited])[0]
        yield _CONTINUE, written, [*first, inherited, last]

        if state.turn:
            return

    yield _INSERT, Written(version=0, next_positions={}), first


def _row_values(rows: NewRows) -> Iterator[Sequence[object]]:
    """The columns of the messages and of the events."""
    yield from ([row[column] for row in rows.messages] for column in range(3))
    yield from ([row[column] for row in rows.events] for column in range(4))


def _run_values(state: RunState, rows: NewRows) -> tuple[object, ...]:
    return (state.agent, run_status(state), len(state.transcript), state.last_event_at, rows.state)
