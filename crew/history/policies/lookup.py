"""Policies by name, for configuration files and the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence

from pydantic import JsonValue

from crew.errors import DefinitionError, suggest
from crew.history.policies.chain import Chain, chain, check_policy
from crew.history.policies.head_tail import HeadTail
from crew.history.policies.rolling import Rolling, Unbounded
from crew.history.policies.summarizing import Checkpoint, Summarize
from crew.history.policies.view_policies import MaskToolResults, Truncate
from crew.interfaces import Policy

PolicySpec = str | Mapping[str, object] | Policy
"""A policy, its name, or a mapping of `name` and its parameters."""


def _create_chain(*, policies: Sequence[PolicySpec]) -> Chain:
    return chain(*(resolve_policy(member) for member in policies))


POLICIES: dict[str, Callable[..., Policy]] = {
    "chain": _create_chain,
    "checkpoint": Checkpoint,
    "head_tail": HeadTail,
    "mask_tool_results": MaskToolResults,
    "rolling": Rolling,
    "summarize": Summarize,
    "truncate": Truncate,
    "unbounded": Unbounded,
}


def resolve_policy(spec: PolicySpec) -> Policy:
    """Resolve a name, or a mapping such as `{"name": "rolling", "limit": 25}`, to a policy; a policy stays as it is."""
    if isinstance(spec, str):
        return create_policy(spec)

    if not isinstance(spec, Mapping):
        return check_policy(spec, "a policy, its name, or a mapping")

    parameters = {str(key): value for key, value in spec.items()}
    name = parameters.pop("name", None)

    if not isinstance(name, str):
        raise DefinitionError("History policy", f"a mapping must have the policy's name under 'name', not {name!r}")

    return create_policy(name, **parameters)


def create_policy(name: str, **parameters: object) -> Policy:
    """Create the policy of this name; parameters left out have their defaults."""
    if name not in POLICIES:
        raise DefinitionError("History policy", f"unknown policy {name!r}. {suggest(name, POLICIES)}")

    create = POLICIES[name]
    signature = inspect.signature(create).parameters.values()
    accepted = [p.name for p in signature if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]

    if unknown := [parameter for parameter in parameters if parameter not in accepted or parameter == "name"]:
        problems = [f"unknown option {parameter!r}. {suggest(parameter, accepted)}" for parameter in unknown]
        raise DefinitionError(f"History policy {name!r}", problems)

    try:
        return create(**parameters)
    except TypeError as error:
        raise DefinitionError(f"History policy {name!r}", f"invalid options: {error}") from error


def policy_spec(policy: Policy) -> dict[str, JsonValue]:
    """The inverse of `resolve_policy`: a mapping with the name and the options that differ from their defaults.

    Functions and objects, such as a summarizer, are left out; of an unknown policy only the name is kept.
    """
    if isinstance(policy, Chain):
        return {"name": "chain", "policies": [policy_spec(member) for member in policy.policies]}

    kind: object = type(policy)
    name = next((name for name, made in POLICIES.items() if made is kind), "")
    spec: dict[str, JsonValue] = {"name": name or policy.name}
    options = inspect.signature(POLICIES[name]).parameters.values() if name else ()

    for option in options:
        value = getattr(policy, option.name)

        if option.name != "name" and value != option.default and isinstance(value, str | int | float):
            spec[option.name] = value

    return spec
