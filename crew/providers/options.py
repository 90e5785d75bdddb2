"""Which settings a model's era knows; one that it does not know is an error, never dropped in silence."""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache

from crew.doors import ModelSettings
from crew.errors import DefinitionError
from crew.exchanges import Profile

_INSTEAD = {
    "temperature": "leave it out: this model chooses by itself",
    "reasoning": "leave it out, or use thinking_tokens= where the model takes a budget",
    "thinking_tokens": "use reasoning= with 'low', 'medium' or 'high'",
    "seed": "leave it out: this service has none",
    "stop": "leave it out, and say in the instructions where to end",
}


@lru_cache(maxsize=1024)
def check(settings: ModelSettings, profile: Profile, model: str) -> None:
    """Every setting that is given is one that this era knows."""
    given = [one.name for one in fields(settings) if getattr(settings, one.name) not in (None, ())]
    # To ask for no reasoning is fine where there is none.
    unknown = [
        name
        for name in given
        if name not in profile.settings and not (name == "reasoning" and settings.reasoning == "none")
    ]

    if unknown:
        known = ", ".join(sorted(profile.settings))
        raise DefinitionError(
            f"Settings of {model!r} (profile {profile.name!r})",
            [
                f"{name}={getattr(settings, name)!r} is not known: {_INSTEAD.get(name, 'leave it out')}."
                for name in unknown
            ]
            + [f"It takes: {known}."],
        )
