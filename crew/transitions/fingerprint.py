"""The fingerprint of a crew: small hashes of its parts, by which a resume finds what changed since the run started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from types import FunctionType, MethodType

from pydantic_core import to_json

from crew.agents.agent import Agent, AgentTool, Handoff, Parallel, agent_handoffs, node_name
from crew.agents.choice import Choice
from crew.interfaces import ModelSettings, Policy, Provider
from crew.tools.tool import Tool
from crew.tools.toolset import Toolset

AGENT_PARTS = ("instructions", "model", "tools", "handoffs", "routes", "then", "output", "settings")
GROUP_PARTS = ("branches", "then", "on_error", "settings")
_HASH_CHARS = 8

Fingerprint = dict[str, str]
"""For each agent and group the hashes of its parts, in the order above, as one text."""


def crew_fingerprint(agents: Mapping[str, Agent], groups: Mapping[str, Parallel]) -> Fingerprint:
    """The fingerprint of a crew. Functions count by their names: their code is not looked at."""
    parts = {name: _agent_parts(agent) for name, agent in agents.items()}
    parts |= {name: _group_parts(group) for name, group in groups.items()}
    return {name: "".join(map(_hash, values)) for name, values in parts.items()}


def _hash(value: object) -> str:
    return blake2b(to_json(value, fallback=_name), digest_size=_HASH_CHARS // 2).hexdigest()


def _name(value: object) -> str:
    """A name for what has no JSON form: a function, a class, a provider, a policy."""
    match value:
        case Provider():
            return f"{value.name}:{value.model}"
        case Policy():
            return value.name
        case type() | FunctionType() | MethodType():
            return value.__qualname__
        case _:
            return type(value).__qualname__


def _agent_parts(agent: Agent) -> tuple[object, ...]:
    tools = sorted(agent.tools, key=lambda used: used.name if isinstance(used, Tool | AgentTool | Toolset) else "")
    handoffs = sorted(agent_handoffs(agent), key=lambda handoff: handoff.target)
    return (
        agent.instructions,
        (_model(agent.model), _model(agent.backup)),
        [*map(_tool_parts, tools)],
        [*map(_handoff_parts, handoffs)],
        ([(route.signal, route.target, route.match) for route in agent.routes], agent.wait_for_signal),
        _then(agent.then),
        None if agent.output_type is None else agent.output_type.spec.schema,
        (_settings_parts(agent.settings), _model(agent.history), agent.sanitize_output, *_guardrail_parts(agent)),
    )


def _guardrail_parts(agent: Agent) -> list[object]:
    """Empty without guardrails, so that the hashes of older runs stay."""
    return [[(one.name, one.on, one.parallel) for one in agent.guardrails]] if agent.guardrails else []


_FIRST_SETTINGS: dict[str, object] = dict.fromkeys(
    ("max_output_tokens", "temperature", "reasoning", "thinking_tokens", "tool_choice", "parallel_tool_calls")
) | {"stop": (), "seed": None}


def _settings_parts(settings: ModelSettings) -> dict[str, object]:
    """The settings by name. Those that were added later count if they are set: stored fingerprints stay the same."""
    parts = _FIRST_SETTINGS | settings.given

    if settings.extra_headers:
        parts["extra_headers"] = sorted(settings.extra_headers)  # their values may be secrets that change

    return parts


def _model(model: object) -> str:
    """A model or a policy by its name."""
    return "" if model is None else model if isinstance(model, str) else _name(model)


def _tool_parts(used: object) -> object:
    match used:
        case Tool():
            return used.spec, used.effect, used.approval
        case AgentTool():
            return used.spec, used.agent.name
        case Toolset():
            return "toolset", used.name
        case _:
            return _name(used)


def _handoff_parts(handoff: Handoff) -> object:
    payload = None if handoff.payload is None else handoff.payload.model_json_schema()
    parts = handoff.target, handoff.history, payload
    return parts if handoff.on_handoff is None else (*parts, handoff.on_handoff)


def _group_parts(group: Parallel) -> tuple[object, ...]:
    settings: tuple[object, ...] = (group.timeout, group.max_concurrency)

    if group.items is not None:
        settings = (*settings, group.items, group.max_items)

    return group.branch_names, _then(group.then), group.on_error, settings


def _then(then: Agent | Parallel | Choice | str | None) -> object:
    match then:
        case None:
            return None
        case Choice(name=name, target_names=targets):
            return name, targets
        case target:
            return node_name(target)


def crew_changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """What differs between two fingerprints, such as `clerk (instructions, tools)`."""
    for name in sorted({*before, *now}):
        if name not in now:
            yield f"{name} (removed)"
        elif name not in before:
            yield f"{name} (added)"
        elif before[name] != now[name]:
            names = AGENT_PARTS if len(now[name]) == len(AGENT_PARTS) * _HASH_CHARS else GROUP_PARTS
            old, new = _split(before[name]), _split(now[name])
            changed = [part for part, one, other in zip(names, old, new, strict=False) if one != other]
            yield f"{name} ({', '.join(changed)})"


def has_same_instructions(before: str, now: str) -> bool:
    """Whether two fingerprints of an agent have the same instructions."""
    return before[:_HASH_CHARS] == now[:_HASH_CHARS]


def _split(hashes: str) -> list[str]:
    return [hashes[start : start + _HASH_CHARS] for start in range(0, len(hashes), _HASH_CHARS)]
