"""The policies by name, for configuration and the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from crew.doors import Policy
from crew.errors import DefinitionError, nearest
from crew.history.policies.chain import Chain, chain
from crew.history.policies.checkpoint import Checkpoint
from crew.history.policies.head_tail import HeadTail
from crew.history.policies.masking import MaskToolResults
from crew.history.policies.rolling import Rolling
from crew.history.policies.summarize import Summarize
from crew.history.policies.truncate import Truncate
from crew.history.policies.unbounded import Unbounded
from crew.history.policies.verdict import a_policy

PolicySpec = str | Mapping[str, Any] | Policy
"""A policy, its name, or a mapping of `name` and its options."""


def _chain(*, policies: Sequence[PolicySpec]) -> Chain:
    return chain(*(policy_from(member) for member in policies))


POLICIES: dict[str, Callable[..., Policy]] = {
    "chain": _chain,
    "checkpoint": Checkpoint,
    "head_tail": HeadTail,
    "mask_tool_results": MaskToolResults,
    "rolling": Rolling,
    "summarize": Summarize,
    "truncate": Truncate,
    "unbounded": Unbounded,
}


def policy_from(spec: PolicySpec) -> Policy:
    """The policy that is meant by a name, by a mapping such as `{"name": "rolling", "limit": 25}`, or by itself."""
    if isinstance(spec, str):
        return policy_named(spec)

    if not isinstance(spec, Mapping):
        return a_policy(spec, "one, its name, or a mapping")

    options = {str(key): value for key, value in spec.items()}
    name = options.pop("name", None)

    if not isinstance(name, str):
        raise DefinitionError("History policy", f"a mapping must have the policy's name under 'name', not {name!r}")

    return policy_named(name, **options)


def policy_named(name: str, **options: Any) -> Policy:
    """The policy of this name, with these options; what is left out has its default."""
    if name not in POLICIES:
        raise DefinitionError("History policy", f"there is no policy {name!r}. {nearest(name, POLICIES)}")

    make = POLICIES[name]
    parameters = inspect.signature(make).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]

    if unknown := [option for option in options if option not in known or option == "name"]:
        problems = [f"it has no option {option!r}. {nearest(option, known)}" for option in unknown]
        raise DefinitionError(f"History policy {name!r}", problems)

    try:
        return make(**options)
    except TypeError as error:
        raise DefinitionError(f"History policy {name!r}", f"its options do not fit: {error}") from error
