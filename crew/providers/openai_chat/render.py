"""From a request to the bytes of Chat Completions; each message is rendered once and only joined after that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crew.doors import ModelRequest, ModelSettings, OutputSpec, ToolSpec
from crew.exchanges import Profile
from crew.messages import (
    AssistantMessage,
    Image,
    Message,
    SummaryMessage,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from crew.providers import options
from crew.providers.schemas import strict
from crew.providers.wire import arguments_text, dump, field, image_url, shown, summary_text

_SLOT = "chat"


def to_wire(request: ModelRequest, model: str, profile: Profile, *, stream: bool = False) -> bytes:
    """The request's body; the same request gives the same bytes."""
    options.check(request.settings, profile, model)
    parts = [b'{"model":', dump(model), *_settings(request, profile)]

    if stream:
        parts.append(b',"stream":true,"stream_options":{"include_usage":true}')

    if request.conversation_id and profile.name.startswith("openai"):
        parts.append(field("prompt_cache_key", request.conversation_id[:64]))

    if request.output is not None:
        parts.append(_format(request.output))

    if request.tools:
        parts += [b',"tools":[', b",".join([_tool(spec) for spec in request.tools]), b"]"]

    rendered = _merged(request) if profile.merges else [_message(message) for message in request.messages]

    if request.instructions and not profile.merges:
        rendered.insert(0, dump({"role": "system", "content": request.instructions}))

    parts += [b',"messages":[', b",".join(rendered), b"]}"]
    return b"".join(parts)


def _settings(request: ModelRequest, profile: Profile) -> list[bytes]:
    settings: ModelSettings = request.settings
    given: list[tuple[str, Any]] = [
        (profile.output_limit, settings.max_output_tokens),
        ("temperature", settings.temperature),
        ("reasoning_effort", settings.reasoning if "reasoning" in profile.settings else None),
        ("stop", list(settings.stop) or None),
        ("seed", settings.seed),
    ]

    if request.tools:
        given += [
            ("tool_choice", _choice(settings.tool_choice)),
            ("parallel_tool_calls", settings.parallel_tool_calls),
        ]

    return [field(name, value) for name, value in given if value is not None]


def _choice(choice: str | None) -> Any:
    return (
        choice if choice in (None, "auto", "none", "required") else {"type": "function", "function": {"name": choice}}
    )


def _format(output: OutputSpec) -> bytes:
    slot = output.rendered()

    if _SLOT not in slot:
        schema, is_strict = strict(output.schema)
        named = {"name": output.name[:64], "schema": schema, "strict": is_strict}
        slot[_SLOT] = field("response_format", {"type": "json_schema", "json_schema": named})

    return bytes(slot[_SLOT])


def _tool(spec: ToolSpec) -> bytes:
    slot = spec.rendered()

    if _SLOT not in slot:
        function = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
        slot[_SLOT] = dump({"type": "function", "function": function})

    return bytes(slot[_SLOT])


def _message(message: Message) -> bytes:
    slot = message.rendered()
    found: bytes | None = slot.get(_SLOT)

    if found is None:
        found = slot[_SLOT] = b",".join([dump(turn) for turn in _turns(message)])

    return found


def _turns(message: Message) -> list[dict[str, Any]]:
    match message:
        case SystemMessage():
            return [{"role": "system", "content": message.text}]
        case UserMessage():
            return [{"role": "user", "content": _content(message.text, message.images)}]
        case SummaryMessage():
            return [{"role": "user", "content": summary_text(message)}]
        case AssistantMessage():
            return [_assistant(message)]
        case ToolMessage():
            return [
                {"role": "tool", "tool_call_id": result.call_id, "content": shown(result.text)}
                for result in message.results
            ]


def _assistant(message: AssistantMessage) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant", "content": message.text or None}

    if message.calls:
        turn["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments_text(call)}}
            for call in message.calls
        ]

    return turn


def _content(text: str, images: Sequence[Image]) -> str | list[dict[str, Any]]:
    if not images:
        return text

    parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text.strip() else []
    return parts + [{"type": "image_url", "image_url": {"url": image_url(image)}} for image in images]


def _merged(request: ModelRequest) -> list[bytes]:
    """For templates that insist on alternation: neighbours of one role are one, and nothing but the first is system."""
    leading = next(
        (i for i, m in enumerate(request.messages) if not isinstance(m, SystemMessage)), len(request.messages)
    )
    hoisted = [request.instructions, *(m.text for m in request.messages[:leading] if isinstance(m, SystemMessage))]
    turns: list[dict[str, Any]] = []

    for message in request.messages[leading:]:
        said = UserMessage(f"[Instruction]\n{message.text}") if isinstance(message, SystemMessage) else message

        for turn in _turns(said):
            last = turns[-1] if turns else None

            if last is not None and last["role"] == turn["role"] != "tool" and "tool_calls" not in last:
                turns[-1] = {**turn, "content": _joined(last["content"], turn["content"])}
            else:
                turns.append(turn)

    if system := "\n\n".join(text for text in hoisted if text.strip()):
        turns.insert(0, {"role": "system", "content": system})

    return [dump(turn) for turn in turns]


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"

    if first is None or second is None:
        return first or second

    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
