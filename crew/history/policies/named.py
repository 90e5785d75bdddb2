"""The policies by name, for configuration and the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from crew.doors import Policy
from crew.errors import DefinitionError, nearest
from crew.history.policies.rolling import Rolling
from crew.history.policies.unbounded import Unbounded

POLICIES: dict[str, Callable[..., Policy]] = {"rolling": Rolling, "unbounded": Unbounded}


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

    return make(**options)
