"""The policies that decide what of a history stays: by name in configuration, as classes in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crew.doors import Policy
from crew.errors import DefinitionError, nearest
from crew.history.policies.masking import MaskToolResults
from crew.history.policies.rolling import Rolling
from crew.history.policies.stages import staged
from crew.history.policies.truncate import Truncate
from crew.history.policies.unbounded import Unbounded

__all__ = ["POLICIES", "MaskToolResults", "Rolling", "Truncate", "Unbounded", "policy_named", "staged"]

POLICIES: dict[str, Callable[..., Policy]] = {
    "mask_tool_results": MaskToolResults,
    "rolling": Rolling,
    "truncate": Truncate,
    "unbounded": Unbounded,
}


def policy_named(name: str, **options: Any) -> Policy:
    """The policy of this name, with its defaults or these options."""
    if name not in POLICIES:
        raise DefinitionError("History policy", f"there is no policy {name!r}. {nearest(name, POLICIES)}")

    try:
        return POLICIES[name](**options)
    except TypeError as error:
        raise DefinitionError(f"History policy {name!r}", f"{error}") from error
