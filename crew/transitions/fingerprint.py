"""The fingerprint of a crew: small hashes of its parts, by which a resume finds what changed since the run started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from types import FunctionType, MethodType

from pydantic_core import to_json

from crew.agents.agent import Agent, AgentTool, Handoff, Parallel, agent_handoffs, node_name
from crew.interfaces import Policy, Provider
from crew.tools.tool import Tool

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
    tools = sorted(agent.tools, key=lambda used: used.name if isinstance(used, Tool | AgentTool) else "")
    handoffs = sorted(agent_handoffs(agent), key=lambda handoff: handoff.target)
    return (
        agent.instructions,
        (_model(agent.model), _model(agent.backup)),
        [*map(_tool_parts, tools)],
        [*map(_handoff_parts, handoffs)],
        ([(route.signal, route.target, route.match) for route in agent.routes], agent.wait_for_signal),
        None if agent.then is None else node_name(agent.then),
        None if agent.output is None else agent.output.model_json_schema(),
        (agent.settings, _model(agent.history), agent.sanitize_output),
    )


def _model(model: object) -> str:
    """A model or a policy by its name."""
    return "" if model is None else model if isinstance(model, str) else _name(model)


def _tool_parts(used: object) -> object:
    match used:
        case Tool():
            return used.spec, used.effect, used.approval
        case AgentTool():
            return used.spec, used.agent.name
        case _:
            return _name(used)


def _handoff_parts(handoff: Handoff) -> object:
    payload = None if handoff.payload is None else handoff.payload.model_json_schema()
    return handoff.target, handoff.history, payload


def _group_parts(group: Parallel) -> tuple[object, ...]:
    then = None if group.then is None else node_name(group.then)
    return group.branch_names, then, group.on_error, (group.timeout, group.max_concurrency)


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


def _split(hashes: str) -> list[str]:
    return [hashes[start : start + _HASH_CHARS] for start in range(0, len(hashes), _HASH_CHARS)]
