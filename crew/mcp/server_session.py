"""The session of a server in one event loop: connects on first use, connects again after errors, and makes calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from crew.errors import describe
from crew.mcp.listing import Listing, ToolDefinition, read_listing
from crew.mcp.server_connection import Connection, OpenTransport
from crew.mcp.server_errors import ConnectionLost, ServerError, ServerUnavailable, ToolChanged

if TYPE_CHECKING:
    from mcp import Client

Value = TypeVar("Value")

FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
LONGEST_WAIT = 2.0
"""The longest time that a call waits for the next attempt to connect; if it is later, the call fails at once."""

SIGN_OF_LIFE_SECONDS = 5.0


class Session:
    """All connections to one server in one event loop, one after the other.

    The error of a server that is not available has its address: the URL or the command.
    """

    def __init__(
        self, name: str, address: str, transport: OpenTransport, seconds: float, *, resources: bool, prompts: bool
    ) -> None:
        self._name, self._address, self._transport, self._seconds = name, address, transport, seconds
        self._resources, self._prompts = resources, prompts
        self.accepted: Listing | None = None
        """The newest listing whose tools were used: they are shown while the server is not available."""
        self._connection: Connection | None = None
        self._listing: Listing | None = None
        self._is_stale = self._is_suspect = False
        self._failures, self._next_attempt, self._last_error = 0, 0.0, ""
        self._lock = asyncio.Lock()

    async def listing(self) -> Listing:
        """What the server offers now. Raises `ServerError`."""
        self._is_stale = True
        await self._connected()
        assert self._listing is not None
        return self._listing

    async def call(
        self, work: Callable[[Client], Awaitable[Value]], tool: ToolDefinition | None = None, *, repeatable: bool = True
    ) -> Value:
        """Make a request, in a new connection if the last one ended. Raises `ServerError`.

        A tool is called only if the server still describes it as it did when it was listed. A request that may have
        been sent is not sent again, unless it is `repeatable`.
        """
        for last in (False, True):
            connection = await self._connected()
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
        """Close the connection; the next call opens another one."""
        connection, self._connection, self._listing = self._connection, None, None

        if connection is not None:
            await connection.aclose()

    async def _connected(self) -> Connection:
        """An open connection with a current listing."""
        connection = self._connection

        if connection is not None and connection.is_open and not (self._is_stale or self._is_suspect):
            return connection

        async with self._lock:
            if self._is_suspect:
                await self._check_alive()

            if self._connection is None or not self._connection.is_open:
                self._connection = await self._connect()
            elif self._is_stale:
                await self._read_listing(self._connection)

            return self._connection

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        delay = self._next_attempt - loop.time()

        if delay > LONGEST_WAIT:
            raise ServerUnavailable(f"{self._last_error} (next attempt in {delay:.0f} s)")

        await asyncio.sleep(max(delay, 0))
        title = f"{self._name!r} ({self._address})"
        connection = Connection(title, self._transport, self._seconds, self._mark_stale)

        try:
            await self._read_listing(connection)
        except BaseException as error:  # raised again; a connection without a listing is of no use
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
                f"The MCP server {self._name!r} ({self._address}) did not list its tools within {self._seconds:g} s"
            ) from None
        except ServerError:
            raise
        except Exception as error:  # the server boundary: the model gets the error
            raise _server_error(error) from error

    async def _check_alive(self) -> None:
        """After a call that was cancelled: end the connection of a server that does not answer at all."""
        self._is_suspect = False
        connection = self._connection

        if connection is None or not connection.is_open or connection.is_busy:
            return

        try:
            async with asyncio.timeout(min(SIGN_OF_LIFE_SECONDS, self._seconds)):
                await connection.call(lambda client: client.list_tools())
        except (TimeoutError, ServerError):
            connection.end("it does not answer")
            await connection.aclose()
        except Exception:  # the server boundary: an error is an answer
            pass

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
