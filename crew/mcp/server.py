"""`MCPServer`: a server whose tools an agent can use, as a toolset."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from pydantic import SecretStr

from crew.errors import DefinitionError, abbreviate, suggest
from crew.mcp.http_transport import HttpAddress, http_transport
from crew.mcp.listing import Listing
from crew.mcp.pins import PinFile, changed_tools, difference, digest_of, relative_folder, server_key
from crew.mcp.server_address import command_secrets, command_text, url_secrets, url_text
from crew.mcp.server_connection import OpenTransport
from crew.mcp.server_errors import ServerError, ServerUnavailable
from crew.mcp.server_session import Session
from crew.mcp.server_tools import Effect, ToolOptions, server_tools
from crew.mcp.stdio_process import StdioCommand, TransportWatch, stdio_transport
from crew.secret_names import is_credential_name
from crew.settings import HttpUrl, PositiveInt, Seconds, check_settings, setting_problems
from crew.tools.context import Context
from crew.tools.tool import TOOL_NAME, Approval, Tool
from crew.tools.toolset import ConsentRequired, ToolFilter, ToolsetApproval

DEFAULT_PINS = "~/.crew/mcp-pins.json"
CLOSING_SECONDS = 30.0
"""Enough to check and close a connection, and to wait, before the next one is opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings:
    """Settings of one tool of a server; None: those of the server."""

    effect: Literal["read", "write"] | None = None
    approval: Literal["never", "always"] | Callable[..., bool] | None = None
    timeout: Seconds | None = None
    max_output_chars: PositiveInt | None = None

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class MCPServer:
    """An MCP server: a command that speaks over its input and output, or the URL of a streamable HTTP server.

    It is connected when an agent that has it becomes active for the first time, and again after errors. A server that
    is down, slow or wrong is an error result for the model; it never ends a run.

    name               identifies the server in names, messages and pins.
    stdio, env, folder the command; variables added to a minimal environment; the working directory.
    url, headers       the address, and headers of each request.
    prefix             stands before the name of each tool, with an underscore; default: the name. "" for none.
    effect             of its tools. "write" by default, whatever the server says; "read" if you know that none writes.
    approval           which calls need a person: "never", "writes", "always", or a function of tool and arguments.
    timeout            of one call, in seconds.
    tools              settings of single tools, by their names on the server.
    only               the names of the tools to use; default: all.
    filter             a function of context and tool: which tools an agent has, each time that it becomes active.
    resources, prompts add tools that list and read the server's resources and prompts, if it has some.
    connect_timeout    the longest time for connecting and for listing the tools, in seconds.
    pins               the file in which name, description and schema of its tools are kept: a change pauses the run.
    max_message_bytes  the largest message that is accepted from the server.
    """

    name: str = "mcp"
    stdio: Sequence[str] | None = None
    env: Mapping[str, str | SecretStr] | None = field(default=None, repr=False)
    folder: str | Path | None = None
    url: HttpUrl | None = None
    headers: Mapping[str, str | SecretStr] | None = field(default=None, repr=False)
    prefix: str | None = None
    effect: Effect = "write"
    approval: ToolsetApproval = "never"
    timeout: Seconds = 30.0
    max_output_chars: PositiveInt = 20_000
    tools: Mapping[str, ToolSettings] | None = None
    only: Sequence[str] | None = None
    filter: ToolFilter | None = None
    resources: bool = True
    prompts: bool = True
    connect_timeout: Seconds = 30.0
    pins: str | Path = DEFAULT_PINS
    max_message_bytes: PositiveInt = 4_000_000
    _sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, Session] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False
    )

    def __post_init__(self) -> None:
        if problems := [*setting_problems(self), *_problems(self)]:
            raise DefinitionError(f"MCPServer {abbreviate(self.name)}", problems)

    @property
    def secrets(self) -> Sequence[str]:
        """What is removed from messages, logs and traces: credentials in headers, variables, URL and command."""
        given = {**(self.env or {}), **(self.headers or {})}
        texts = [_text(value) for key, value in given.items() if _is_secret(key, value)]
        schemes = [text.partition(" ")[2] for text in texts]
        return [*texts, *filter(None, schemes), *url_secrets(self.url or ""), *command_secrets(self.stdio or ())]

    # ------------------------------------------------------------------------------------------ as a toolset

    async def list_tools(self, context: Context[Any]) -> Sequence[Tool]:
        """The tools of the server. Raises `ServerError`, or `ConsentRequired` if they differ from the pinned ones."""
        pins = self._pin_file()
        pinned = pins.read()

        session = self._session()

        try:
            listing = await session.listing()
        except ServerUnavailable:
            if pinned is None:
                raise

            # The model sees the tools that were accepted before, and an error result until the server is back.
            return self._made(session.accepted or Listing(tools=pinned))

        if changed := [] if pinned is None else changed_tools(pinned, listing.tools):
            key = f"mcp:{self.name}:{digest_of(listing.tools, changed)}"

            if key not in context.consents:
                raise ConsentRequired(
                    key=key, question=self._question(difference(pinned or {}, listing.tools, changed))
                )

        if pinned is None or changed:
            pins.write(listing.tools)
        else:
            pins.rename()

        session.accepted = listing
        return self._made(listing)

    @property
    def list_seconds(self) -> float:
        """The longest time in which the tools are listed: connecting and listing have `connect_timeout` each."""
        return 2 * self.connect_timeout + CLOSING_SECONDS

    def is_enabled(self, context: Context[Any], tool: Tool) -> bool:
        """Whether an agent has this tool."""
        return self.filter is None or bool(self.filter(context, tool))

    def span_attributes(self, tool: str) -> Mapping[str, str | int]:
        """What the span of a call says about this server."""
        prefix = self.name if self.prefix is None else self.prefix
        method = METHODS.get(tool.removeprefix(f"{prefix}_") if prefix else tool, "tools/call")

        if self.url is None:
            return {"mcp.method.name": method, "network.transport": "pipe"}

        parts = urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        address: dict[str, str | int] = {"server.address": parts.hostname or "", "server.port": port}
        return {"mcp.method.name": method, "network.transport": "tcp", **address}

    def left_out(self) -> Sequence[str]:
        """Tools of the newest list that can't be used, with the reasons."""
        accepted = self._session().accepted
        return () if accepted is None else accepted.problems

    @asynccontextmanager
    async def lifetime(self) -> AsyncIterator[None]:
        """Close the connection at the end; it is opened when the tools are listed."""
        loop = asyncio.get_running_loop()

        try:
            yield
        finally:
            if (session := self._sessions.pop(loop, None)) is not None:
                await session.aclose()

    # ------------------------------------------------------------------------------------------ inside

    def _session(self) -> Session:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)

        if session is None:
            address = command_text(self.stdio or ()) if self.url is None else url_text(self.url)
            session = self._sessions[loop] = Session(
                self.name,
                address,
                self._transport(),
                self.connect_timeout,
                resources=self.resources,
                prompts=self.prompts,
            )

        return session

    def _transport(self) -> OpenTransport:
        limit = self.max_message_bytes

        if self.url is not None:
            headers = {key: _text(value) for key, value in (self.headers or {}).items()}
            address = HttpAddress(url=self.url, headers=headers, seconds=self.connect_timeout, max_bytes=limit)
            return lambda watch: http_transport(address)

        assert self.stdio is not None
        added = {key: _text(value) for key, value in (self.env or {}).items()}
        command = StdioCommand(command=self.stdio, environment=added, folder=self.folder, max_bytes=limit)
        return partial(_open_stdio, command)

    def _pin_file(self) -> PinFile:
        path = Path(self.pins).expanduser()
        target = self.url if self.url is not None else shlex.join(self.stdio or ())
        former = server_key(self.name, target)

        if self.folder is None:
            return PinFile(path=path, server=former)

        # The command of another folder is another server: both may be `python server.py`.
        folder = relative_folder(Path(self.folder), path)
        return PinFile(path=path, server=server_key(self.name, target, folder), former=former)

    def _question(self, changes: str) -> str:
        return (
            f"The MCP server {self.name!r} describes its tools otherwise than before. Models follow these "
            f"descriptions. May its tools be used as they are now?\n{changes}"
        )

    def _made(self, listing: Listing) -> list[Tool]:
        if unknown := sorted({*(self.tools or ()), *(self.only or ())} - {*listing.tools, *METHODS}):
            raise ServerError(
                f"the MCP server {self.name!r} has no tool {unknown[0]!r}, which tools= or only= names. "
                f"{suggest(unknown[0], listing.tools)}"
            )

        prefix = self.name if self.prefix is None else self.prefix
        made = server_tools(listing, prefix, self._options, self._session)
        return [self._with_approval(name, tool) for name, tool in made if self.only is None or name in self.only]

    def _options(self, name: str, effect: Effect) -> ToolOptions:
        own = (self.tools or {}).get(name, ToolSettings())
        chosen = own.effect or (effect if effect == "read" else self.effect)
        return ToolOptions(
            effect=chosen,
            approval=own.approval or "never",
            timeout=own.timeout or self.timeout,
            max_output_chars=own.max_output_chars or self.max_output_chars,
        )

    def _with_approval(self, name: str, tool: Tool) -> Tool:
        """The tool with the approval that `tools=` gives it, else that of the server."""
        if (self.tools or {}).get(name, ToolSettings()).approval is not None:
            return tool

        policy = self.approval
        approval: Approval

        if callable(policy):
            decide = policy
            approval = lambda **arguments: bool(decide(tool, arguments))  # noqa: E731 - a name would shadow the type
        else:
            approval = "always" if policy == "always" or (policy == "writes" and tool.effect == "write") else "never"

        return replace(tool, approval=approval)


METHODS = {
    "list_resources": "resources/list",
    "read_resource": "resources/read",
    "list_prompts": "prompts/list",
    "get_prompt": "prompts/get",
}
"""The methods of the protocol behind the tools that Crew adds."""


@asynccontextmanager
async def _open_stdio(command: StdioCommand, watch: TransportWatch) -> AsyncIterator[Any]:
    from mcp.client.stdio import get_default_environment

    environment = {**get_default_environment(), **command.environment}

    async with stdio_transport(replace(command, environment=environment), watch) as streams:
        yield streams


def _text(value: str | SecretStr) -> str:
    return value if isinstance(value, str) else value.get_secret_value()


def _is_secret(name: str, value: str | SecretStr) -> bool:
    return not isinstance(value, str) or is_credential_name(name)


def _problems(server: MCPServer) -> Iterator[str]:
    if not TOOL_NAME.fullmatch(server.name):
        yield f"the name must be 1–64 of A–Z a–z 0–9 _ -, not {abbreviate(server.name)}"

    if (server.stdio is None) == (server.url is None):
        yield "give either stdio=, the command of the server, or url=, its address"

    if server.stdio is not None and not _is_texts(server.stdio):
        yield f"stdio must be a list such as ['uvx', 'mcp-server-git'], not {abbreviate(server.stdio)}"

    given: list[tuple[str, Any, object]] = [("env", server.env, server.stdio), ("headers", server.headers, server.url)]

    for setting, values, belongs in given:
        if values is None:
            continue

        if not isinstance(values, Mapping) or not all(isinstance(value, str | SecretStr) for value in values.values()):
            yield f"{setting} must be a mapping of texts; its values are not shown"
        elif belongs is None:
            yield f"{setting} has no effect without {'stdio' if setting == 'env' else 'url'}="

    if server.folder is not None and server.stdio is None:
        yield "folder has no effect without stdio="

    if server.only is not None and not _is_texts(server.only):
        yield f"only must be a list of tool names, not {abbreviate(server.only)}"

    tools: Any = server.tools

    if tools is not None and not _is_settings(tools):
        yield f"tools must be a mapping of names to ToolSettings(...), not {abbreviate(tools)}"

    approval: object = server.approval

    if not callable(approval) and approval not in ("never", "writes", "always"):
        accepted = "'never', 'writes', 'always' or a function of tool and arguments"
        yield f"approval must be {accepted}, not {abbreviate(approval)}"

    filter: object = server.filter

    if filter is not None and not callable(filter):
        yield f"filter must be a function of context and tool, not {abbreviate(filter)}"

    if find_spec("mcp") is None:
        yield "the package mcp is not installed: pip install 'crew-executor[mcp]'"


def _is_settings(values: Any) -> bool:
    return isinstance(values, Mapping) and all(isinstance(own, ToolSettings) for own in values.values())


def _is_texts(values: Any) -> bool:
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    return is_list and bool(values) and all(isinstance(value, str) and value for value in values)
