"""Calls the server through the real SDKs' low-level `post`, which sends a body unchanged."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import httpx2
import openai

from tests.wire.model import Json, Protocol
from tests.wire.server import WireServer

PATH = {"chat": "/chat/completions", "responses": "/responses", "messages": "/v1/messages"}
HEADERS: Any = {"headers": {"Content-Type": "application/json"}}
SCHEMA: Json = {"type": "object", "properties": {"n": {"type": "integer"}}}


def strict_of(**property: Any) -> Json:
    """The strict schema of an object with one property."""
    return {"type": "object", "properties": {"n": property}, "required": ["n"], "additionalProperties": False}


Client = openai.OpenAI | anthropic.Anthropic


@contextmanager
def client(server: WireServer, protocol: Protocol, timeout: float = 10.0, key: str = "key") -> Iterator[Client]:
    """Open a client without retries."""
    options: dict[str, Any] = {"api_key": key, "max_retries": 0, "timeout": timeout}
    options["http_client"] = httpx2.Client(verify=False)  # certificates take most of the time of a short test
    made: Client
    if protocol == "messages":
        made = anthropic.Anthropic(base_url=server.url, **options)
    else:
        made = openai.OpenAI(base_url=server.openai_url, **options)
    with made:
        yield made


def send(client: Client, protocol: Protocol, body: Json) -> Json:
    """Post a body and return the answer's JSON."""
    answer: Any = client.post(PATH[protocol], content=json.dumps(body).encode(), cast_to=object, options=HEADERS)
    return dict(answer)


def stream(client: Client, protocol: Protocol, body: Json) -> list[Json]:
    """Post a body and return all events of the stream."""
    kind: Any = anthropic.Stream[object] if isinstance(client, anthropic.Anthropic) else openai.Stream[object]
    raw = json.dumps({**body, "stream": True}).encode()
    events: Any = client.post(
        PATH[protocol], content=raw, cast_to=object, options=HEADERS, stream=True, stream_cls=kind
    )
    return list(events)


def tool(protocol: Protocol, name: str = "step", **more: Any) -> Json:
    """Return a tool definition in the protocol's form."""
    if protocol == "chat":
        return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **more}}
    if protocol == "responses":
        return {"type": "function", "name": name, "parameters": SCHEMA, **more}
    return {"name": name, "input_schema": SCHEMA, **more}


def body(protocol: Protocol, conversation: list[Json] | str, **more: Any) -> Json:
    """Return a request body with this conversation; a field given as None is omitted."""
    messages = [{"role": "user", "content": conversation}] if isinstance(conversation, str) else conversation
    base: Json = {"model": "m", "tools": [tool(protocol)]}
    base["input" if protocol == "responses" else "messages"] = messages
    if protocol == "messages":
        base["max_tokens"] = 2048
    if protocol == "responses":
        base |= {"store": False, "include": ["reasoning.encrypted_content"]}
    return {key: value for key, value in {**base, **more}.items() if value is not None}


def continued(protocol: Protocol, conversation: list[Json], answer: Json, result: str = "ok") -> list[Json]:
    """Append the model's answer, verbatim, and a result for each of its calls."""
    if protocol == "chat":
        message = {key: value for key, value in answer["choices"][0]["message"].items() if key != "annotations"}
        calls = message.get("tool_calls") or []
        results = [{"role": "tool", "tool_call_id": call["id"], "content": result} for call in calls]
        return [*conversation, message, *results]
    if protocol == "responses":
        calls = [item["call_id"] for item in answer["output"] if item["type"] == "function_call"]
        outputs = [{"type": "function_call_output", "call_id": call, "output": result} for call in calls]
        return [*conversation, *answer["output"], *outputs]
    uses = [part["id"] for part in answer["content"] if part["type"] == "tool_use"]
    blocks = [{"type": "tool_result", "tool_use_id": use, "content": result} for use in uses]
    turn = [{"role": "user", "content": blocks}] if blocks else []
    return [*conversation, {"role": "assistant", "content": answer["content"]}, *turn]
