"""Connections to a PostgreSQL server: a pool with its event loop, reconnects, and notifications."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from crew.errors import CrewError, StoreError, describe
from crew.store.event_waiters import EventWaiters, wait_at_most
from crew.store.postgres_schema import prepare_schema
from crew.store.postgres_url import address_of, option_problem

Value = TypeVar("Value")
Connection = Any
"""An asyncpg connection; asyncpg has no type annotations."""

CONNECT_SECONDS = 10.0
COMMAND_SECONDS = 30.0
NOTIFY_SECONDS = 0.02
"""How long notifications are collected before they are sent together."""

RECHECK_SECONDS = 2.0
"""How often a wait looks into the tables: a process may end before it sends a notification."""

CHECK_SECONDS = 10.0
"""How often the connection that receives notifications is checked."""

CLOSE_SECONDS = 5.0


class KeyTaken(StoreError):
    """A row with the same key was added at the same time."""


_FROM_PARENT: list[object] = []
"""Pools of the parent process, kept forever: to close them would write to sockets that both processes share."""


class PostgresServer:
    """A pool of connections that every event loop can use.

    A pool of asyncpg belongs to one event loop, but an executor may run in several, one after the other or at the same
    time. So the pool has a separate loop, on a daemon thread that starts with the first call.
    """

    def __init__(
        self, url: str, *, schema: str, pool_size: int, reconnect_seconds: float, read_only: bool = False
    ) -> None:
        self.schema, self.address, self._read_only = schema, address_of(url), read_only
        self._url, self._pool_size, self._reconnect_seconds = url, pool_size, reconnect_seconds
        self._lock, self._process, self._is_closed = threading.Lock(), 0, False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._reset()

    def _reset(self) -> None:
        self._pool: Any = None
        self._opening = asyncio.Lock()
        self._listener: asyncio.Task[None] | None = None
        self._waiters, self._cancels = EventWaiters(), EventWaiters()
        self._to_notify: set[str] = set()
        self._notifier: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------------------------------ the loop

    async def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Run a coroutine on the loop of the pool, from any loop."""
        try:
            with self._lock:  # `close` ends the calls that were submitted before it
                future = asyncio.run_coroutine_threadsafe(work, self._running_loop())
        except StoreError:
            work.close()
            raise

        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()

            if task is None or not task.cancelling():  # not the caller was cancelled, but the call, by `close`
                self._check_open()

            raise

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        self._check_open()

        if self._loop is None or self._process != os.getpid():
            if self._loop is not None:
                _FROM_PARENT.append((self._loop, self._pool, self._listener))
                self._reset()

            self._process, self._loop = os.getpid(), asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run, args=(self._loop,), name="crew-postgres", daemon=True)
            self._thread.start()

        return self._loop

    def close(self) -> None:
        """Close all connections and end the thread; a call under way gets five seconds, then a `StoreError`."""
        with self._lock:
            loop, thread, is_own = self._loop, self._thread, self._process == os.getpid()
            self._is_closed, self._loop = True, None

        if loop is None or thread is None or not is_own:
            return

        closing = asyncio.run_coroutine_threadsafe(self._close(), loop)

        # A call on the loop may have held the last reference to the store: it can't wait for its own thread.
        if thread is not threading.current_thread():
            closing.result()
            thread.join()

    async def _close(self) -> None:
        """Close the connections, and stop the loop."""
        loop = asyncio.get_running_loop()

        try:
            await self._end_calls()

            if self._pool is not None:
                self._pool.terminate()
                await asyncio.sleep(0)  # the transports close their sockets in the next turn of the loop
        finally:
            loop.call_soon(loop.call_soon, loop.stop)  # a turn later, when `close` has got the outcome

    async def _end_calls(self) -> None:
        if self._listener is not None:
            self._listener.cancel()

        self._wake_all()
        calls = asyncio.all_tasks() - {asyncio.current_task()}

        if calls:
            _, late = await asyncio.wait(calls, timeout=CLOSE_SECONDS)

            for task in late:
                task.cancel()

            if late:  # else the loop would stop before their callers get an outcome
                await asyncio.wait(late, timeout=CLOSE_SECONDS)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError("", f"The store {self.address} is closed.")

    # ------------------------------------------------------------------------------------------ statements

    async def fetch(self, statement: str, *values: object) -> list[Any]:
        """The rows of one statement, in one round trip. Repeats it if the connection was lost."""
        text = self.sql(statement)
        return await self.call(lambda connection: connection.fetch(text, *values))

    def sql(self, statement: str) -> str:
        """The statement with the name of the schema."""
        return statement.replace("{schema}", self.schema)

    async def call(self, work: Callable[[Connection], Awaitable[Value]]) -> Value:
        """Run work on a connection. If it is lost, reconnect and repeat the work, whose outcome is then unknown."""
        loop = asyncio.get_running_loop()
        deadline, wait = loop.time() + self._reconnect_seconds, 0.05

        while True:
            connection = None

            try:
                pool = self._pool or await self._open()

                async with pool.acquire() as connection:
                    return await _perform(work, connection)
            except Exception as error:  # the store boundary: drivers raise many types
                if self._is_closed or not _is_lost(error) or loop.time() + wait > deadline:
                    raise self._store_error(error, is_connected=connection is not None) from error

            await asyncio.sleep(wait)
            wait = min(2 * wait, 1.0)

    def _store_error(self, error: Exception, *, is_connected: bool = False) -> CrewError:
        if isinstance(error, CrewError):
            return error

        if _is_unique_violation(error):
            return KeyTaken("", f"The store {self.address} failed: {describe(error)}")

        if isinstance(error, TimeoutError) and is_connected:
            text = f"The store {self.address} did not answer a statement within {COMMAND_SECONDS:g} s"
            return StoreError("", f"{text}: the server is overloaded, or another session holds a lock on its tables.")

        if isinstance(error, OSError):  # also TimeoutError
            reason = describe(error).rstrip(".")
            return StoreError("", f"Can't connect to {self.address}: {reason}. Is the server running?")

        return StoreError("", f"The store {self.address} failed: {describe(error)}")

    async def _open(self) -> Any:
        import asyncpg

        async with self._opening:
            if self._pool is None:
                try:
                    connection = await self._connect(None)  # a migration takes as long as it takes
                except OSError as error:
                    # Not repeated: the address may be wrong. A server that goes away later is waited for.
                    raise self._store_error(error) from error
                except asyncpg.UndefinedObjectError as error:
                    if problem := option_problem(self._url, str(error)):
                        raise StoreError("", f"Can't connect to {self.address}: {problem}.") from error

                    raise

                try:
                    await prepare_schema(connection, self.schema, self.address, read_only=self._read_only)
                finally:
                    await connection.close()

                self._pool = await asyncpg.create_pool(
                    self._url,
                    min_size=0,
                    max_size=self._pool_size,
                    reset=_keep_session,
                    timeout=CONNECT_SECONDS,
                    command_timeout=COMMAND_SECONDS,
                    server_settings={"default_transaction_read_only": "on"} if self._read_only else None,
                )

        return self._pool

    async def _connect(self, command_seconds: float | None) -> Connection:
        import asyncpg

        return await asyncpg.connect(self._url, timeout=CONNECT_SECONDS, command_timeout=command_seconds)

    # ------------------------------------------------------------------------------------------ notifications

    def notify_soon(self, run_id: str) -> None:
        """Notify all processes of new events of this run.

        Not with the commit: PostgreSQL would write commits that notify to the disk one after the other.
        """
        self._to_notify.add(run_id)

        if self._notifier is None:
            self._notifier = asyncio.get_running_loop().create_task(self._notify())

    async def _notify(self) -> None:
        try:
            while self._to_notify:
                await asyncio.sleep(0 if self._is_closed else NOTIFY_SECONDS)
                topics, self._to_notify = [*self._to_notify], set()
                await self.fetch("SELECT pg_notify('{schema}_events', topic) FROM unnest($1::text[]) AS topic", topics)
        except StoreError:
            pass  # waits look into the tables too
        finally:
            self._notifier = None

    async def wait_until(
        self, run_id: str, is_true: Callable[[], Awaitable[bool]], seconds: float | None = None
    ) -> bool:
        """Wait until a condition holds, which is checked at each notification of this run; False after `seconds`."""
        self._start_listener()

        async def check() -> bool:
            self._check_open()
            return await is_true()

        return await self._waiters.wait(run_id, check, seconds, RECHECK_SECONDS)

    async def wait_for_cancels(self, seconds: float) -> None:
        """Wait so long, or until a cancellation of any run is requested, or may have been while no one listened."""
        self._start_listener()
        checks = iter([False])

        async def is_notified() -> bool:
            self._check_open()
            return next(checks, True)

        await self._cancels.wait("", is_notified, seconds, None)

    def _start_listener(self) -> None:
        if self._listener is None:
            self._listener = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> None:
        """Receive notifications, and reconnect forever. After each connect all conditions are checked."""
        wait = 0.05

        while True:
            try:
                connection = await self._connect(COMMAND_SECONDS)
            except Exception:  # the store boundary: whatever went wrong, a later attempt may succeed
                wait = min(2 * wait, 1.0)
            else:
                wait = 0.05
                await self._receive(connection)

            await asyncio.sleep(wait)

    async def _receive(self, connection: Connection) -> None:
        """Receive notifications until the connection is lost."""
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())

        try:
            await connection.add_listener(f"{self.schema}_events", self._on_event)
            await connection.add_listener(f"{self.schema}_cancels", self._on_cancel)
            self._wake_all()

            while not lost.is_set():
                await wait_at_most(lost, CHECK_SECONDS)
                await connection.fetchval("SELECT 1", timeout=CHECK_SECONDS)
        except Exception:  # the store boundary: the next connection may work
            pass
        finally:
            connection.terminate()

    def _on_event(self, connection: Connection, process: int, channel: str, run_id: str) -> None:
        self._waiters.notify(run_id)

    def _on_cancel(self, connection: Connection, process: int, channel: str, run_id: str) -> None:
        self._cancels.notify_all()

    def _wake_all(self) -> None:
        self._waiters.notify_all()
        self._cancels.notify_all()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _perform(work: Callable[[Connection], Awaitable[Value]], connection: Connection) -> Value:
    """Run work on a connection, which is ended if the work is cancelled or times out.

    Its session may be between two messages of a statement: it would go back to the pool with an open transaction, whose
    locks a migration waits for.
    """
    try:
        return await work(connection)
    except (asyncio.CancelledError, TimeoutError):
        connection.terminate()
        raise


async def _keep_session(connection: Connection) -> None:
    """Instead of the reset of asyncpg, which is a second round trip: the store changes nothing in a session."""


def _is_lost(error: Exception) -> bool:
    """Whether the connection was lost or refused for a while, so that another attempt may succeed."""
    import asyncpg
    from asyncpg import exceptions as errors

    if isinstance(error, StoreError | asyncpg.DataError | errors.ClientConfigurationError | errors.InternalClientError):
        return False

    return isinstance(
        error,
        OSError  # also TimeoutError
        | asyncpg.InterfaceError
        | errors.PostgresConnectionError
        | errors.OperatorInterventionError  # the server shuts down, starts or ended the session
        | errors.InsufficientResourcesError  # too many connections, for example
        | errors.TransactionRollbackError
        | errors.ReadOnlySQLTransactionError,  # the server is not the primary one any more
    )


def _is_unique_violation(error: Exception) -> bool:
    import asyncpg

    return isinstance(error, asyncpg.UniqueViolationError)
