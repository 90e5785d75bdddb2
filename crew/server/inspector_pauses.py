"""The questions that a run waits for, as the inspector shows them, and the answers in a word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crew.runs.answers import is_approval
from crew.runs.call_text import argument_lines
from crew.runs.state import Pause
from crew.transitions.plan import Plan


def pause_json(pause: Pause, plan: Plan | None, *, may_answer: bool) -> dict[str, Any]:
    """A question that the run waits for, with everything that a person needs in order to answer it.

    A reply that is not accepted yet is shown to those who may answer. `types` are the JSON types of each argument, if
    the plan has the tool.
    """
    call = pause.call
    return {
        "id": pause.id,
        "reason": pause.reason,
        "path": pause.run_id,
        "agent": pause.agent,
        "text": question_text(pause),
        "name": None if call is None else call.name,
        "call": None if call is None else call.id,
        "raw": None if call is None else call.arguments,
        "arguments": pause.arguments,
        "types": argument_types(pause, plan),
        "effect": pause.effect,
        "choices": list(pause.choices),
        "checked": pause.checked if may_answer else "",
    }


def argument_types(pause: Pause, plan: Plan | None) -> dict[str, list[str]]:
    """The JSON types that the schema of the tool accepts, by argument; empty if the plan does not have the tool."""
    toolkit = None if plan is None else plan.toolkits.get(pause.agent)

    if toolkit is None or pause.call is None:
        return {}

    schema = next((spec.parameters for spec in toolkit.specs if spec.name == pause.call.name), {})
    definitions = schema.get("$defs", {})
    return {name: sorted(_json_types(one, definitions)) for name, one in schema.get("properties", {}).items()}


def _json_types(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int = 8) -> set[str]:
    """The JSON types that a schema accepts; empty if it accepts any, or does not say."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")

    if name in definitions and depth:
        return _json_types(definitions[name], definitions, depth - 1)

    if named := schema.get("type"):
        return {named} if isinstance(named, str) else {*named}

    options = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    found = [_json_types(one, definitions, depth - 1) for one in options if depth]
    return {one for types in found for one in types} if all(found) else set()


def question_text(pause: Pause) -> str:
    """The question without the arguments of the call, which the page shows itself, and whole."""
    if pause.call is None or pause.reason == "question":
        return pause.text

    lines = argument_lines(pause.arguments, pause.call.arguments)
    return pause.text.removesuffix("".join(f"\n  {line}" for line in lines))


def answer_word(reason: str, answer: object) -> str:
    """What a person decided about a pause, in one word or two."""
    match reason, answer:
        case "approval" | "consent", _:
            return "approved" if is_approval(answer) else "refused"
        case "in_doubt", "run again":
            return "run again"
        case "in_doubt", "skip":
            return "skipped"
        case "in_doubt", _:
            return "result given"
        case _:
            return "answered"
