"""A real PostgreSQL server on a free loopback port, and a proxy that counts round trips and loses answers."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path


class PostgresUnavailable(Exception):
    """PostgreSQL can't be started here; the text is the reason."""


class Postgres:
    """A server that can be stopped and started again."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.port = _free_port()
        self._folder, self._programs = folder, programs
        _run(_as_postgres(programs / "initdb", "-D", folder / "data", "-A", "trust", "-U", "crew", "--no-sync"))

    def url(self, port: int | None = None) -> str:
        return f"postgresql://crew@127.0.0.1:{port or self.port}/postgres?sslmode=disable"

    def start(self) -> None:
        # No sync to disk: these tests kill processes, not the machine.
        options = f"-p {self.port} -h 127.0.0.1 -k {self._folder} -c fsync=off -c max_connections=200"
        log = self._folder / "log"
        _run(
            _as_postgres(
                self._programs / "pg_ctl", "-D", self._folder / "data", "-l", log, "-w", "-o", options, "start"
            )
        )

    def execute(self, statement: str) -> None:
        # A lock that a test left behind is an error, not a wait without end.
        settings = "SET lock_timeout = '60s'"
        _run(_as_postgres(self._programs / "psql", "-q", "-d", self.url(), "-c", settings, "-c", statement))

    def stop(self, mode: str = "fast") -> None:
        """Stop it: `fast` ends all sessions, `immediate` is a crash."""
        _run(_as_postgres(self._programs / "pg_ctl", "-D", self._folder / "data", "-m", mode, "-w", "stop"))


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A server; `PostgresUnavailable` if it is not installed."""
    try:
        import asyncpg  # noqa: F401
    except ImportError as error:
        raise PostgresUnavailable("asyncpg is not installed: pip install crew-executor[postgres]") from error

    programs = _find_programs()
    folder = Path(tempfile.mkdtemp(prefix="crew-postgres-"))

    try:
        if os.getuid() == 0:
            shutil.chown(folder, "postgres", "postgres")  # a server refuses to run as root

        server = Postgres(folder, programs)
        server.start()

        try:
            yield server
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _find_programs() -> Path:
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)

    for folder in folders:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder

    raise PostgresUnavailable("no initdb and pg_ctl: install the PostgreSQL server of the distribution")


def _as_postgres(program: Path, *arguments: object) -> list[str]:
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
    return [*user, str(program), *map(str, arguments)]


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        check=False,
    )

    if done.returncode:
        raise PostgresUnavailable(f"{' '.join(command)}: {done.stderr.strip()}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Proxy:
    """Forwards connections to a server.

    bytes          how many bytes went through it, in both directions.
    round_trips    how often a client sent something after an answer.
    lose_answer    the number of the next answer to lose: it is dropped, and the connection is cut; 0 for none.
    """

    def __init__(self, port: int) -> None:
        self.bytes = self.round_trips = self.answers = self.lose_answer = 0
        self._target = port
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._on_connect, "127.0.0.1", 0)

    def cut(self) -> None:
        """Cut all connections."""
        for writer in self._open:
            writer.transport.abort()

    async def aclose(self) -> None:
        """Cut all connections and wait for their end."""
        assert self._server is not None
        self._server.close()
        self.cut()

        if self._tasks:
            await asyncio.wait(self._tasks)

    def _on_connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._connect(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return

        pair = {writer, back_writer}
        self._open |= pair
        turn = {"client": False}

        async def forward() -> None:
            while data := await reader.read(65536):
                self.bytes += len(data)
                self.round_trips += not turn["client"]
                turn["client"] = True
                back_writer.write(data)

        async def answer() -> None:
            while data := await back_reader.read(65536):
                self.bytes += len(data)

                if turn["client"]:
                    turn["client"] = False
                    self.answers += 1

                    if self.answers == self.lose_answer:
                        return

                writer.write(data)

        tasks = [asyncio.ensure_future(forward()), asyncio.ensure_future(answer())]

        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

            await asyncio.gather(*tasks, return_exceptions=True)

            for one in pair:
                one.transport.abort()

            self._open -= pair


@asynccontextmanager
async def running_proxy(port: int) -> AsyncIterator[Proxy]:
    """A proxy for the server on this port."""
    proxy = Proxy(port)
    await proxy.start()

    try:
        yield proxy
    finally:
        await proxy.aclose()
