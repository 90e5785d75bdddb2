"""Renders messages to Anthropic's turns: cached blocks of bytes, with the thinking that this model wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from crew.message_rules.profiles import Profile
from crew.messages import (
    AssistantMessage,
    Image,
    Message,
    SummaryMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from crew.providers.wire import ModelId, arguments_object, result_text, summary_text, to_json_bytes

THINKING_BLOCKS = ("thinking", "redacted_thinking")
STALE_THINKING = "anthropic-stale"
CACHE_KEY = "anthropic"
_SYSTEM_CACHE_KEY = "anthropic-system"
_THINKING_CACHE_KEY = "anthropic-thinking"


@dataclass(frozen=True, slots=True)
class Turn:
    """A rendered message: `body` is the JSON of `role` and `blocks`."""

    role: str
    blocks: tuple[bytes, ...]
    body: bytes
    starts_with_thinking: bool = False
    has_results: bool = False


def render_turns(messages: Sequence[Message], profile: Profile, model_id: ModelId) -> list[Turn]:
    """Render each message to one turn; the service merges neighbours of the same role."""
    turns: list[Turn] = []

    for index, message in enumerate(messages):
        match message:
            case AssistantMessage():
                # The service merges neighbouring replies into one turn, which invalidates their signed thinking.
                alone = not _is_reply(messages, index - 1) and not _is_reply(messages, index + 1)
                turns.append(_assistant_turn(message, model_id if alone else None))
            case SystemMessage():
                after_user = bool(turns) and turns[-1].role == "user"
                turns.append(_system_turn(message, own_role=profile.system_role == "after_user" and after_user))
            case _:
                turns.append(_user_turn(message))

    return turns


def _is_reply(messages: Sequence[Message], index: int) -> bool:
    return 0 <= index < len(messages) and isinstance(messages[index], AssistantMessage)


def _build_turn(
    role: str, blocks: list[bytes], *, starts_with_thinking: bool = False, has_results: bool = False
) -> Turn:
    body = b'{"role":"' + role.encode() + b'","content":[' + b",".join(blocks) + b"]}"
    return Turn(role, tuple(blocks), body, starts_with_thinking, has_results)


def _system_turn(message: SystemMessage, *, own_role: bool) -> Turn:
    cache = message.cache()
    key = _SYSTEM_CACHE_KEY if own_role else CACHE_KEY

    if key not in cache:
        text = message.text if own_role else f"[Instruction]\n{message.text}"
        cache[key] = _build_turn("system" if own_role else "user", [to_json_bytes({"type": "text", "text": text})])

    turn: Turn = cache[key]
    return turn


def _user_turn(message: UserMessage | SummaryMessage | ToolMessage) -> Turn:
    cache = message.cache()
    found: Turn | None = cache.get(CACHE_KEY)

    if found is None:
        blocks = [to_json_bytes(block) for block in _user_blocks(message)]
        found = cache[CACHE_KEY] = _build_turn("user", blocks, has_results=isinstance(message, ToolMessage))

    return found


def _user_blocks(message: UserMessage | SummaryMessage | ToolMessage) -> Iterator[dict[str, object]]:
    match message:
        case SummaryMessage():
            yield {"type": "text", "text": summary_text(message)}
        case UserMessage():
            yield from (_image(image) for image in message.images)

            if message.text.strip():
                yield {"type": "text", "text": message.text}
        case ToolMessage():
            for result in message.results:
                block: dict[str, object] = {
                    "type": "tool_result",
                    "tool_use_id": result.call_id,
                    "content": result_text(result.text),
                }
                yield block | {"is_error": True} if result.outcome != "ok" else block


def _image(image: Image) -> dict[str, object]:
    if image.url:
        return {"type": "image", "source": {"type": "url", "url": image.url}}

    return {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": image.data}}


def _assistant_turn(message: AssistantMessage, model_id: ModelId | None) -> Turn:
    cache = message.cache()
    data = message.provider_data
    own = model_id is not None and data is not None and (data.provider, data.model) == model_id

    if own and not cache.get(STALE_THINKING):
        found: Turn | None = cache.get(_THINKING_CACHE_KEY)

        if found is None:
            found = cache[_THINKING_CACHE_KEY] = _thinking_turn(message)

        if found.starts_with_thinking:
            return found

    plain: Turn | None = cache.get(CACHE_KEY)

    if plain is None:
        blocks = [_text(message.text)] if message.text.strip() else []
        plain = cache[CACHE_KEY] = _build_turn("assistant", [*blocks, *(_call(call) for call in message.calls)])

    return plain


def _thinking_turn(message: AssistantMessage) -> Turn:
    """Render the reply's blocks in their original order, with the signed thinking."""
    assert message.provider_data is not None
    calls = {call.id: call for call in message.calls}
    blocks: list[bytes] = []
    kinds: list[str] = []
    lengths = [item["length"] for item in message.provider_data.items if item["type"] == "text"]
    unchanged = sum(lengths) == len(message.text)
    start = 0

    for item in message.provider_data.items:
        kind, block = item["type"], b""

        if kind in THINKING_BLOCKS:
            block = to_json_bytes(item)
        elif kind == "text":
            # A text that was changed since (masked, scrubbed) can't be split: it goes into the first text block.
            text = message.text[start : start + item["length"]] if unchanged else message.text if start == 0 else ""
            start += item["length"] if unchanged else 1
            block = _text(text) if text.strip() else b""
        elif item["call_id"] in calls:
            block = _call(calls.pop(item["call_id"]))

        if block:
            blocks.append(block)
            kinds.append(kind)

    # The service rejects a turn that ends with thinking, which happens if the calls after it were removed.
    starts_with_thinking = (
        not calls and bool(kinds) and kinds[0] in THINKING_BLOCKS and kinds[-1] not in THINKING_BLOCKS
    )
    return _build_turn("assistant", blocks, starts_with_thinking=starts_with_thinking)


def _text(text: str) -> bytes:
    return to_json_bytes({"type": "text", "text": text})


def _call(call: ToolCall) -> bytes:
    return to_json_bytes({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_object(call)})


def thinking_allowed(turns: Sequence[Turn]) -> bool:
    """Whether the request may enable thinking: every reply of the open tool loop starts with signed thinking.

    Neighbours of the same role count as one turn, because the service merges them.
    """
    merged: list[tuple[str, bool, bool]] = []

    for turn in turns:
        if merged and merged[-1][0] == turn.role:
            role, starts_with_thinking, has_results = merged[-1]
            merged[-1] = (role, starts_with_thinking, has_results or turn.has_results)
        else:
            merged.append((turn.role, turn.starts_with_thinking, turn.has_results))

    for role, starts_with_thinking, has_results in reversed(merged):
        if role == "assistant" and not starts_with_thinking:
            return False

        if role == "user" and not has_results:
            break

    return True
