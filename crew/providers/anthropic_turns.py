"""Messages as Anthropic's turns: blocks of bytes, rendered once, with thinking where this model wrote it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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
from crew.providers.wire import arguments_object, result_text, summary_text, to_json_bytes

THINKING_BLOCKS = ("thinking", "redacted_thinking")
STALE_REASONING = "anthropic-distrusted"
Writer = tuple[str, str]
"""The provider and model that wrote a thinking block, and that alone get it back."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message on the wire. `thinks` says whether it begins with thinking, `answers` whether it holds results."""

    role: str
    blocks: tuple[bytes, ...]
    body: bytes
    starts_with_thinking: bool = False
    has_results: bool = False


def render_turns(messages: Sequence[Message], profile: Profile, writer: Writer) -> list[Turn]:
    """The messages as turns; neighbours of one role stay apart here, the service merges them itself."""
    turns: list[Turn] = []

    for index, message in enumerate(messages):
        match message:
            case AssistantMessage():
                # Thinking in a turn that the service merges out of several replies is no longer what it signed.
                alone = not _is_reply(messages, index - 1) and not _is_reply(messages, index + 1)
                turns.append(_assistant_turn(message, writer if alone else None))
            case SystemMessage():
                after_user = bool(turns) and turns[-1].role == "user"
                turns.append(_system_turn(message, own_role=profile.system_role == "after_user" and after_user))
            case _:
                turns.append(_user_turn(message))

    return turns


def _is_reply(messages: Sequence[Message], index: int) -> bool:
    return 0 <= index < len(messages) and isinstance(messages[index], AssistantMessage)


def _build_turn(role: str, blocks: list[bytes], *, thinks: bool = False, answers: bool = False) -> Turn:
    whole = b'{"role":"' + role.encode() + b'","content":[' + b",".join(blocks) + b"]}"
    return Turn(role, tuple(blocks), whole, thinks, answers)


def _system_turn(message: SystemMessage, *, own_role: bool) -> Turn:
    slot = message.cache()
    key = "anthropic-system" if own_role else "anthropic"

    if key not in slot:
        text = message.text if own_role else f"[Instruction]\n{message.text}"
        slot[key] = _build_turn("system" if own_role else "user", [to_json_bytes({"type": "text", "text": text})])

    turn: Turn = slot[key]
    return turn


def _user_turn(message: UserMessage | SummaryMessage | ToolMessage) -> Turn:
    slot = message.cache()
    found: Turn | None = slot.get("anthropic")

    if found is None:
        blocks = [to_json_bytes(block) for block in _user_blocks(message)]
        found = slot["anthropic"] = _build_turn("user", blocks, answers=isinstance(message, ToolMessage))

    return found


def _user_blocks(message: UserMessage | SummaryMessage | ToolMessage) -> Iterator[dict[str, Any]]:
    match message:
        case SummaryMessage():
            yield {"type": "text", "text": summary_text(message)}
        case UserMessage():
            yield from (_image(image) for image in message.images)

            if message.text.strip():
                yield {"type": "text", "text": message.text}
        case ToolMessage():
            for result in message.results:
                block = {"type": "tool_result", "tool_use_id": result.call_id, "content": result_text(result.text)}
                yield block | {"is_error": True} if result.outcome == "error" else block


def _image(image: Image) -> dict[str, Any]:
    if image.url:
        return {"type": "image", "source": {"type": "url", "url": image.url}}

    return {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": image.data}}


def _assistant_turn(message: AssistantMessage, writer: Writer | None) -> Turn:
    slot = message.cache()
    data = message.provider_data
    own = writer is not None and data is not None and (data.provider, data.model) == writer

    if own and not slot.get(STALE_REASONING):
        found: Turn | None = slot.get("anthropic-thinking")

        if found is None:
            found = slot["anthropic-thinking"] = _thinking_turn(message)

        if found.starts_with_thinking:
            return found

    plain: Turn | None = slot.get("anthropic")

    if plain is None:
        blocks = [_text(message.text)] if message.text.strip() else []
        plain = slot["anthropic"] = _build_turn("assistant", [*blocks, *(_call(call) for call in message.calls)])

    return plain


def _thinking_turn(message: AssistantMessage) -> Turn:
    """The reply in the order in which it was written, with its thinking as it was signed."""
    assert message.provider_data is not None
    calls = {call.id: call for call in message.calls}
    blocks: list[bytes] = []
    kinds: list[str] = []
    lengths = [item["length"] for item in message.provider_data.items if item["type"] == "text"]
    whole = sum(lengths) == len(message.text)
    start = 0

    for item in message.provider_data.items:
        kind, block = item["type"], b""

        if kind in THINKING_BLOCKS:
            block = to_json_bytes(item)
        elif kind == "text":
            # A text that is not the one that was written any more stands whole where it began.
            text = message.text[start : start + item["length"]] if whole else message.text if start == 0 else ""
            start += item["length"] if whole else 1
            block = _text(text) if text.strip() else b""
        elif item["call_id"] in calls:
            block = _call(calls.pop(item["call_id"]))

        if block:
            blocks.append(block)
            kinds.append(kind)

    # A turn may not end with thinking: without what it led to (calls that were declined), it goes whole.
    thinks = not calls and bool(kinds) and kinds[0] in THINKING_BLOCKS and kinds[-1] not in THINKING_BLOCKS
    return _build_turn("assistant", blocks, thinks=thinks)


def _text(text: str) -> bytes:
    return to_json_bytes({"type": "text", "text": text})


def _call(call: ToolCall) -> bytes:
    return to_json_bytes({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_object(call)})


def thinking_allowed(turns: Sequence[Turn]) -> bool:
    """Whether every reply of the tool loop that the request goes on with, as the service merges it, begins with
    thinking that this model signed."""
    merged: list[tuple[str, bool, bool]] = []

    for turn in turns:
        if merged and merged[-1][0] == turn.role:
            role, thinks, answers = merged[-1]
            merged[-1] = (role, thinks, answers or turn.has_results)
        else:
            merged.append((turn.role, turn.starts_with_thinking, turn.has_results))

    for role, thinks, answers in reversed(merged):
        if role == "assistant" and not thinks:
            return False

        if role == "user" and not answers:
            break

    return True
