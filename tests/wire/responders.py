"""Functions that choose the server's reply to a request; they keep no state, so conversations can share a server."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.wire.model import Json, Protocol
from tests.wire.replies import Reply

Responder = Callable[[Json, Protocol, int], Reply | str]


@dataclass(slots=True)
class Newest:
    """The end of a conversation in any protocol: the user's text, or the newest calls and results."""

    text: str | None = None
    calls: list[tuple[str, Json]] = field(default_factory=list)
    results: list[str] = field(default_factory=list)


def newest(body: Json, protocol: Protocol) -> Newest:
    """Read the end of a request. Text after results counts as the user's; trailing system messages are skipped."""
    found = Newest()
    items = body["input"] if protocol == "responses" else body["messages"]
    if isinstance(items, str):
        return Newest(text=items)
    for item in reversed(items):
        if not _collect(found, item):
            break
    found.results.reverse()
    found.calls.reverse()
    return found


def _collect(found: Newest, item: Json) -> bool:
    """Add one message or item, starting from the last; False once the newest tool-call group is complete."""
    kind, role = item.get("type"), item.get("role")
    if found.calls and kind != "function_call":
        return False
    if kind == "function_call_output" or role == "tool":
        found.results.append(text_of(item.get("output", item.get("content"))))
        return True
    if kind == "function_call":
        found.calls.append((item["name"], parsed(item["arguments"])))
        return bool(found.results)
    if role == "user":
        return _collect_user(found, item["content"])
    if role == "assistant" and found.results:
        calls = [
            (call["function"]["name"], parsed(call["function"]["arguments"])) for call in item.get("tool_calls") or ()
        ]
        blocks = item["content"] if isinstance(item.get("content"), list) else []
        calls += [(part["name"], part["input"]) for part in blocks if part.get("type") == "tool_use"]
        found.calls.extend(reversed(calls))
        return False
    return role in ("system", "developer")


def _collect_user(found: Newest, content: Any) -> bool:
    if found.results and not (isinstance(content, list) and content[0].get("type") == "tool_result"):
        return False
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    text = text_of([part for part in blocks if part.get("type") != "tool_result"])
    if text and not found.results:
        found.text = text
        return False
    found.results.extend(text_of(part.get("content")) for part in reversed(blocks) if part.get("type") == "tool_result")
    return True


def text_of(content: Any) -> str:
    """Return the text of a content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or () if isinstance(part, dict) and "text" in part)


def parsed(arguments: str) -> Json:
    """Parse arguments; empty if they are not a JSON object."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def tools(body: Json) -> list[str]:
    """Return the names of the request's tools."""
    return [tool.get("name") or tool["function"]["name"] for tool in body.get("tools") or ()]


def instructions(body: Json, protocol: Protocol) -> str:
    """Return the system prompt, from the field that the protocol uses."""
    if protocol == "messages":
        return text_of(body.get("system"))
    if protocol == "responses" and body.get("instructions"):
        return str(body["instructions"])
    items = body.get("messages") or body.get("input")
    first = items[0] if isinstance(items, list) else {}
    return text_of(first.get("content")) if first.get("role") in ("system", "developer") else ""


def scripted(replies: Sequence[Reply | str]) -> Responder:
    """Reply with the n-th entry to the n-th request; LookupError if there are too few."""

    def responder(_: Json, __: Protocol, index: int) -> Reply | str:
        if index >= len(replies):
            raise LookupError(f"the script has {len(replies)} replies, but this is request {index}: add a reply")
        return replies[index]

    return responder


def echo(body: Json, protocol: Protocol, _: int) -> Reply:
    """Repeat the newest text."""
    found = newest(body, protocol)
    return Reply(text=found.text or "\n".join(found.results) or "…")


def always(reply: Reply | str) -> Responder:
    """Give the same reply to every request."""
    return lambda *_: reply


def tool_loop(
    steps: int,
    tool: str = "step",
    *,
    argument: str = "n",
    width: int = 1,
    text: str = "done",
    thinking: str | None = None,
) -> Responder:
    """Call `tool(n=1)`, then `tool(n=2)` … up to `steps` (`width` calls at a time), then answer `text`.

    The step is read from the newest call, so that the loop continues after any pruning of earlier messages.
    """

    def responder(body: Json, protocol: Protocol, _: int) -> Reply:
        found = newest(body, protocol)
        done = max((_number(arguments.get(argument)) for _, arguments in found.calls), default=0)
        thought = f"{thinking} ({done + 1})" if thinking else None
        if done >= steps:
            return Reply(text=text, thinking=thought)
        numbers = range(done + 1, min(done + width, steps) + 1)
        return Reply(calls=[(tool, {argument: number}) for number in numbers], thinking=thought)

    return responder


def _number(value: Any) -> int:
    """Return a step's number; 0, which restarts the loop, if a fault replaced it."""
    return value if isinstance(value, int) else 0


def by_agent(responders: Mapping[str, Responder], default: Responder = echo) -> Responder:
    """Choose the responder whose key occurs in the system prompt: one server for a crew of agents."""

    def responder(body: Json, protocol: Protocol, index: int) -> Reply | str:
        prompt = instructions(body, protocol)
        return next((one for key, one in responders.items() if key in prompt), default)(body, protocol, index)

    return responder
