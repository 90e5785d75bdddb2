"""What a server offers: reads its lists of tools, resources and prompts, within bounds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from crew.control_characters import escape_controls
from crew.mcp.server_errors import ServerError

if TYPE_CHECKING:
    from mcp import Client

MAX_PAGES = 50
MAX_ITEMS = 1_000
MAX_DESCRIPTION_CHARS = 4_000
MAX_SCHEMA_CHARS = 50_000
MAX_NAME_CHARS = 200


@dataclass(frozen=True, kw_only=True)
class ToolDefinition:
    """A tool as its server describes it; `digest` is a hash of its name, its description and its schema."""

    name: str
    description: str
    schema: Mapping[str, Any]

    @cached_property
    def digest(self) -> str:
        content = json.dumps([self.name, self.description, self.schema], sort_keys=True)
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What a server offers. `problems` are tools that were left out, with the reasons."""

    tools: Mapping[str, ToolDefinition] = field(default_factory=dict)
    has_resources: bool = False
    has_prompts: bool = False
    problems: Sequence[str] = ()


async def read_listing(client: Client, *, resources: bool, prompts: bool) -> Listing:
    """Ask the server for its lists; those of resources and prompts only if they are wanted and declared."""
    offered = client.server_capabilities
    tools: dict[str, ToolDefinition] = {}
    problems: list[str] = []

    # A server that declares no capabilities may still have tools.
    if offered.tools is not None or (offered.resources is None and offered.prompts is None):
        for item in await _read_pages(client.list_tools, lambda page: page.tools):
            if problem := _problem(item, tools):
                problems.append(problem)
            else:
                tools[item.name] = _definition(item)

    has_resources = resources and offered.resources is not None and await _offers_resources(client)
    has_prompts = (
        prompts and offered.prompts is not None and bool(await _read_pages(client.list_prompts, lambda p: p.prompts))
    )
    return Listing(tools=tools, has_resources=has_resources, has_prompts=has_prompts, problems=problems)


async def resources_text(client: Client) -> str:
    """The resources and resource templates of the server, one a line."""
    lines = [
        f"{item.uri} ({item.name}){_described(item)}"
        for item in await _read_pages(client.list_resources, lambda page: page.resources)
    ]
    lines += [
        f"{item.uri_template} ({item.name}, a template: fill in the parts in braces){_described(item)}"
        for item in await _read_pages(client.list_resource_templates, lambda page: page.resource_templates)
    ]
    return "\n".join(lines) or "The server has no resources."


async def prompts_text(client: Client) -> str:
    """The prompts of the server with their arguments, one a line."""
    lines = []

    for item in await _read_pages(client.list_prompts, lambda page: page.prompts):
        arguments = [f"{one.name}{'' if one.required else ' (optional)'}" for one in item.arguments or ()]
        lines.append(f"{item.name}({', '.join(arguments)}){_described(item)}")

    return "\n".join(lines) or "The server has no prompts."


def _described(item: Any) -> str:
    return f": {item.description}" if item.description else ""


async def _offers_resources(client: Client) -> bool:
    return bool(
        await _read_pages(client.list_resources, lambda page: page.resources)
        or await _read_pages(client.list_resource_templates, lambda page: page.resource_templates)
    )


async def _read_pages(read: Callable[..., Awaitable[Any]], items_of: Callable[[Any], Sequence[Any]]) -> list[Any]:
    items: list[Any] = []
    cursor: str | None = None

    for _ in range(MAX_PAGES):
        page = await read(cursor=cursor)
        items += items_of(page)
        cursor = page.next_cursor

        if len(items) > MAX_ITEMS:
            raise ServerError(f"the server lists more than {MAX_ITEMS:,} items")

        if cursor is None:
            return items

    raise ServerError(f"the list of the server has more than {MAX_PAGES} pages")


def _definition(item: Any) -> ToolDefinition:
    schema = {"type": "object", "properties": {}} | item.input_schema
    description = escape_controls(item.description or item.title or "")[:MAX_DESCRIPTION_CHARS]
    return ToolDefinition(name=item.name, description=description, schema=schema)


def _problem(item: Any, others: Mapping[str, ToolDefinition]) -> str:
    """Why a tool can't be used; empty if it can."""
    name = escape_controls(item.name[:MAX_NAME_CHARS])

    if not item.name or len(item.name) > MAX_NAME_CHARS:
        return f"the tool {name!r} has a name of {len(item.name)} characters (1 to {MAX_NAME_CHARS} are accepted)"

    if item.name in others:
        return f"the tool {name!r} is listed twice; the first one is used"

    if item.input_schema.get("type", "object") != "object":
        return f"the schema of the tool {name!r} is not that of an object"

    if len(json.dumps(item.input_schema)) > MAX_SCHEMA_CHARS:
        return f"the schema of the tool {name!r} is larger than {MAX_SCHEMA_CHARS:,} characters"

    return ""
