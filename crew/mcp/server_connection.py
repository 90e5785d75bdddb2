"""A connection to an MCP server: one owner task opens it, runs its calls, and closes it."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from crew.mcp.server_errors import ConnectionLost, ServerError, ServerUnavailable, first_error, reason_of
from crew.mcp.stdio_process import TransportWatch

if TYPE_CHECKING:
    from mcp import Client

Value = TypeVar("Value")
OpenTransport = Callable[[TransportWatch], Any]
"""Makes the transport of a client, which reports the end of the server to the watch."""

NOT_SENT = ("ConnectError", "ConnectTimeout", "PoolTimeout")
"""Errors of the HTTP client after which the server can't have received the request."""


CLOSED_TEXTS = ("Connection closed", "SSE stream ")
"""How the SDK reports that a connection ended; servers use the code of these errors, -32000, for their own errors."""


class Connection:
    """One session with a server. It belongs to the event loop in which it was made, and can't be opened again.

    The SDK's session must be closed by the task that opened it, and a server that goes away cancels that task. So
    opening, calls and closing happen in an owner task and its children, and a caller waits for them from outside.
    """

    def __init__(self, title: str, transport: OpenTransport, seconds: float, on_changed: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._title, self._transport, self._seconds, self._on_changed = title, transport, seconds, on_changed
        self._ready: asyncio.Future[Client] = loop.create_future()
        self._ready.add_done_callback(retrieve_error)
        self._watch = TransportWatch(on_end=self.end)
        self._closing = asyncio.Event()
        self._entering: asyncio.Timeout | None = None
        self._calls: set[asyncio.Future[Any]] = set()
        self._end_reason, self._error = "", ""
        # The owner outlives the run that needs it first, so it inherits no span and no other context from it.
        self._owner = loop.create_task(self._own(), name=f"crew-mcp-{title}", context=contextvars.Context())

    @property
    def is_open(self) -> bool:
        """Whether new calls may be made; True also while it is opened."""
        return not self._owner.done() and not self._closing.is_set()

    @property
    def is_busy(self) -> bool:
        """Whether calls are under way."""
        return bool(self._calls)

    async def ready(self) -> Client:
        """The client, once it is connected. Raises `ServerUnavailable`."""
        return await asyncio.shield(self._ready)

    async def call(self, work: Callable[[Client], Awaitable[Value]]) -> Value:
        """Run a request in a task of this connection; if the caller is cancelled, the request is cancelled.

        Raises `ServerUnavailable` if it was not sent, `ConnectionLost` if it may have been, else the error of the SDK.
        """
        client = await self.ready()

        if self.is_open and not self._watch.is_alive():
            await asyncio.wait([self._owner], timeout=1)  # it is about to notice
            self.end("its process ended")

        if not self.is_open:
            raise ServerUnavailable(self._text())

        task = asyncio.ensure_future(_awaited(work(client)))
        self._calls.add(task)

        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await _wait_shielded(task)
            raise
        finally:
            self._calls.discard(task)

        if (ended := _end_of(task)) is not None:
            raise await self._lost(ended)

        return task.result()

    async def _lost(self, ended: _End) -> ServerError:
        """The error of a call after which there is no connection."""
        if not ended.reason:
            await asyncio.wait([self._owner], timeout=1)  # it knows the reason

        self.end(ended.reason)
        was_sent = ended.was_sent and self._error not in NOT_SENT
        return ConnectionLost(self._text()) if was_sent else ServerUnavailable(self._text())

    def end(self, reason: str) -> None:
        """Start closing, for example because the server has ended; requests under way are `ConnectionLost`.

        A connection that is not open yet is given up at once.
        """
        self._end_reason = self._end_reason or reason
        self._closing.set()

        if self._entering is not None and not self._entering.expired():
            self._entering.reschedule(asyncio.get_running_loop().time())

    async def aclose(self) -> None:
        """Close once the calls under way have ended, and wait until it is closed."""
        while self._calls and self.is_open:
            await asyncio.wait(self._calls)

        self.end("it was closed")
        await asyncio.wait([self._owner])

    def _text(self) -> str:
        return f"The MCP server {self._title} is not available: {self._end_reason or 'the connection was closed'}"

    async def _own(self) -> None:
        try:
            # On a thread: the first import takes a second, in which no other run could go on.
            sdk = await asyncio.to_thread(import_module, "mcp")
            _keep_off_the_terminal(logging.getLogger("mcp"))

            if self._closing.is_set():
                return

            async with AsyncExitStack() as stack:
                client = await self._enter(stack, sdk)
                listening = asyncio.ensure_future(self._listen(client))
                stack.push_async_callback(self._stop_calls, listening)
                self._ready.set_result(client)
                await self._closing.wait()
        except asyncio.CancelledError:
            self.end("its event loop was closed")
            raise
        except Exception as error:  # the server boundary: whatever it does is the error of the calls
            first = first_error(error)
            self._error = type(first).__name__
            self.end(reason_of(first))
        finally:
            self._closing.set()

            if not self._ready.done():
                self._ready.set_exception(ServerUnavailable(self._text()))

    async def _enter(self, stack: AsyncExitStack, sdk: Any) -> Client:
        """Connect, until the time is over or `end` is called."""
        try:
            async with asyncio.timeout(self._seconds) as self._entering:
                transport = self._transport(self._watch)
                client: Client = sdk.Client(transport, cache=None, message_handler=self._on_message)
                return await stack.enter_async_context(client)
        finally:
            self._entering = None

    async def _stop_calls(self, listening: asyncio.Future[None]) -> None:
        import anyio

        with anyio.CancelScope(shield=True):  # a server that went away has cancelled this task
            for task in (*self._calls, listening):
                task.cancel()
                await _wait_shielded(task)

    async def _listen(self, client: Client) -> None:
        """Learn of changes of the list of tools, from servers of the newest protocol; older ones send them unasked."""
        from mcp import MCPError
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

        tools = client.server_capabilities.tools

        if tools is None or not tools.list_changed:
            return

        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._on_changed()
        except (ListenNotSupportedError, SubscriptionLost, MCPError):
            pass  # a change is found when the tools are listed again

    async def _on_message(self, message: Any) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._on_changed()


def _keep_off_the_terminal(logger: logging.Logger) -> None:
    """Without any handler, logging prints errors to the terminal; those of a server are error results already."""
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


async def _awaited(work: Awaitable[Value]) -> Value:
    return await work


async def _wait_shielded(task: asyncio.Future[Any]) -> None:
    """Wait for the end of a cancelled task, also if this wait is cancelled."""
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue  # the caller raises its own

    retrieve_error(task)


def retrieve_error(task: asyncio.Future[Any]) -> None:
    """Mark the error of a future as retrieved."""
    if not task.cancelled():
        task.exception()


class _End(NamedTuple):
    """The connection ended during a call: the reason, if the call knows it, and whether the server may have got it."""

    reason: str = ""
    was_sent: bool = True


def _end_of(task: asyncio.Future[Any]) -> _End | None:
    """Whether a call failed because there is no connection any more."""
    from mcp import MCPError
    from mcp.types import CONNECTION_CLOSED, INVALID_REQUEST

    if task.cancelled():
        return _End()

    error = task.exception()

    if not isinstance(error, MCPError):
        return None

    if error.code == CONNECTION_CLOSED and error.message.startswith(CLOSED_TEXTS):
        return _End("" if error.message == "Connection closed" else error.message)

    # How the SDK's HTTP client reports a server that has forgotten the session: it was started again.
    is_forgotten = error.code == INVALID_REQUEST and error.message == "Session terminated"
    return _End("the session ended", was_sent=False) if is_forgotten else None
