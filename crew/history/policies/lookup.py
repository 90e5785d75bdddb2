"""The policies by name, for configuration and the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from crew.errors import DefinitionError, suggest
from crew.history.policies.chain import Chain, chain, check_policy
from crew.history.policies.head_tail import HeadTail
from crew.history.policies.rolling import Rolling, Unbounded
from crew.history.policies.summarizing import Checkpoint, Summarize
from crew.history.policies.view_policies import MaskToolResults, Truncate
from crew.interfaces import Policy

PolicySpec = str | Mapping[str, Any] | Policy
"""A policy, its name, or a mapping of `name` and its options."""


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
    """The policy that is meant by a name, by a mapping such as `{"name": "rolling", "limit": 25}`, or by itself."""
    if isinstance(spec, str):
        return create_policy(spec)

    if not isinstance(spec, Mapping):
        return check_policy(spec, "one, its name, or a mapping")

    options = {str(key): value for key, value in spec.items()}
    name = options.pop("name", None)

    if not isinstance(name, str):
        raise DefinitionError("History policy", f"a mapping must have the policy's name under 'name', not {name!r}")

    return create_policy(name, **options)


def create_policy(name: str, **options: Any) -> Policy:
    """The policy of this name, with these options; what is left out has its default."""
    if name not in POLICIES:
        raise DefinitionError("History policy", f"there is no policy {name!r}. {suggest(name, POLICIES)}")

    make = POLICIES[name]
    parameters = inspect.signature(make).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]

    if unknown := [option for option in options if option not in known or option == "name"]:
        problems = [f"it has no option {option!r}. {suggest(option, known)}" for option in unknown]
        raise DefinitionError(f"History policy {name!r}", problems)

    try:
        return make(**options)
    except TypeError as error:
        raise DefinitionError(f"History policy {name!r}", f"its options do not fit: {error}") from error
