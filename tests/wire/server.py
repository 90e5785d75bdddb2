"""The server: its port, its connections, and the recorded requests."""

import asyncio
import json
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from tests.wire.billing import Account
from tests.wire.cache import Cache
from tests.wire.connection import Answer, Connection, Request, plain
from tests.wire.faults import Fault, Faults, at, never
from tests.wire.model import Model
from tests.wire.rejections import Refused
from tests.wire.replies import Reply
from tests.wire.responders import Responder, echo, scripted
from tests.wire.service import PATHS, Received, Service
from tests.wire.signing import Signer


class WireServer:
    """A local service that implements Chat Completions, Responses and Messages.

    `async with WireServer(...)` runs it in the running event loop, `with WireServer(...)` in a separate thread.

    responder: a function `(body, protocol, index) -> Reply | str`, or a list of replies, one for each request.
    model, models: options of every model, and of models by name.
    faults: a function, or faults by request number.
    latency: seconds before every answer. pace: seconds between the events of a stream.
    key: the only accepted API key. secret: servers with the same secret accept each other's thinking.
    checks: False skips rules, caches and exact counts, to benchmark clients. keep: number of requests to record.
    """

    def __init__(
        self,
        responder: Responder | Sequence[Reply | str] = echo,
        *,
        model: Model | None = None,
        models: Mapping[str, Model] | None = None,
        faults: Faults | Mapping[int, Fault] = never,
        latency: float = 0.0,
        pace: float = 0.0,
        key: str | None = None,
        secret: bytes = b"wire",
        checks: bool = True,
        keep: int | None = None,
        cache: Cache | None = None,
    ) -> None:
        self.latency, self.pace, self.keep = latency, pace, keep
        self.requests: list[Received] = []
        self.refused: list[Received] = []  # every request that broke a rule; injected faults are not included
        self.count = 0
        self.connections: set[Connection] = set()
        self.cache = cache or Cache()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._service = Service(
            responder=responder if callable(responder) else scripted(responder),
            model=model or Model(),
            models=dict(models or {}),
            faults=faults if callable(faults) else at(faults),
            signer=Signer(secret),
            cache=self.cache,
            checks=checks,
            key=key,
        )

    @property
    def account(self) -> Account:
        """What the server billed."""
        return self._service.account

    @property
    def faulted(self) -> list[Received]:
        """The requests with an injected fault."""
        return [request for request in self.requests if request.fault]

    @property
    def url(self) -> str:
        """The base URL of Anthropic clients."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def openai_url(self) -> str:
        """The base URL of OpenAI clients."""
        return f"{self.url}/v1"

    async def start(self, port: int = 0) -> None:
        """Listen on loopback, on a free port unless one is given."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connect, "127.0.0.1", port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close every connection."""
        if self._server:
            self._server.close()
            for connection in list(self.connections):
                connection.drop()
            await self._server.wait_closed()
            self._server = None
            await asyncio.sleep(0)

    def _raise_failures(self) -> None:
        failures, self._service.errors = self._service.errors, []
        if failures:
            raise ExceptionGroup("the server's responder failed", failures)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        await self.stop()
        if kind is None:
            self._raise_failures()

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.start(), self._loop).result()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self.stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if kind is None:
            self._raise_failures()

    def _connect(self) -> Connection:
        return Connection(self._handle, self.connections)

    def _handle(self, request: Request) -> Answer:
        path = request.path.partition("?")[0]
        if path == "/_wire/stats":
            return Answer(plain(200, json.dumps(self.stats()).encode(), {}))
        protocol = PATHS.get(path)
        if protocol is None or request.method != "POST":
            lost = Refused("path", f"Invalid URL ({request.method} {path})", status=404)
            return Answer(plain(404, lost.body("chat", ""), {}))
        received = Received(self.count, protocol, path, request.headers, request.raw)
        self.count += 1
        self.requests.append(received)
        if self.keep is not None and len(self.requests) > self.keep:
            del self.requests[: -self.keep or None]
        answer = self._service.answer(request._replace(path=path), received)
        if received.rule:
            self.refused.append(received)
        answer.delay += self.latency
        answer.pace = answer.pace or self.pace
        answer.on_end = lambda whole: self._record_delivery(received, whole)
        return answer

    def _record_delivery(self, received: Received, whole: bool) -> None:
        received.delivered = whole and not (
            received.fault and received.fault.kind in ("cut_clean", "error_event", "failed_event")
        )
        if not received.delivered:
            self.account.undelivered += received.cost

    def stats(self) -> dict[str, object]:
        """Return counters for a client in another process, which reads them at `/_wire/stats`."""
        rules = [request.rule for request in self.refused]
        return {
            "requests": self.count,
            "refused": rules,
            "connections": len(self.connections),
            "cpu_seconds": time.process_time(),
            "cost": str(self.account.total),
            "usage": {name: getattr(self.account.usage, name) for name in self.account.usage.__slots__},
        }
