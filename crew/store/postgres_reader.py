"""Reads runs, events, transcripts and conversations from PostgreSQL, searches messages, and erases runs."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import JsonValue

from crew.errors import StoreError, UnknownRun
from crew.messages import Message, Transcript
from crew.runs.interfaces import Cursor, FoundMessage, RunPage, RunRecord, StoredEvent, StoredRun, StoredRunInfo
from crew.store.codec import BareState, decode_bare_state, decode_event, decode_messages, referred_messages
from crew.store.postgres_leases import FIND_LEASES, read_lease
from crew.store.postgres_server import Connection, PostgresServer
from crew.store.rows import (
    INFO_COLUMNS,
    UNFINISHED,
    check_no_owner,
    continued_error,
    message_text,
    metadata_rows,
    page_start,
    run_info,
    run_page,
)

Value = TypeVar("Value")

SEARCH_BATCH = 1_000

_READ_PATH = """
WITH RECURSIVE line (path, start, until, parent) AS (
  SELECT $1::text COLLATE "C", coalesce(max(fork), 0), $3::integer, max(parent) FROM {schema}.paths WHERE path = $1
  UNION ALL
  SELECT line.parent, coalesce(p.fork, 0), least(line.start, line.until), p.parent
  FROM line LEFT JOIN {schema}.paths p ON p.path = line.parent WHERE line.parent IS NOT NULL
)
SELECT m.message FROM line JOIN {schema}.messages m
  ON m.path = line.path AND m.position >= greatest(line.start, $2::integer) AND m.position < line.until
ORDER BY m.position
"""
"""The messages of a path from one position to before another, with those of the paths that it forks from."""

_READ_POSITIONS = """
WITH RECURSIVE line (path, start, until, parent) AS (
  SELECT $1::text COLLATE "C", coalesce(max(fork), 0), 2147483647, max(parent) FROM {schema}.paths WHERE path = $1
  UNION ALL
  SELECT line.parent, coalesce(p.fork, 0), least(line.start, line.until), p.parent
  FROM line LEFT JOIN {schema}.paths p ON p.path = line.parent WHERE line.parent IS NOT NULL
)
SELECT m.message FROM unnest($2::integer[]) AS wanted (position)
JOIN line ON wanted.position >= line.start AND wanted.position < line.until
JOIN {schema}.messages m ON m.path = line.path AND m.position = wanted.position
ORDER BY m.position
"""
"""The messages of a path at these positions."""

_SEARCH = """
SELECT m.id, m.path, m.position, m.message, (
  SELECT run_id FROM {schema}.runs r WHERE r.path = m.path AND r.messages > m.position ORDER BY r.messages LIMIT 1
) AS run_id
FROM {schema}.messages m
WHERE ($1::bigint IS NULL OR m.id < $1) AND convert_from(m.message, 'UTF8') ILIKE ALL ($2::text[])
ORDER BY m.id DESC LIMIT $3
"""
"""The newest messages whose JSON contains these patterns. They are scanned: an index would slow down each commit."""

_FORGET = (
    """DELETE FROM {schema}.messages m USING {schema}.runs r
    WHERE r.run_id = ANY($1) AND m.path = r.path AND m.position >= r.inherited""",
    """DELETE FROM {schema}.messages m USING unnest($1::text[]) AS erased (run_id)
    WHERE m.path >= erased.run_id || '/' AND m.path < erased.run_id || '0'""",
    "DELETE FROM {schema}.events WHERE run_id = ANY($1)",
    "DELETE FROM {schema}.effects WHERE run_id = ANY($1)",
    "DELETE FROM {schema}.paths WHERE path = ANY($1)",
    "DELETE FROM {schema}.metadata WHERE run_id = ANY($1)",
    "DELETE FROM {schema}.leases WHERE run_id = ANY($1)",
    "DELETE FROM {schema}.runs WHERE run_id = ANY($1)",
)


class PostgresReader:
    """Reads from the pool of a store, on its loop."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    # ------------------------------------------------------------------------------------------ runs

    async def runs(
        self, filters: Mapping[str, object], limit: int, cursor: str | None, metadata: Mapping[str, JsonValue]
    ) -> RunPage:
        """A page of the runs that match, newest first; filters that are None do not count."""
        given = {column: value for column, value in filters.items() if value is not None}
        conditions = [f"{column}${n}" for n, column in enumerate(given, 2)]
        values = [*given.values()]

        for row in metadata_rows(metadata):
            values += row
            place = len(values)
            conditions.append(
                "EXISTS (SELECT 1 FROM {schema}.metadata m WHERE m.run_id = runs.run_id "
                f"AND m.key = ${place} AND m.value = ${place + 1})"
            )

        if cursor is not None:
            values += page_start(cursor)
            conditions.append(f"(updated, run_id) < (${len(values)}, ${len(values) + 1})")

        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        order = "ORDER BY updated DESC, run_id DESC LIMIT $1"
        statement = f"SELECT {INFO_COLUMNS} FROM {{schema}}.runs AS runs {where} {order}"
        return run_page(await self._server.fetch(statement, limit + 1, *values), limit)

    async def info(self, run_id: str) -> StoredRunInfo:
        """The facts of a run, without its state and its messages."""
        rows = await self._server.fetch(f"SELECT {INFO_COLUMNS} FROM {{schema}}.runs WHERE run_id = $1", run_id)

        if not rows:
            raise UnknownRun(run_id)

        return run_info(rows[0])

    async def run(self, run_id: str) -> RunRecord:
        """A run with its newest state."""
        row, own, below = await self._snapshot(lambda connection: self._read_run(connection, run_id))
        *facts, state = row
        messages = {run_id: decode_messages(own), **_by_name(below)}
        return RunRecord(info=run_info(facts), state=decode_bare_state(state, messages))

    async def _read_run(self, connection: Connection, run_id: str) -> tuple[list[Any], list[bytes], list[Any]]:
        row = await connection.fetchrow(
            self._server.sql(f"SELECT {INFO_COLUMNS}, state, path FROM {{schema}}.runs WHERE run_id = $1"), run_id
        )

        if row is None:
            raise UnknownRun(run_id)

        *facts, path = row
        own = await self._read_path(connection, path, 0, row["messages"])
        return facts, own, await self._read_branches(connection, run_id)

    async def _read_branches(self, connection: Connection, run_id: str) -> list[Any]:
        below = "SELECT path, message FROM {schema}.messages WHERE path >= $1 AND path < $2 ORDER BY path, position"
        rows: list[Any] = await connection.fetch(self._server.sql(below), f"{run_id}/", f"{run_id}0")
        return rows

    async def newest_run(self, conversation_id: str) -> str | None:
        """The id of the run that was added last to a conversation; clocks do not decide it."""
        newest = "SELECT run_id FROM {schema}.runs WHERE conversation_id = $1 ORDER BY id DESC LIMIT 1"
        found = await self._server.fetch(newest, conversation_id)
        return found[0]["run_id"] if found else None

    async def last_turn(self, conversation_id: str) -> StoredRun | None:
        """The newest run of a conversation, with the messages that its state refers to."""
        return await self._snapshot(lambda connection: self._read_last_turn(connection, conversation_id))

    async def _read_last_turn(self, connection: Connection, conversation_id: str) -> StoredRun | None:
        row = await connection.fetchrow(
            self._server.sql(
                "SELECT run_id, version, path, messages, state FROM {schema}.runs WHERE conversation_id = $1 "
                "ORDER BY id DESC LIMIT 1"
            ),
            conversation_id,
        )

        if row is None:
            return None

        run_id, version, path, size, data = row
        state = BareState(data)
        positions = state.referenced_positions()
        rows = await connection.fetch(self._server.sql(_READ_POSITIONS), path, positions)

        if len(rows) != len(positions):
            raise StoreError(run_id, f"{len(positions) - len(rows)} messages of {path!r} are missing.")

        found = dict(zip(positions, decode_messages([one["message"] for one in rows]), strict=True))
        # Only an unfinished run appends to its branches.
        messages = {} if state.is_finished else _by_name(await self._read_branches(connection, run_id))
        start = size if state.is_finished else state.inherited_messages
        own = [found.pop(position) for position in range(start, size)]
        transcript = Transcript(own, start=start, older=found)
        return StoredRun(version=version, state=state.decode({**messages, run_id: transcript}))

    async def conversation(self, conversation_id: str) -> tuple[StoredRunInfo, ...]:
        """The runs of a conversation, oldest first."""
        statement = f"SELECT {INFO_COLUMNS} FROM {{schema}}.runs WHERE conversation_id = $1 ORDER BY created, id"
        return tuple(map(run_info, await self._server.fetch(statement, conversation_id)))

    # ------------------------------------------------------------------------------------------ events and messages

    async def events(self, run_id: str, after: Cursor | None, limit: int) -> tuple[StoredEvent, ...]:
        """The events of a run after a cursor, in order."""
        return await self._snapshot(lambda connection: self._read_events(connection, run_id, after, limit))

    async def _read_events(
        self, connection: Connection, run_id: str, after: Cursor | None, limit: int
    ) -> tuple[StoredEvent, ...]:
        path, _ = await self._find(connection, "run_id = $1", run_id)
        rows = await connection.fetch(
            self._server.sql(
                "SELECT version, number, event FROM {schema}.events "
                "WHERE run_id = $1 AND (version, number) > ($2::bigint, $3::bigint) ORDER BY version, number LIMIT $4"
            ),
            run_id,
            *(after or (0, -1)),
            limit,
        )
        referred: dict[str, list[int]] = {}

        for row in rows:
            for name, position in referred_messages(row["event"]):
                referred.setdefault(name, []).append(position)

        messages: dict[tuple[str, int], Message] = {}

        for name, positions in referred.items():
            first, end = min(positions), max(positions) + 1
            bodies = await self._read_path(connection, path if name == run_id else name, first, end)
            messages |= {(name, at): message for at, message in enumerate(decode_messages(bodies), first)}

        return tuple(
            StoredEvent(
                cursor=Cursor(row["version"], row["number"]),
                event=decode_event(row["event"], lambda name, position: messages[name, position]),
            )
            for row in rows
        )

    async def transcript(self, id: str) -> tuple[Message, ...]:
        """Every message of a run, or of the newest run of a conversation."""

        async def read(connection: Connection) -> list[bytes]:
            newest = "run_id = $1 OR conversation_id = $1 ORDER BY run_id = $1 DESC, created DESC, id DESC LIMIT 1"
            path, size = await self._find(connection, newest, id)
            return await self._read_path(connection, path, 0, size)

        return tuple(decode_messages(await self._snapshot(read)))

    async def _find(self, connection: Connection, where: str, id: str) -> tuple[str, int]:
        row = await connection.fetchrow(
            self._server.sql(f"SELECT path, messages FROM {{schema}}.runs WHERE {where}"), id
        )

        if row is None:
            raise UnknownRun(id)

        return row["path"], row["messages"]

    async def _read_path(self, connection: Connection, path: str, start: int, end: int) -> list[bytes]:
        return [row["message"] for row in await connection.fetch(self._server.sql(_READ_PATH), path, start, end)]

    async def _snapshot(self, read: Callable[[Connection], Awaitable[Value]]) -> Value:
        """Read in one transaction, so that commits of other processes can't come between the statements."""

        async def work(connection: Connection) -> Value:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return await read(connection)

        return await self._server.call(work)

    # ------------------------------------------------------------------------------------------ search

    async def search(self, words: str, limit: int) -> tuple[FoundMessage, ...]:
        """The messages that contain all words, newest first."""
        wanted = [word.casefold() for word in words.split()]
        found: list[FoundMessage] = []
        before: int | None = None

        while wanted and len(found) < limit:
            rows = await self._server.fetch(_SEARCH, before, [*map(_pattern, wanted)], SEARCH_BATCH)

            for row in rows:
                message = decode_messages([row["message"]])[0]
                text = message_text(message).casefold()

                if all(word in text for word in wanted):
                    run_id = row["run_id"] or row["path"]
                    found.append(FoundMessage(run_id=run_id, position=row["position"], message=message))

            if len(rows) < SEARCH_BATCH:
                break

            before = rows[-1]["id"]

        return tuple(found[:limit])

    # ------------------------------------------------------------------------------------------ erasing

    async def forget(self, id: str, *, is_conversation: bool) -> int:
        """Erase a run, or all runs of a conversation; the number of runs."""

        async def work(connection: Connection) -> int:
            async with connection.transaction():
                return await self._erase(connection, id, is_conversation=is_conversation)

        return await self._server.call(work)

    async def _erase(self, connection: Connection, id: str, *, is_conversation: bool) -> int:
        rows = await connection.fetch(
            self._server.sql(
                "SELECT run_id, conversation_id, status FROM {schema}.runs "
                "WHERE run_id = $1 OR conversation_id = $1 FOR UPDATE"
            ),
            id,
        )
        found = {row["run_id"]: row["conversation_id"] for row in rows}
        is_run = id in found and not is_conversation
        ids = [id] if is_run else [run_id for run_id, conversation in found.items() if conversation == id]

        if not ids:
            raise UnknownRun(id)

        later = await connection.fetchrow(
            self._server.sql(
                "SELECT run_id, conversation_id FROM {schema}.runs"
                " WHERE parent_run = ANY($1) AND run_id != ALL($1) LIMIT 1"
            ),
            ids,
        )

        if later is not None:
            raise continued_error(id, *later)

        unfinished = [row["run_id"] for row in rows if row["run_id"] in ids and row["status"] in UNFINISHED]
        leases = await connection.fetch(self._server.sql(f"{FIND_LEASES} WHERE run_id = ANY($1)"), unfinished)

        for row in leases:
            check_no_owner(read_lease(row))

        for statement in _FORGET:
            await connection.execute(self._server.sql(statement), ids)

        return len(ids)


def _by_name(rows: Iterable[tuple[str, bytes]]) -> dict[str, list[Message]]:
    messages: dict[str, list[Message]] = {}

    for name, data in rows:
        messages.setdefault(name, []).extend(decode_messages([data]))

    return messages


def _pattern(word: str) -> str:
    """What a message with this word contains in its JSON, whatever the locale of the server: its longest ASCII part."""
    quoted = json.dumps(word, ensure_ascii=False)[1:-1]
    ascii_part = max(re.findall(r"[\x20-\x7e]*", quoted), key=len)
    return "%" + re.sub(r"([\\%_])", r"\\\1", ascii_part) + "%"
