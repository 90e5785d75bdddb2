"""The session of a server in one event loop: connects on first use, connects again after errors, and makes calls."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from crew.errors import describe
from crew.mcp.listing import Listing, ToolDefinition, read_listing
from crew.mcp.server_connection import Connection, OpenTransport, retrieve_error
from crew.mcp.server_errors import ConnectionLost, ServerError, ServerUnavailable, ToolChanged

if TYPE_CHECKING:
    from mcp import Client

Value = TypeVar("Value")

FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
LONGEST_WAIT = 2.0
"""The longest time that a call waits for the next attempt to connect; if it is later, the call fails at once."""

WAITING_SHARE = 0.9
"""The share of its timeout that a call may wait for a connection."""

SIGN_OF_LIFE_SECONDS = 5.0


class Session:
    """All connections to one server in one event loop, one after the other.

    A task of the session connects, lists the tools and checks the server. It belongs to no call: if a caller that waits
    for it is cancelled or gives up, it goes on for the next caller. The error of a server that is not available has its
    address: the URL or the command.
    """

    def __init__(
        self, name: str, address: str, transport: OpenTransport, seconds: float, *, resources: bool, prompts: bool
    ) -> None:
        self._title = f"{name!r} ({address})"
        self._name, self._transport, self._seconds = name, transport, seconds
        self._resources, self._prompts = resources, prompts
        self.accepted: Listing | None = None
        """The newest listing whose tools were used: they are shown while the server is not available."""
        self._connection: Connection | None = None
        self._listing: Listing | None = None
        """What the server of this connection offers; None until it has listed it."""
        self._is_stale = self._is_suspect = self._is_closed = False
        self._failures, self._next_attempt, self._last_error = 0, 0.0, ""
        self._renewal: asyncio.Task[Connection] | None = None

    async def listing(self) -> Listing:
        """What the server offers now. Raises `ServerError`."""
        self._is_stale = True
        await self._connected()

        if self._listing is None:
            raise self._unavailable("it was closed")

        return self._listing

    async def call(
        self,
        work: Callable[[Client], Awaitable[Value]],
        tool: ToolDefinition | None = None,
        *,
        timeout: float,
        repeatable: bool = True,
    ) -> Value:
        """Make a request, in a new connection if the last one ended. Raises `ServerError`.

        A tool is called only if the server still describes it as it did when it was listed. A request that may have
        been sent is not sent again, unless it is `repeatable`. The caller is cancelled after `timeout`: a request that
        can't be sent until shortly before is `ServerUnavailable`, so that it is known that it was not sent.
        """
        deadline = asyncio.get_running_loop().time() + WAITING_SHARE * timeout

        for last in (False, True):
            connection = await self._connected(deadline)
            self._check(tool)

            try:
                return await connection.call(work)
            except ConnectionLost:
                if last or not repeatable:
                    raise
            except ServerUnavailable:
                if last:
                    raise
            except asyncio.CancelledError:
                self._is_suspect = True  # perhaps it took too long
                raise
            except Exception as error:  # the server boundary: the model gets the error
                raise _server_error(error) from error

        raise AssertionError("unreachable")

    async def aclose(self) -> None:
        """Close the connection, also one that is being opened. The session can't be used again."""
        self._is_closed = True

        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])

        if self._connection is not None:
            await self._connection.aclose()

        self._connection = self._listing = None

    async def _connected(self, deadline: float | None = None) -> Connection:
        """An open connection with a current listing; it is renewed by a task that does not end with this call."""
        connection, loop = self._connection, asyncio.get_running_loop()
        is_open = connection is not None and connection.is_open and self._listing is not None

        if connection is not None and is_open and not (self._is_stale or self._is_suspect):
            return connection

        if self._is_closed:
            raise self._unavailable("it was closed")

        if self._renewal is None or self._renewal.done():
            self._renewal = loop.create_task(
                self._renew(), name=f"crew-mcp-renewal-{self._name}", context=contextvars.Context()
            )
            self._renewal.add_done_callback(retrieve_error)

        renewal, seconds = self._renewal, None if deadline is None else max(deadline - loop.time(), 0)
        done, _ = await asyncio.wait([renewal], timeout=seconds)

        if not done:
            raise self._unavailable("it has not answered yet, and this call can't wait longer. The call was not sent")

        if renewal.cancelled():
            raise self._unavailable("it was closed")

        return renewal.result()

    async def _renew(self) -> Connection:
        if self._is_suspect:
            await self._check_alive()

        if self._connection is None or not self._connection.is_open:
            return await self._connect()

        if self._is_stale:
            await self._read_listing(self._connection)

        return self._connection

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        delay = self._next_attempt - loop.time()

        if delay > LONGEST_WAIT:
            raise ServerUnavailable(f"{self._last_error} (next attempt in {delay:.0f} s)")

        await asyncio.sleep(max(delay, 0))
        self._listing = None
        self._connection = connection = Connection(self._title, self._transport, self._seconds, self._mark_stale)

        try:
            await self._read_listing(connection)
        except ServerError as error:  # a connection without a listing is of no use
            connection.end("its tools could not be listed")
            self._failures += 1
            pause = min(FIRST_DELAY * 2 ** (self._failures - 1), LONGEST_DELAY)
            self._next_attempt, self._last_error = loop.time() + pause, str(error)
            await connection.aclose()
            raise

        self._failures, self._next_attempt = 0, 0.0
        return connection

    async def _read_listing(self, connection: Connection) -> None:
        self._is_stale = False  # before the list is read: a change may be announced meanwhile

        try:
            await self._read_list(connection)
        except BaseException:  # raised again
            self._is_stale = True
            raise

    async def _read_list(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                self._listing = await connection.call(
                    lambda client: read_listing(client, resources=self._resources, prompts=self._prompts)
                )
        except TimeoutError:
            connection.end(f"it did not list its tools within {self._seconds:g} s")
            raise ServerUnavailable(
                f"The MCP server {self._title} did not list its tools within {self._seconds:g} s"
            ) from None
        except ServerError:
            raise
        except Exception as error:  # the server boundary: the model gets the error
            raise _server_error(error) from error

    async def _check_alive(self) -> None:
        """After a call that was cancelled: end the connection of a server that does not answer at all."""
        connection = self._connection

        if connection is not None and connection.is_open and not connection.is_busy:
            try:
                async with asyncio.timeout(min(SIGN_OF_LIFE_SECONDS, self._seconds)):
                    await connection.call(lambda client: client.list_tools())
            except (TimeoutError, ServerError):
                connection.end("it does not answer")
                await connection.aclose()
            except Exception:  # the server boundary: an error is an answer
                pass

        self._is_suspect = False

    def _unavailable(self, reason: str) -> ServerUnavailable:
        return ServerUnavailable(f"The MCP server {self._title} is not available: {reason}")

    def _mark_stale(self) -> None:
        self._is_stale = True

    def _check(self, tool: ToolDefinition | None) -> None:
        if tool is None or self._listing is None:
            return

        now = self._listing.tools.get(tool.name)

        if now is None:
            raise ToolChanged(f"The MCP server {self._name!r} no longer has the tool {tool.name!r}.")

        if now.digest != tool.digest:
            raise ToolChanged(
                f"The MCP server {self._name!r} has changed the tool {tool.name!r} since it was listed. "
                "It was not called."
            )


def _server_error(error: Exception) -> ServerError:
    from mcp import MCPError

    if isinstance(error, ServerError):
        return error

    if isinstance(error, MCPError):
        return ServerError(error.message)

    if isinstance(error, ValidationError):
        return ServerError(f"The answer of the server is not valid: {describe(error)}")

    return ServerError(describe(error))
