"""The rules of Anthropic's Messages, except those about thinking."""

import re
from typing import Any

from tests.wire.messages_fields import MAX_MARKS, block, known, marks, options, tools
from tests.wire.messages_thinking import check_thinking
from tests.wire.model import Json, Model
from tests.wire.rejections import refuse
from tests.wire.signing import Signer

TOP = frozenset(
    [
        "cache_control",
        "container",
        "diagnostics",
        "inference_geo",
        "max_tokens",
        "messages",
        "metadata",
        "model",
        "output_config",
        "service_tier",
        "speed",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
        "user_profile_id",
        "workspace_id",
    ]
)
COUNT_TOP = frozenset(
    [
        "cache_control",
        "messages",
        "model",
        "output_config",
        "speed",
        "system",
        "thinking",
        "tool_choice",
        "tools",
        "user_profile_id",
        "workspace_id",
    ]
)
ONE_RESULT = "each tool_use must have a single result. Found multiple `tool_result` blocks with id"
SYSTEM_ROLE = (
    'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, '
    'not "system" as an input message role.'
)
PREFILL = "This model does not support assistant message prefill. The conversation must end with a user message."


def check(body: Json, model: Model, signer: Signer) -> None:
    """Check every rule that depends on the request alone, from the outermost field inwards."""
    known("", body, TOP)
    for field in ("max_tokens", "messages", "model"):
        if field not in body:
            refuse("missing_field", f"{field}: Field required")
    options(body, model)
    check_prompt(body, model, signer)


def check_count(body: Json, model: Model, signer: Signer) -> None:
    """Check a count_tokens request: the same prompt rules, fewer options."""
    known("", body, COUNT_TOP)
    for field in ("messages", "model"):
        if field not in body:
            refuse("missing_field", f"{field}: Field required")
    check_prompt(body, model, signer)


def check_prompt(body: Json, model: Model, signer: Signer) -> None:
    """Check tools, system and messages."""
    tools(body)
    _system(body)
    messages = body["messages"]
    if not isinstance(messages, list):
        refuse("wrong_type", "messages: Input should be a valid list")
    if not messages:
        refuse("empty_messages", "messages: at least one message is required")
    for index, message in enumerate(messages):
        _message(index, message, model, is_last=index == len(messages) - 1)
    _order(messages, model)
    found = marks(body)
    if found > MAX_MARKS:
        words = f"A maximum of {MAX_MARKS} blocks with cache_control may be provided. Found {found}."
        refuse("cache_marks", words)
    turns = merged(messages)
    _pairs(turns)
    if model.demand_tools and not body.get("tools") and _has_tool_blocks(turns):
        refuse("demand_tools", "Requests which include `tool_use` or `tool_result` blocks must define tools.")
    check_thinking(body, model, signer, turns)


def blocks_of(content: Any) -> list[Json]:
    """Return content as blocks; a string is one text block."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def merged(messages: list[Json]) -> list[tuple[int, str, list[Json]]]:
    """Merge neighbours of the same role, as the service does; each turn has the index of its first message."""
    turns: list[tuple[int, str, list[Json]]] = []
    for index, message in enumerate(messages):
        blocks = blocks_of(message["content"])
        if turns and turns[-1][1] == message["role"]:
            turns[-1][2].extend(blocks)
        else:
            turns.append((index, message["role"], list(blocks)))
    return turns


def _system(body: Json) -> None:
    system = body.get("system")
    if system is None or isinstance(system, str):
        return
    if not isinstance(system, list):
        refuse("wrong_type", "system: Input should be a valid list")
    for place, part in enumerate(system):
        block(f"system.{place}", part, "system")
        if not part["text"]:
            refuse("empty_text", "system: text content blocks must be non-empty")


def _message(index: int, message: Any, model: Model, *, is_last: bool) -> None:
    where = f"messages.{index}"
    if not isinstance(message, dict):
        refuse("wrong_type", f"{where}: Input should be a valid dictionary")
    for field in ("role", "content"):
        if field not in message:
            refuse("missing_field", f"{where}.{field}: Field required")
    known(where, message, {"role", "content"})
    role, content = message["role"], message["content"]
    if role == "system" and model.era == "classic":
        refuse("system_role", SYSTEM_ROLE)
    if role not in ("user", "assistant", "system"):
        refuse("role", f"{where}.role: Input should be 'user' or 'assistant'")
    if not isinstance(content, str | list):
        refuse("wrong_type", f"{where}.content: Input should be a valid list")
    if not content:
        if role == "assistant" and is_last:
            return
        refuse(
            "empty_content",
            f"{where}: all messages must have non-empty content except for the optional final assistant message",
        )
    for place, part in enumerate(blocks_of(content)):
        block(f"{where}.content.{place}", part, role)
        if part["type"] == "text":
            _text(part["text"])


def _text(text: str) -> None:
    if not text:
        refuse("empty_text", "messages: text content blocks must be non-empty")
    if not text.strip():
        refuse("blank_text", "messages: text content blocks must contain non-whitespace text")


def _order(messages: list[Json], model: Model) -> None:
    """The first message is the user's; a system message follows a user's; modern models allow no assistant prefill."""
    if messages[0]["role"] != "user":
        refuse("first_role", 'messages: first message must use the "user" role')
    for index, message in enumerate(messages):
        if message["role"] == "system" and messages[index - 1]["role"] != "user":
            refuse("system_place", f"messages.{index}: role 'system' must follow a user turn")
    last = messages[-1]
    if last["role"] != "assistant":
        return
    if model.era == "modern":
        refuse("prefill", PREFILL)
    final = blocks_of(last["content"])[-1:] or [{"type": "none"}]
    if final[0]["type"] == "text" and re.search(r"\s\Z", final[0]["text"]):
        refuse("prefill_space", "messages: final assistant content cannot end with trailing whitespace")


def _has_tool_blocks(turns: list[tuple[int, str, list[Json]]]) -> bool:
    return any(part["type"] in ("tool_use", "tool_result") for _, _, blocks in turns for part in blocks)


def _pairs(turns: list[tuple[int, str, list[Json]]]) -> None:
    """Each call has one result among the leading blocks of the next turn; each result has its call."""
    ever: set[str] = set()
    for number, (index, _, blocks) in enumerate(turns):
        before = turns[number - 1][2] if number else []
        _results(index, blocks, {part["id"] for part in before if part["type"] == "tool_use"})
        uses = [part["id"] for part in blocks if part["type"] == "tool_use"]
        if len(set(uses)) < len(uses) or ever.intersection(uses):
            refuse("duplicate_call_id", f"messages.{index}: `tool_use` ids must be unique")
        ever.update(uses)
        after = turns[number + 1][2] if number + 1 < len(turns) else []
        leading = set()
        for part in after:
            if part["type"] != "tool_result":
                break
            leading.add(part["tool_use_id"])
        missing = [use for use in uses if use not in leading]
        if missing:
            words = (
                f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                "next message."
            )
            refuse("unanswered_call", words)


def _results(index: int, blocks: list[Json], calls: set[str]) -> None:
    seen: set[str] = set()
    for place, part in enumerate(blocks):
        if part["type"] != "tool_result":
            continue
        use = part["tool_use_id"]
        if use not in calls:
            words = (
                f"messages.{index}.content.{place}: unexpected `tool_use_id` found in `tool_result` blocks: {use}. "
                "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
            refuse("result_without_call", words)
        if use in seen:
            refuse("duplicate_answer", f"messages.{index}.content.{place}: {ONE_RESULT}: {use}")
        seen.add(use)
