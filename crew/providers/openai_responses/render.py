"""From a request to the bytes of Responses; each message is rendered once and only joined after that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from crew.doors import ModelRequest, ModelSettings, OutputSpec, ToolSpec
from crew.exchanges import Profile
from crew.messages import (
    AssistantMessage,
    Message,
    SummaryMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from crew.providers import options
from crew.providers.schemas import strict
from crew.providers.wire import arguments_text, dump, field, image_url, shown, summary_text

DISTRUSTED = "responses-distrusted"
Writer = tuple[str, str]
"""The provider and model that wrote a reasoning item, and that alone get it back."""

_SLOT = "responses"
_STATELESS = b',"store":false,"include":["reasoning.encrypted_content"]'


def to_wire(request: ModelRequest, writer: Writer, profile: Profile, *, stream: bool = False) -> bytes:
    """The request's body for the writer's model; the same request gives the same bytes."""
    options.check(request.settings, profile, writer[1])
    parts = [b'{"model":', dump(writer[1]), _STATELESS, *_settings(request, profile)]

    if stream:
        parts.append(b',"stream":true')

    if request.conversation_id:
        parts.append(field("prompt_cache_key", request.conversation_id[:64]))

    if request.output is not None:
        parts.append(_format(request.output))

    if request.tools:
        parts += [b',"tools":[', b",".join([_tool(spec) for spec in request.tools]), b"]"]

    if request.instructions:
        parts.append(field("instructions", request.instructions))

    parts += [b',"input":[', b",".join([_items(message, writer) for message in request.messages]), b"]}"]
    return b"".join(parts)


def _settings(request: ModelRequest, profile: Profile) -> list[bytes]:
    settings: ModelSettings = request.settings
    effort = settings.reasoning if "reasoning" in profile.settings else None
    given: list[tuple[str, Any]] = [
        ("max_output_tokens", settings.max_output_tokens),
        ("temperature", settings.temperature),
        ("reasoning", {"effort": effort} if effort is not None else None),
    ]

    if request.tools:
        choice = settings.tool_choice
        named = {"type": "function", "name": choice}
        given += [
            ("tool_choice", choice if choice in (None, "auto", "none", "required") else named),
            ("parallel_tool_calls", settings.parallel_tool_calls),
        ]

    return [field(name, value) for name, value in given if value is not None]


def _format(output: OutputSpec) -> bytes:
    slot = output.rendered()

    if _SLOT not in slot:
        schema, is_strict = strict(output.schema)
        form = {"type": "json_schema", "name": output.name[:64], "schema": schema, "strict": is_strict}
        slot[_SLOT] = field("text", {"format": form})

    return bytes(slot[_SLOT])


def _tool(spec: ToolSpec) -> bytes:
    slot = spec.rendered()

    if _SLOT not in slot:
        tool = {"type": "function", "name": spec.name, "description": spec.description}
        # Strict unless told otherwise, which would refuse most schemas.
        slot[_SLOT] = dump(tool | {"parameters": dict(spec.parameters), "strict": False})

    return bytes(slot[_SLOT])


def _items(message: Message, writer: Writer) -> bytes:
    slot = message.rendered()
    key = _SLOT

    if isinstance(message, AssistantMessage) and _is_own(message, writer):
        key = "responses-reasoning"

    found: bytes | None = slot.get(key)

    if found is None:
        items = _rendered(message) if key == _SLOT or not isinstance(message, AssistantMessage) else _original(message)
        found = slot[key] = b",".join([dump(item) for item in items])

    return found


def _is_own(message: AssistantMessage, writer: Writer) -> bool:
    """Whether the reply's own reasoning may go back with it: written by this model, and nothing of it cut off."""
    data = message.provider_data

    if data is None or (data.provider, data.model) != writer or message.rendered().get(DISTRUSTED):
        return False

    calls = sum(item["type"] == "function_call" for item in data.items)
    return all(item["calls"] == calls == len(message.calls) for item in data.items if item["type"] == "turn")


def _rendered(message: Message) -> Iterator[dict[str, Any]]:
    match message:
        case SystemMessage():
            yield {"role": "system", "content": message.text}
        case UserMessage():
            yield {"role": "user", "content": _content(message)}
        case SummaryMessage():
            yield {"role": "user", "content": summary_text(message)}
        case AssistantMessage():
            if message.text.strip():
                # Parts, not a string: compatible servers take only those for an assistant.
                part = {"type": "output_text", "text": message.text}
                yield {"type": "message", "role": "assistant", "content": [part]}

            yield from (_call(call) for call in message.calls)
        case ToolMessage():
            for result in message.results:
                yield {"type": "function_call_output", "call_id": result.call_id, "output": shown(result.text)}


def _content(message: UserMessage) -> str | list[dict[str, Any]]:
    if not message.images:
        return message.text

    parts: list[dict[str, Any]] = [{"type": "input_text", "text": message.text}] if message.text.strip() else []
    return parts + [{"type": "input_image", "image_url": image_url(image)} for image in message.images]


def _call(call: ToolCall) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments_text(call)}


def _original(message: AssistantMessage) -> Iterator[dict[str, Any]]:
    """The reply as it was written: reasoning verbatim, text and calls under the ids that belong to it."""
    assert message.provider_data is not None
    items = message.provider_data.items
    calls = {call.id: call for call in message.calls}
    whole = sum(item["length"] for item in items if item["type"] == "message") == len(message.text)
    start = 0

    for item in items:
        if item["type"] == "reasoning":
            yield item
        elif item["type"] == "message":
            # A text that is not the one that was written any more stands whole where it began.
            text = message.text[start : start + item["length"]] if whole else message.text if start == 0 else ""
            start += item["length"] if whole else 1
            part = {"type": "output_text", "text": text, "annotations": []}
            yield {"type": "message", "id": item["id"], "role": "assistant", "status": "completed", "content": [part]}
        elif item["type"] == "function_call":
            yield {"id": item["id"], **_call(calls[item["call_id"]])}
