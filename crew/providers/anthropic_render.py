"""Cache breakpoints: marks that are set while a request is joined, so that the rendered bytes stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crew.errors import DefinitionError
from crew.interfaces import ModelRequest, ModelSettings, OutputSpec, ToolSpec
from crew.message_rules.profiles import Profile
from crew.messages import AssistantMessage, SystemMessage
from crew.providers.anthropic_turns import Turn, Writer, render_turns, thinking_allowed
from crew.providers.wire import anthropic_schema, check_model_settings, json_member, to_json_bytes

BREAKPOINT = b',"cache_control":{"type":"ephemeral"}}'
MESSAGE_BREAKPOINTS = 3
MAX_BLOCKS_APART = 15
"""The service looks back 20 blocks from a mark for what it has; marks this far apart can't miss it."""

_NO_BREAKPOINT = (b'{"type":"thinking"', b'{"type":"redacted_thinking"')


def with_breakpoint(block: bytes) -> bytes:
    """A block with a mark."""
    return block[:-1] + BREAKPOINT


def join_turns(turns: Sequence[Turn]) -> bytes:
    """The turns, with a mark on the newest block and two more behind it, each at most 15 blocks apart."""
    rendered = [turn.body for turn in turns]
    left, since = MESSAGE_BREAKPOINTS, MAX_BLOCKS_APART

    for index in range(len(turns) - 1, -1, -1):
        blocks = turns[index].blocks

        if since + len(blocks) < MAX_BLOCKS_APART:
            since += len(blocks)
            continue

        chosen: list[int] = []

        for place in range(len(blocks) - 1, -1, -1):
            if since >= MAX_BLOCKS_APART and left and not blocks[place].startswith(_NO_BREAKPOINT):
                chosen.append(place)
                since, left = 0, left - 1

            since += 1

        if chosen:
            with_marks = [with_breakpoint(block) if place in chosen else block for place, block in enumerate(blocks)]
            head = b'{"role":"' + turns[index].role.encode() + b'","content":['
            rendered[index] = head + b",".join(with_marks) + b"]}"

        if not left:
            break

    return b",".join(rendered)


DEFAULT_OUTPUT_TOKENS = 8192
"""The service insists on a number; this one is what every current model can write."""

_EFFORT = {"minimal": "low"}
_NO_TOOL = (
    b',"tools":[{"name":"none","description":"Not to be called.","input_schema":{"type":"object"}}]'
    b',"tool_choice":{"type":"none"}'
)


def render_request(
    request: ModelRequest,
    writer: Writer,
    profile: Profile,
    *,
    stream: bool = False,
    default_output: int = DEFAULT_OUTPUT_TOKENS,
) -> bytes:
    """The request's body for the writer's model; the same request gives the same bytes."""
    settings = request.settings
    check_anthropic_settings(settings, profile, writer[1])
    leading = next((i for i, m in enumerate(request.messages) if not isinstance(m, SystemMessage)), 0)
    turns = render_turns(request.messages[leading:], profile, writer)
    thinks = _wants_thinking(settings, profile) and _tool_choice_is_free(settings) and thinking_allowed(turns)
    parts = [b'{"model":', to_json_bytes(writer[1]), *_settings(settings, profile, default_output, thinks=thinks)]

    if stream:
        parts.append(b',"stream":true')

    parts.append(_output_config(request.output, settings, profile, thinks=thinks))
    parts += _render_tools_and_system(request, leading, turns)
    parts += [b',"messages":[', join_turns(turns), b"]}"]
    return b"".join(parts)


def check_anthropic_settings(settings: ModelSettings, profile: Profile, model: str) -> None:
    """Whether this model knows these settings, alone and together."""
    check_model_settings(settings, profile, model)

    if settings.thinking_tokens is not None and settings.temperature not in (None, 1.0):
        raise DefinitionError(
            f"Settings of {model!r} (profile {profile.name!r})",
            "temperature= and thinking_tokens= exclude each other on this model: leave one of them out.",
        )

    if settings.thinking_tokens is not None and settings.thinking_tokens < 1024:
        raise DefinitionError(
            f"Settings of {model!r} (profile {profile.name!r})",
            f"thinking_tokens={settings.thinking_tokens} is too small: the least is 1024; None switches thinking off.",
        )


def _wants_thinking(settings: ModelSettings, profile: Profile) -> bool:
    if profile.thinking == "budget":
        return settings.thinking_tokens is not None

    return settings.reasoning not in (None, "none")


def _tool_choice_is_free(settings: ModelSettings) -> bool:
    """The service refuses thinking where a call is forced."""
    return settings.tool_choice in (None, "auto", "none")


def _settings(settings: ModelSettings, profile: Profile, default_output: int, *, thinks: bool) -> list[bytes]:
    limit = settings.max_output_tokens or default_output
    budget = settings.thinking_tokens if thinks and profile.thinking == "budget" else None
    thinking: dict[str, Any] | None = None

    if budget is not None:
        # The budget is part of max_tokens and must leave room for the answer.
        limit = limit if limit > budget else limit + budget
        thinking = {"type": "enabled", "budget_tokens": budget}
    elif thinks:
        thinking = {"type": "adaptive"}
    elif profile.thinking == "adaptive" and settings.reasoning is not None:
        thinking = {"type": "disabled"}

    given: list[tuple[str, Any]] = [
        ("max_tokens", limit),
        ("temperature", None if thinks else settings.temperature),
        ("thinking", thinking),
        ("stop_sequences", list(settings.stop) or None),
    ]
    return [json_member(name, value) for name, value in given if value is not None]


def _output_config(output: OutputSpec | None, settings: ModelSettings, profile: Profile, *, thinks: bool) -> bytes:
    config: dict[str, Any] = {}

    if thinks and profile.thinking == "adaptive" and settings.reasoning is not None:
        config["effort"] = _EFFORT.get(settings.reasoning, settings.reasoning)

    if output is not None and (schema := anthropic_schema(output.schema)) is not None:
        config["format"] = {"type": "json_schema", "schema": schema}

    return json_member("output_config", config) if config else b""


def _render_tools_and_system(request: ModelRequest, leading: int, turns: list[Turn]) -> list[bytes]:
    """Tools and system: what comes before the messages, with one mark at its end."""
    texts = [request.instructions, *(m.text for m in request.messages[:leading] if isinstance(m, SystemMessage))]
    system = [to_json_bytes({"type": "text", "text": text}) for text in texts if text.strip()]
    tools = [_render_tool(spec) for spec in request.tools]
    parts: list[bytes] = []

    if request.output is not None and anthropic_schema(request.output.schema) is None:
        words = f"Answer with JSON alone, fitting this schema: {to_json_bytes(dict(request.output.schema)).decode()}"
        system.append(to_json_bytes({"type": "text", "text": words}))

    if system:
        system[-1] = with_breakpoint(system[-1])
    elif tools:
        tools[-1] = with_breakpoint(tools[-1])

    if tools:
        parts += [b',"tools":[', b",".join(tools), b"]", _tool_choice(request.settings)]
    elif any(isinstance(message, AssistantMessage) and message.calls for message in request.messages):
        # Some of the services insist on tools where the conversation holds calls, even if nobody may call any more.
        parts.append(_NO_TOOL)

    if system:
        parts += [b',"system":[', b",".join(system), b"]"]

    return parts


def _render_tool(spec: ToolSpec) -> bytes:
    slot = spec.cache()

    if "anthropic" not in slot:
        schema = {"type": "object", **spec.parameters}
        slot["anthropic"] = to_json_bytes({"name": spec.name, "description": spec.description, "input_schema": schema})

    return bytes(slot["anthropic"])


def _tool_choice(settings: ModelSettings) -> bytes:
    choice: dict[str, Any] = {}

    match settings.tool_choice:
        case None:
            pass
        case "required":
            choice["type"] = "any"
        case "auto" | "none":
            choice["type"] = settings.tool_choice
        case name:
            choice |= {"type": "tool", "name": name}

    if settings.parallel_tool_calls is False and settings.tool_choice != "none":
        choice.setdefault("type", "auto")
        choice["disable_parallel_tool_use"] = True

    return json_member("tool_choice", choice) if choice else b""
