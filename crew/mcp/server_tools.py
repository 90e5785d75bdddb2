"""Makes Crew tools of what a server offers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from crew.interfaces import ToolSpec
from crew.mcp.listing import Listing, ToolDefinition, prompts_text, resources_text
from crew.mcp.results import prompt_text, resource_text, tool_text
from crew.mcp.server_session import Session
from crew.settings import PositiveInt, Seconds
from crew.tools.context import Context
from crew.tools.schema import foreign_signature
from crew.tools.tool import Approval, Tool

if TYPE_CHECKING:
    from mcp import Client

Effect = Literal["read", "write"]

MAX_NAME = 64
CONTEXT = "crew:context"
"""The parameter for the context; a server's own parameters have other names."""

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """How the calls of one tool are treated."""

    effect: Effect
    approval: Approval
    timeout: Seconds
    max_output_chars: PositiveInt


def server_tools(
    listing: Listing, prefix: str, options: Callable[[str, Effect], ToolOptions], session: Callable[[], Session]
) -> list[tuple[str, Tool]]:
    """The tools of a server, with their names there. Those for resources and prompts have the effect "read"."""
    made: dict[str, tuple[str, Tool]] = {}

    for offered in (*_called_tools(listing, session), *_reading_tools(listing, session)):
        name = _tool_name(prefix, offered.name, made)
        chosen = options(offered.name, offered.effect)
        spec = ToolSpec(name=name, description=offered.description, parameters=offered.schema)
        tool = Tool(
            function=offered.bind(chosen),
            signature=foreign_signature(spec, CONTEXT),
            timeout=chosen.timeout,
            retries=0,
            approval=chosen.approval,
            effect=chosen.effect,
            touches=None,
            max_output_chars=chosen.max_output_chars,
        )
        made[name] = (offered.name, tool)

    return [*made.values()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offered:
    """A tool, or a way to read resources or prompts; `bind` makes its function."""

    name: str
    description: str
    schema: Mapping[str, Any]
    effect: Effect
    bind: Callable[[ToolOptions], Callable[..., Awaitable[str]]]


def _tool_name(prefix: str, name: str, used: Mapping[str, object]) -> str:
    """The name that a model sees: at most 64 of the characters that all services accept, and used once."""
    wanted = f"{prefix}_{name}" if prefix else name
    plain = _NOT_IN_NAMES.sub("_", wanted)

    if len(plain) <= MAX_NAME and plain not in used:
        return plain

    return f"{plain[: MAX_NAME - 9]}_{hashlib.sha256(wanted.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _called_tools(listing: Listing, session: Callable[[], Session]) -> Iterator[_Offered]:
    for tool in listing.tools.values():
        yield _Offered(
            name=tool.name,
            description=tool.description,
            schema=tool.schema,
            effect="write",  # what a server says about this itself is not trusted
            bind=_caller(tool, session),
        )


def _caller(
    tool: ToolDefinition, session: Callable[[], Session]
) -> Callable[[ToolOptions], Callable[..., Awaitable[str]]]:
    def bind(options: ToolOptions) -> Callable[..., Awaitable[str]]:
        async def call(**arguments: Any) -> str:
            context: Context[Any] = arguments.pop(CONTEXT)

            async def report(progress: float, total: float | None, message: str | None) -> None:
                context.emit({"progress": progress, "total": total, "message": message})

            async def send(client: Client) -> str:
                return tool_text(await client.call_tool(tool.name, arguments, progress_callback=report))

            return await session().call(send, tool, timeout=options.timeout, repeatable=options.effect == "read")

        return call

    return bind


def _reading_tools(listing: Listing, session: Callable[[], Session]) -> Iterator[_Offered]:
    """Tools that read resources and prompts, where the server has some."""
    if listing.has_resources:
        yield _reader("list_resources", "List the resources of this server.", {}, session, resources_text)
        yield _reader(
            "read_resource",
            "Read a resource of this server.",
            {"uri": {"type": "string", "description": "The address of the resource, from the list of resources."}},
            session,
            _read_resource,
        )

    if listing.has_prompts:
        yield _reader("list_prompts", "List the prompts of this server.", {}, session, prompts_text)
        yield _reader(
            "get_prompt",
            "Get a prompt of this server, with its arguments filled in.",
            {
                "name": {"type": "string", "description": "The name of the prompt, from the list of prompts."},
                "arguments": {"type": "object", "additionalProperties": {"type": "string"}},
            },
            session,
            _get_prompt,
        )


def _reader(
    name: str,
    description: str,
    properties: Mapping[str, Any],
    session: Callable[[], Session],
    read: Callable[..., Awaitable[str]],
) -> _Offered:
    required = [key for key in properties if key != "arguments"]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def bind(options: ToolOptions) -> Callable[..., Awaitable[str]]:
        async def call(**arguments: Any) -> str:
            arguments.pop(CONTEXT)
            return await session().call(lambda client: read(client, **arguments), timeout=options.timeout)

        return call

    return _Offered(name=name, description=description, schema=schema, effect="read", bind=bind)


async def _read_resource(client: Client, uri: object = "") -> str:
    return resource_text(await client.read_resource(str(uri)))


async def _get_prompt(client: Client, name: object = "", arguments: object = None) -> str:
    texts = {str(key): str(value) for key, value in arguments.items()} if isinstance(arguments, dict) else None
    return prompt_text(await client.get_prompt(str(name), texts))
