"""The answers of a server as texts for a model: tool results, resources and prompts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from crew.mcp.server_errors import ServerError
from crew.tools.tool import to_text

if TYPE_CHECKING:
    from mcp.types import CallToolResult, GetPromptResult, ReadResourceResult


def tool_text(result: CallToolResult) -> str:
    """The text of a result. Raises `ServerError` with the text if the server reports an error."""
    text = blocks_text(result.content)

    if not text and result.structured_content is not None:
        text = to_text(result.structured_content)

    if result.is_error:
        raise ServerError(text or "the server reports an error without a text")

    return text


def resource_text(result: ReadResourceResult) -> str:
    """The contents of a resource."""
    return "\n".join(_contents_text(contents) for contents in result.contents)


def prompt_text(result: GetPromptResult) -> str:
    """The messages of a prompt."""
    messages = [f"{message.role}: {blocks_text([message.content])}" for message in result.messages]
    return "\n\n".join([*([result.description] if result.description else []), *messages])


def blocks_text(blocks: Iterable[Any]) -> str:
    """The text of content blocks. A model gets images and sounds as a description: tool results are texts."""
    return "\n".join(_block_text(block) for block in blocks)


def _block_text(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "image" | "audio":
            return f"[{block.type}: {block.mime_type}, {_size(block.data)}; its content is not shown]"
        case "resource_link":
            described = f": {block.description}" if block.description else ""
            return f"[resource {block.uri} ({block.name}){described}]"
        case "resource":
            return _contents_text(block.resource)
        case kind:
            return f"[{kind}: this kind of content is not supported]"


def _contents_text(contents: Any) -> str:
    from mcp.types import TextResourceContents

    if isinstance(contents, TextResourceContents):
        return contents.text

    return f"[{contents.uri}: {contents.mime_type or 'binary data'}, {_size(contents.blob)}; its content is not shown]"


def _size(base64_text: str) -> str:
    return f"{len(base64_text) * 3 // 4:,} bytes"
