"""Who decides what the server answers: a list of replies, or a function of the request. Ready ones need no memory,
so that many conversations can run on one server."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.wire.model import Json, Protocol
from tests.wire.replies import Reply

Brain = Callable[[Json, Protocol, int], Reply | str]


@dataclass(slots=True)
class Newest:
    """The end of a conversation, the same for every protocol: the user's words, or the newest calls and results."""

    text: str | None = None
    calls: list[tuple[str, Json]] = field(default_factory=list)
    results: list[str] = field(default_factory=list)


def newest(body: Json, protocol: Protocol) -> Newest:
    """Read the end of a request. Words after results count as the user's; trailing system messages do not count."""
    found = Newest()
    items = body["input"] if protocol == "responses" else body["messages"]
    if isinstance(items, str):
        return Newest(text=items)
    for item in reversed(items):
        if not _look(found, item):
            break
    found.results.reverse()
    found.calls.reverse()
    return found


def _look(found: Newest, item: Json) -> bool:
    """Take one message or item in, from the end on; False once the newest exchange is complete."""
    kind, role = item.get("type"), item.get("role")
    if found.calls and kind != "function_call":
        return False
    if kind == "function_call_output" or role == "tool":
        found.results.append(words(item.get("output", item.get("content"))))
        return True
    if kind == "function_call":
        found.calls.append((item["name"], parsed(item["arguments"])))
        return bool(found.results)
    if role == "user":
        return _look_user(found, item["content"])
    if role == "assistant" and found.results:
        calls = [
            (call["function"]["name"], parsed(call["function"]["arguments"])) for call in item.get("tool_calls") or ()
        ]
        blocks = item["content"] if isinstance(item.get("content"), list) else []
        calls += [(part["name"], part["input"]) for part in blocks if part.get("type") == "tool_use"]
        found.calls.extend(reversed(calls))
        return False
    return role in ("system", "developer")


def _look_user(found: Newest, content: Any) -> bool:
    if found.results and not (isinstance(content, list) and content[0].get("type") == "tool_result"):
        return False
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    said = words([part for part in blocks if part.get("type") != "tool_result"])
    if said and not found.results:
        found.text = said
        return False
    found.results.extend(words(part.get("content")) for part in reversed(blocks) if part.get("type") == "tool_result")
    return True


def words(content: Any) -> str:
    """The text of a content, whatever its shape."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or () if isinstance(part, dict) and "text" in part)


def parsed(arguments: str) -> Json:
    """Arguments as an object; what is not one is empty."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def tools(body: Json) -> list[str]:
    """The names of the tools that the request offers."""
    return [tool.get("name") or tool["function"]["name"] for tool in body.get("tools") or ()]


def instructions(body: Json, protocol: Protocol) -> str:
    """The system prompt, wherever the protocol keeps it."""
    if protocol == "messages":
        return words(body.get("system"))
    if protocol == "responses" and body.get("instructions"):
        return str(body["instructions"])
    items = body.get("messages") or body.get("input")
    first = items[0] if isinstance(items, list) else {}
    return words(first.get("content")) if first.get("role") in ("system", "developer") else ""


def scripted(replies: Sequence[Reply | str]) -> Brain:
    """One reply after the other, by the number of the request; the script must be long enough."""

    def brain(_: Json, __: Protocol, index: int) -> Reply | str:
        if index >= len(replies):
            raise LookupError(f"the script has {len(replies)} replies, request {index} wants one more")
        return replies[index]

    return brain


def echo(body: Json, protocol: Protocol, _: int) -> Reply:
    """Say the newest words back."""
    found = newest(body, protocol)
    return Reply(text=found.text or "\n".join(found.results) or "…")


def always(reply: Reply | str) -> Brain:
    """The same answer to everything."""
    return lambda *_: reply


def tool_loop(
    steps: int,
    tool: str = "step",
    *,
    argument: str = "n",
    width: int = 1,
    text: str = "done",
    thinking: str | None = None,
) -> Brain:
    """Call `tool(n=1)`, then `tool(n=2)` … up to `steps` (`width` calls at a time), then answer `text`.

    The step is read from the newest call, so that the loop survives any pruning of what came before.
    """

    def brain(body: Json, protocol: Protocol, _: int) -> Reply:
        found = newest(body, protocol)
        done = max((_number(arguments.get(argument)) for _, arguments in found.calls), default=0)
        thought = f"{thinking} ({done + 1})" if thinking else None
        if done >= steps:
            return Reply(text=text, thinking=thought)
        numbers = range(done + 1, min(done + width, steps) + 1)
        return Reply(calls=[(tool, {argument: number}) for number in numbers], thinking=thought)

    return brain


def _number(value: Any) -> int:
    """A step's number; what is none (a fault made it so) begins again."""
    return value if isinstance(value, int) else 0


def by_agent(brains: Mapping[str, Brain], default: Brain = echo) -> Brain:
    """The brain whose key stands in the system prompt: one server for a crew of agents."""

    def brain(body: Json, protocol: Protocol, index: int) -> Reply | str:
        prompt = instructions(body, protocol)
        return next((one for key, one in brains.items() if key in prompt), default)(body, protocol, index)

    return brain
