"""Renders requests for Anthropic's Messages API and sets their cache breakpoints."""

from __future__ import annotations

from collections.abc import Sequence

from crew.errors import DefinitionError
from crew.interfaces import ModelRequest, ModelSettings, OutputSpec, ToolSpec
from crew.message_rules.profiles import Profile, check_model_settings
from crew.messages import AssistantMessage, SystemMessage
from crew.providers.anthropic_turns import CACHE_KEY, Turn, render_turns, thinking_allowed
from crew.providers.strict_schemas import anthropic_schema
from crew.providers.wire import (
    ModelId,
    cached_bytes,
    json_member,
    json_members,
    to_json_bytes,
)

DEFAULT_OUTPUT_TOKENS = 8192
"""Sent if the agent sets none, since the service requires a number; every current model can write this many."""

_EFFORT = {"minimal": "low"}
_NO_TOOL = (
    b',"tools":[{"name":"none","description":"Do not call.","input_schema":{"type":"object"}}]'
    b',"tool_choice":{"type":"none"}'
)


def render_request(
    request: ModelRequest,
    model_id: ModelId,
    profile: Profile,
    *,
    stream: bool = False,
    default_output: int = DEFAULT_OUTPUT_TOKENS,
) -> bytes:
    """Render the request's body; equal requests give equal bytes."""
    settings = request.settings
    check_anthropic_settings(settings, profile, model_id.model)
    leading = next((i for i, m in enumerate(request.messages) if not isinstance(m, SystemMessage)), 0)
    turns = render_turns(request.messages[leading:], profile, model_id)
    thinks = _wants_thinking(settings, profile) and _tool_choice_is_free(settings) and thinking_allowed(turns)
    parts = [b'{"model":', to_json_bytes(model_id.model), *_settings(settings, profile, default_output, thinks=thinks)]

    if stream:
        parts.append(b',"stream":true')

    parts.append(_output_config(request.output, settings, profile, thinks=thinks))
    parts += _render_tools_and_system(request, leading, turns)
    parts += [b',"messages":[', join_turns(turns), b"]}"]
    return b"".join(parts)


BREAKPOINT = b',"cache_control":{"type":"ephemeral"}}'
MESSAGE_BREAKPOINTS = 3
MAX_BLOCKS_APART = 15
"""The service searches 20 blocks before a breakpoint for a cached prefix; this distance always finds the last one."""

_NO_BREAKPOINT = (b'{"type":"thinking"', b'{"type":"redacted_thinking"')


def with_breakpoint(block: bytes) -> bytes:
    """Return a rendered block with a cache breakpoint."""
    return block[:-1] + BREAKPOINT


def join_turns(turns: Sequence[Turn]) -> bytes:
    """Join the turns, with a breakpoint on the newest block and two more before it, at most 15 blocks apart.

    Breakpoints are set here and not when a turn is rendered, so that the cached bytes of a turn never change.
    """
    rendered = [turn.body for turn in turns]
    left, distance = MESSAGE_BREAKPOINTS, MAX_BLOCKS_APART

    for index in range(len(turns) - 1, -1, -1):
        blocks = turns[index].blocks

        if distance + len(blocks) < MAX_BLOCKS_APART:
            distance += len(blocks)
            continue

        marked: list[int] = []

        for position in range(len(blocks) - 1, -1, -1):
            if distance >= MAX_BLOCKS_APART and left and not blocks[position].startswith(_NO_BREAKPOINT):
                marked.append(position)
                distance, left = 0, left - 1

            distance += 1

        if marked:
            body = [with_breakpoint(block) if i in marked else block for i, block in enumerate(blocks)]
            head = b'{"role":"' + turns[index].role.encode() + b'","content":['
            rendered[index] = head + b",".join(body) + b"]}"

        if not left:
            break

    return b",".join(rendered)


def check_anthropic_settings(settings: ModelSettings, profile: Profile, model: str) -> None:
    """Raise DefinitionError if the model does not support a setting, or not together with another."""
    check_model_settings(settings, profile, model)

    if settings.thinking_tokens is not None and settings.temperature not in (None, 1.0):
        raise DefinitionError(
            f"Settings of {model!r} (profile {profile.name!r})",
            "temperature= and thinking_tokens= exclude each other on this model: omit one of them.",
        )

    if settings.thinking_tokens is not None and settings.top_k is not None:
        raise DefinitionError(
            f"Settings of {model!r} (profile {profile.name!r})",
            "top_k= and thinking_tokens= exclude each other on this model: omit one of them.",
        )

    if settings.thinking_tokens is not None and settings.thinking_tokens < 1024:
        raise DefinitionError(
            f"Settings of {model!r} (profile {profile.name!r})",
            f"thinking_tokens={settings.thinking_tokens} is too small: use at least 1024, or None for no thinking.",
        )


def _wants_thinking(settings: ModelSettings, profile: Profile) -> bool:
    if profile.thinking == "budget":
        return settings.thinking_tokens is not None

    return settings.reasoning not in (None, "none")


def _tool_choice_is_free(settings: ModelSettings) -> bool:
    # The service rejects thinking together with a forced call.
    return settings.tool_choice in (None, "auto", "none")


def _settings(settings: ModelSettings, profile: Profile, default_output: int, *, thinks: bool) -> list[bytes]:
    limit = settings.max_output_tokens or default_output
    budget = settings.thinking_tokens if thinks and profile.thinking == "budget" else None
    thinking: dict[str, object] | None = None

    if budget is not None:
        # The budget is part of max_tokens and must leave room for the answer.
        limit = limit if limit > budget else limit + budget
        thinking = {"type": "enabled", "budget_tokens": budget}
    elif thinks:
        thinking = {"type": "adaptive"}
    elif profile.thinking == "adaptive" and settings.reasoning is not None:
        thinking = {"type": "disabled"}

    return json_members(
        {
            "max_tokens": limit,
            "temperature": None if thinks else settings.temperature,
            "top_p": settings.top_p,
            "top_k": settings.top_k,
            "thinking": thinking,
            "stop_sequences": list(settings.stop) or None,
            **(settings.extra_body or {}),
        }
    )


def _output_config(output: OutputSpec | None, settings: ModelSettings, profile: Profile, *, thinks: bool) -> bytes:
    config: dict[str, object] = {}

    if thinks and profile.thinking == "adaptive" and settings.reasoning is not None:
        config["effort"] = _EFFORT.get(settings.reasoning, settings.reasoning)

    if output is not None and (schema := anthropic_schema(output.schema)) is not None:
        config["format"] = {"type": "json_schema", "schema": schema}

    return json_member("output_config", config) if config else b""


def _render_tools_and_system(request: ModelRequest, leading: int, turns: list[Turn]) -> list[bytes]:
    """Render tools and system prompt, with one breakpoint after the last of them."""
    texts = [request.instructions, *(m.text for m in request.messages[:leading] if isinstance(m, SystemMessage))]
    system = [to_json_bytes({"type": "text", "text": text}) for text in texts if text.strip()]
    tools = [cached_bytes(spec, CACHE_KEY, _tool_json) for spec in request.tools]
    parts: list[bytes] = []

    if request.output is not None and anthropic_schema(request.output.schema) is None:
        schema = to_json_bytes(dict(request.output.schema)).decode()
        text = f"Answer only with JSON that matches this schema: {schema}"
        system.append(to_json_bytes({"type": "text", "text": text}))

    if system:
        system[-1] = with_breakpoint(system[-1])
    elif tools:
        tools[-1] = with_breakpoint(tools[-1])

    if tools:
        parts += [b',"tools":[', b",".join(tools), b"]", _tool_choice(request.settings)]
    elif any(isinstance(message, AssistantMessage) and message.calls for message in request.messages):
        # Some services require tools if the conversation contains calls, even if no further call is allowed.
        parts.append(_NO_TOOL)

    if system:
        parts += [b',"system":[', b",".join(system), b"]"]

    return parts


def _tool_json(spec: ToolSpec) -> bytes:
    schema = {"type": "object", **spec.parameters}
    return to_json_bytes({"name": spec.name, "description": spec.description, "input_schema": schema})


def _tool_choice(settings: ModelSettings) -> bytes:
    choice: dict[str, object] = {}

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
