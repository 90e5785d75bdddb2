"""The statements with which the PostgreSQL store writes; each is one round trip."""

from __future__ import annotations

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

_ADD_FACTS = """
described AS (
  INSERT INTO {schema}.metadata (key, value, run_id)
  SELECT d.key, d.value, run.run_id FROM run, unnest($21::text[], $22::text[]) AS d (key, value)
), leased AS (
  INSERT INTO {schema}.leases (run_id, host, pid, started, executor, expires)
  SELECT run.run_id, $23::text, $24::integer, $25::text, $26::text,
    clock_timestamp() + make_interval(secs => $27::double precision)
  FROM run WHERE $24::integer IS NOT NULL
  ON CONFLICT (run_id) DO UPDATE SET host = excluded.host, pid = excluded.pid, started = excluded.started,
    executor = excluded.executor, expires = excluded.expires, cancel = false
), """
"""Of a new run: its metadata, and its lease if it has one. A lease that is there already has lost its run."""

_INSERT_RUN = """
  INSERT INTO {schema}.runs (run_id, version, commit_id, agent, status, messages, updated, state,
    conversation_id, crew, parent_run, metadata, created, turn, path, inherited)
"""

_FOLLOWS = """($20::integer = 0 OR $18 = coalesce(
  (SELECT run_id FROM {schema}.runs WHERE conversation_id = $16 ORDER BY id DESC LIMIT 1), $18
))"""
"""Whether a turn follows the newest run of its conversation. Of two that do at once, an index refuses the second."""

UPDATE = (
    """
WITH run AS (
  UPDATE {schema}.runs
  SET version = $2::integer + 1, commit_id = $3, agent = $11, status = $12, messages = $13, updated = $14, state = $15
  WHERE run_id = $1 AND version = $2::integer RETURNING run_id, path
), """
    + _ADD_ROWS
)
"""A later commit. A commit of another process that is under way is waited for; then the version differs."""

INSERT = (
    "WITH run AS ("
    + _INSERT_RUN
    + """
  SELECT $1, $2::integer + 1, $3, $11, $12, $13::integer, $14::double precision, $15::bytea, $16, $17, $18, $19,
    $14::double precision, $20::integer, $1, 0 WHERE """
    + _FOLLOWS
    + """
  ON CONFLICT (run_id) DO NOTHING RETURNING run_id, path
), """
    + _ADD_FACTS
    + _ADD_ROWS
)
"""The first commit of a run."""

CONTINUE = (
    """
WITH RECURSIVE parent AS (
  SELECT path, status FROM {schema}.runs WHERE run_id = $18 AND messages >= $28 FOR KEY SHARE
), line (path) AS (
  SELECT path FROM parent
  UNION ALL SELECT paths.parent FROM line JOIN {schema}.paths USING (path) WHERE fork >= $28
), place AS (
  SELECT path, status IN ('running', 'paused', 'failed') OR EXISTS (
    SELECT 1 FROM {schema}.messages m WHERE m.path = parent.path AND m.position >= $28
  ) AS forks
  FROM parent WHERE $20::integer > 0 OR EXISTS (
    SELECT 1 FROM line JOIN {schema}.messages m ON m.path = line.path AND m.position = $28 - 1 AND m.message = $29
  )
), run AS ("""
    + _INSERT_RUN
    + """
  SELECT $1, $2::integer + 1, $3, $11, $12, $13::integer, $14::double precision, $15::bytea, $16, $17, $18, $19,
    $14::double precision, $20::integer, CASE WHEN forks THEN $1 ELSE path END, $28 FROM place WHERE """
    + _FOLLOWS
    + """
  ON CONFLICT (run_id) DO NOTHING RETURNING run_id, path
), forked AS (
  INSERT INTO {schema}.paths (path, parent, fork) SELECT run.run_id, place.path, $28 FROM run, place WHERE forks
), """
    + _ADD_FACTS
    + _ADD_ROWS
)
"""The first commit of a run that continues another one; no row if that one, or its last message, is not stored here."""


APPEND = """
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
