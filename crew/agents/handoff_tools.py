"""A handoff with `on_handoff=`: its function runs as a tool, and control passes when it returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from pydantic import BaseModel, ValidationError

from crew.agents.agent import Handoff
from crew.errors import describe
from crew.interfaces import ToolSpec
from crew.tools.context import Context
from crew.tools.schema import InvalidArguments, Signature, argument_problems
from crew.tools.tool import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadSignature(Signature):
    """The signature of a function that gets the payload as one object, or None for a handoff without a payload."""

    payload: type[BaseModel] | None

    def parse_arguments(self, arguments: str) -> dict[str, object]:
        return {"payload": parse_payload(self.payload, arguments)}


class _NoPayload(BaseModel):
    """The arguments of a handoff without a payload are not read."""


def parse_payload(payload: type[BaseModel] | None, arguments: str) -> BaseModel | None:
    """The payload that a model wrote. Raises `InvalidArguments`."""
    if payload is None:
        return None

    try:
        return payload.model_validate_json(arguments.strip() or "{}")
    except ValidationError as error:
        raise InvalidArguments(argument_problems(error)) from error
    except Exception as error:  # a validator of the payload may raise anything
        raise InvalidArguments(describe(error)) from error


def passed_text(handoff: Handoff) -> str:
    """The result of the call that passes control."""
    return f"Control passes to {handoff.target}."


def handoff_tool(handoff: Handoff, spec: ToolSpec) -> Tool | None:
    """The tool that calls `on_handoff`; None if the handoff has no such function."""
    function = handoff.on_handoff

    if function is None:
        return None

    signature = PayloadSignature(
        spec=spec,
        arguments_model=handoff.payload or _NoPayload,
        parameter_names=("payload",),
        context_parameter="context",
        payload=handoff.payload,
    )
    return Tool(
        function=_caller(function, passed_text(handoff)),
        signature=signature,
        timeout=30.0,
        retries=0,
        approval="never",
        effect="write",
        touches=None,
        max_output_chars=20_000,
    )


def _caller(function: Callable[[Context[Any], Any], object], text: str) -> Callable[..., object]:
    """A function that calls `on_handoff` with context and payload, and returns the text; async if that is."""

    async def call_async(context: Context[Any], payload: object) -> str:
        returned = function(context, payload)
        return await _after(returned, text) if isawaitable(returned) else text

    def call(context: Context[Any], payload: object) -> str | Awaitable[str]:
        returned = function(context, payload)
        return _after(returned, text) if isawaitable(returned) else text

    return call_async if iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__) else call


async def _after(returned: Awaitable[object], text: str) -> str:
    await returned
    return text
