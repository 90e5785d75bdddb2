"""Pins what a server's tools looked like, and finds what changed since then."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from crew.control_characters import escape_controls
from crew.mcp.listing import ToolDefinition
from crew.mcp.server_errors import ServerError

if sys.platform != "win32":
    import fcntl

VERSION = 1
MAX_DIFFERENCE_CHARS = 6_000

Pinned = Mapping[str, ToolDefinition]

_THREADS = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class PinFile:
    """A JSON file with the pinned tools of servers; `server` is the key of one of them.

    `former` is the key that it had when keys did not contain the folder; its pins are used, and renamed, once.
    """

    path: Path
    server: str
    former: str | None = None

    def read(self) -> Pinned | None:
        """The pinned tools; None if this server was never pinned. Raises `ServerError` if the file can't be read.

        A damaged file must not pass for a server that was never seen: its tools would be accepted without a question.
        """
        servers = self._servers()
        found = servers.get(self.server)

        if found is None and self.former is not None:
            found = servers.get(self.former)

        if found is None:
            return None

        try:
            return {
                name: ToolDefinition(name=name, description=pin["description"], schema=pin["schema"])
                for name, pin in found["tools"].items()
            }
        except (AttributeError, KeyError, TypeError) as error:
            raise self._damaged(f"{self.server!r} has no list of tools") from error

    def write(self, tools: Pinned) -> None:
        """Pin these tools, instead of those that were pinned before; replaces the file in one step."""
        pins = {
            name: {"sha256": tool.digest, "description": tool.description, "schema": tool.schema}
            for name, tool in tools.items()
        }

        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)

            with _locked(self.path.parent):
                servers = self._servers()
                self._take_former(servers)
                self._replace(servers | {self.server: {"tools": pins}})
        except OSError as error:
            raise ServerError(
                f"can't write the pinned tools to {self.path}: {error}. Pass another file with pins="
            ) from error

    def rename(self) -> None:
        """Keep the pins of the former key under the present one; a file that can't be written stays as it is."""
        if self.former is None or self.former not in self._servers():
            return

        with suppress(OSError), _locked(self.path.parent):
            servers = self._servers()

            if self._take_former(servers):
                self._replace(servers)

    def _take_former(self, servers: dict[str, Any]) -> bool:
        """Whether this server had no pins but those of its former key, which are its own now."""
        if self.server in servers or self.former not in servers:
            return False

        servers[self.server] = servers.pop(self.former)
        return True

    def _replace(self, servers: dict[str, Any]) -> None:
        handle, written = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")

        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"version": VERSION, "servers": servers}, file, indent=2, sort_keys=True)
                file.write("\n")

            Path(written).replace(self.path)
        finally:
            Path(written).unlink(missing_ok=True)

    def _servers(self) -> dict[str, Any]:
        try:
            text = self.path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as error:
            raise self._damaged(str(error)) from error

        try:
            content = json.loads(text)
            servers = content["servers"]
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged("it is not a JSON file of pinned tools") from error

        if content.get("version") != VERSION or not isinstance(servers, dict):
            raise self._damaged(f"its version is {content.get('version')!r}, not {VERSION}")

        return servers

    def _damaged(self, problem: str) -> ServerError:
        return ServerError(
            f"can't read the pinned tools in {self.path}: {problem}. Correct the file, or delete it to accept the "
            "tools as they are now"
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process or thread at a time change the files of a folder; on Windows, one thread of this process."""
    with _THREADS:
        if sys.platform == "win32":
            yield
            return

        opened = os.open(folder, os.O_RDONLY)

        try:
            fcntl.flock(opened, fcntl.LOCK_EX)
            yield
        finally:
            os.close(opened)


def server_key(name: str, target: str, folder: str = "") -> str:
    """The key of a server: its name and a hash of its command or URL, which may contain secrets, and of its folder."""
    text = f"{target}\0{folder}" if folder else target
    return f"{name}:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def relative_folder(folder: Path, pins: Path) -> str:
    """The folder of a server, relative to that of its pins: a file under version control is valid in every checkout."""
    try:
        return Path(os.path.relpath(folder.resolve(), pins.parent.resolve())).as_posix()
    except ValueError:  # they are on two drives of Windows
        return folder.resolve().as_posix()


def changed_tools(pinned: Pinned, listed: Pinned) -> list[str]:
    """The names of the tools that are new or changed; a tool that no longer exists is no risk."""
    return [name for name, tool in listed.items() if name not in pinned or pinned[name].digest != tool.digest]


def digest_of(listed: Pinned, names: list[str]) -> str:
    """A hash of these tools, which identifies the consent to use them."""
    return hashlib.sha256("".join(listed[name].digest for name in sorted(names)).encode()).hexdigest()[:32]


def difference(pinned: Pinned, listed: Pinned, names: list[str]) -> str:
    """What changed, for the person who decides about it."""
    text = "\n".join(line for name in names for line in _difference_of(name, pinned.get(name), listed[name]))
    cut = len(text) - MAX_DIFFERENCE_CHARS
    return escape_controls(text if cut <= 0 else f"{text[:MAX_DIFFERENCE_CHARS]}\n[… {cut:,} more characters]")


def _difference_of(name: str, before: ToolDefinition | None, now: ToolDefinition) -> Iterator[str]:
    yield f"{'new' if before is None else 'changed'} tool {name}:"
    yield from _changed_lines([] if before is None else before.description.splitlines(), now.description.splitlines())
    yield from _changed_lines([] if before is None else _schema_lines(before), _schema_lines(now))


def _changed_lines(before: list[str], now: list[str]) -> Iterator[str]:
    """The lines that went and came, with the lines around them; "…" where unchanged lines are left out between."""
    lines = islice(difflib.unified_diff(before, now, lineterm="", n=2), 2, None)  # without the names of the files

    for number, line in enumerate(lines):
        if not line.startswith("@@"):
            yield f"  {line}"
        elif number:
            yield "  …"


def _schema_lines(tool: ToolDefinition) -> list[str]:
    return json.dumps(tool.schema, indent=1, sort_keys=True, ensure_ascii=False).splitlines()
