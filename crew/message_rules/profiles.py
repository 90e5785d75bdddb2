"""Profiles: the message rules and model settings of each provider and API generation, as data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal

from crew.errors import DefinitionError, suggest
from crew.interfaces import ModelSettings

_INVALID_NAME_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The rules of one provider and API generation.

    must_open_with_user   the first message must be a user message or a summary; system messages do not count.
    must_end_with_user    the last message must not be a reply.
    max_call_id_length    the longest id of a tool call.
    max_tool_name_length  the longest name of a tool.
    merges_same_role      consecutive messages of one role are merged, for chat templates that require alternation.
    known_settings        the fields of `ModelSettings` that the API accepts.
    output_limit_field    its field for the maximum number of output tokens.
    system_role           where it accepts system messages among the others.
    thinking              how thinking is enabled.
    """

    name: str
    must_open_with_user: bool = True
    must_end_with_user: bool = True
    max_call_id_length: int = 64
    max_tool_name_length: int = 64
    merges_same_role: bool = False
    known_settings: frozenset[str] = frozenset()
    output_limit_field: str = ""
    system_role: Literal["anywhere", "after_user", "nowhere"] = "anywhere"
    thinking: Literal["none", "effort", "budget", "adaptive"] = "none"

    def accepts_call_id(self, id: str) -> bool:
        """Whether the provider accepts this id of a tool call."""
        return 0 < len(id) <= self.max_call_id_length and not _INVALID_NAME_CHARACTER.search(id)

    def fit_tool_name(self, name: str) -> str:
        """The name with invalid characters replaced, cut to the accepted length."""
        return _INVALID_NAME_CHARACTER.sub("_", name)[: self.max_tool_name_length] or "unnamed"


# Settings that every model of an API accepts; a profile adds those that depend on the model. `_SETTING_ADVICE` at the
# end of this file has an alternative for users of the others.
_SHARED = frozenset({"max_output_tokens", "tool_choice", "parallel_tool_calls", "extra_body", "extra_headers"})
_CHAT = _SHARED | {"stop", "seed"}
_MESSAGES = _SHARED | {"stop"}
_SAMPLING = frozenset({"temperature", "top_p"})
_PENALTIES = frozenset({"frequency_penalty", "presence_penalty"})

PROFILES = {
    profile.name: profile
    for profile in (
        Profile(name="strictest", max_call_id_length=40),
        Profile(
            name="openai-chat",
            must_open_with_user=False,
            must_end_with_user=False,
            max_call_id_length=40,
            known_settings=_CHAT | {"reasoning"},
            output_limit_field="max_completion_tokens",
            thinking="effort",
        ),
        Profile(
            name="openai-chat-classic",
            must_open_with_user=False,
            must_end_with_user=False,
            max_call_id_length=40,
            known_settings=_CHAT | _SAMPLING | _PENALTIES,
            output_limit_field="max_completion_tokens",
        ),
        Profile(
            name="openai-responses",
            must_open_with_user=False,
            must_end_with_user=False,
            known_settings=_SHARED | {"reasoning"},
            output_limit_field="max_output_tokens",
            thinking="effort",
        ),
        Profile(
            name="openai-responses-classic",
            must_open_with_user=False,
            must_end_with_user=False,
            known_settings=_SHARED | _SAMPLING,
            output_limit_field="max_output_tokens",
        ),
        Profile(
            name="anthropic",
            max_tool_name_length=128,
            known_settings=_MESSAGES | {"reasoning"},
            output_limit_field="max_tokens",
            system_role="after_user",
            thinking="adaptive",
        ),
        # Thinking is adaptive as in newer models, but system messages among the others are still rejected.
        Profile(
            name="anthropic-4.7",
            max_tool_name_length=128,
            known_settings=_MESSAGES | {"reasoning"},
            output_limit_field="max_tokens",
            system_role="nowhere",
            thinking="adaptive",
        ),
        Profile(
            name="anthropic-classic",
            must_end_with_user=False,
            max_tool_name_length=128,
            known_settings=_MESSAGES | _SAMPLING | {"top_k", "thinking_tokens"},
            output_limit_field="max_tokens",
            system_role="nowhere",
            thinking="budget",
        ),
        # Servers with a Chat Completions API for any model: all settings but `thinking_tokens`, under the older names.
        Profile(
            name="compatible",
            max_call_id_length=40,
            known_settings=_CHAT | _SAMPLING | _PENALTIES | {"top_k", "reasoning"},
            output_limit_field="max_tokens",
            thinking="effort",
        ),
        Profile(
            name="alternating",
            max_call_id_length=40,
            merges_same_role=True,
            known_settings=_CHAT | _SAMPLING | _PENALTIES | {"top_k", "reasoning"},
            output_limit_field="max_tokens",
            system_role="nowhere",
            thinking="effort",
        ),
    )
}
STRICTEST = PROFILES["strictest"]


@cache
def get_profile(name: str) -> Profile:
    """Look a profile up by its name."""
    if name not in PROFILES:
        raise DefinitionError("Profile", f"unknown profile {name!r}. {suggest(name, PROFILES)}")

    return PROFILES[name]


_SETTING_ADVICE = {
    "temperature": "omit it; this model sets its own temperature",
    "top_p": "omit it; this model sets its own sampling",
    "top_k": "omit it, or use top_p= if the model takes it",
    "frequency_penalty": "omit it; this model has no penalties",
    "presence_penalty": "omit it; this model has no penalties",
    "reasoning": "omit it, or use thinking_tokens= if the model takes a token budget",
    "thinking_tokens": "use reasoning= with 'low', 'medium' or 'high'",
    "seed": "omit it; this API has no seed",
    "stop": "omit it, and state in the instructions where to stop",
}


_SETTING_FIELDS = {
    "max_output_tokens": {"max_tokens", "max_completion_tokens", "max_output_tokens"},
    "reasoning": {"reasoning", "reasoning_effort", "thinking"},
    "thinking_tokens": {"thinking"},
    "stop": {"stop", "stop_sequences"},
}
"""The fields of requests that hold a setting, where they do not have its name."""


def _repeated_fields(settings: ModelSettings, profile: Profile) -> Iterator[str]:
    """The extra fields of a request that a setting writes already."""
    for name in settings.extra_body or {}:
        if name == profile.output_limit_field:
            yield f"extra_body[{name!r}] is not accepted: use max_output_tokens=."

        for setting in settings.given:
            if name in _SETTING_FIELDS.get(setting, {setting}) and name != profile.output_limit_field:
                yield f"extra_body[{name!r}] repeats {setting}=: omit one of them."


@lru_cache(maxsize=1024)
def check_model_settings(settings: ModelSettings, profile: Profile, model: str) -> None:
    """Raise DefinitionError if the profile does not support one of the settings."""
    given = settings.given
    # `reasoning="none"` is valid for a model without reasoning.
    unknown = [
        name
        for name in given
        if name not in profile.known_settings and not (name == "reasoning" and settings.reasoning == "none")
    ]

    if problems := [*_repeated_fields(settings, profile)]:
        raise DefinitionError(f"Settings of {model!r} (profile {profile.name!r})", problems)

    if unknown:
        problems = [
            f"{name}={getattr(settings, name)!r} is not supported: {_SETTING_ADVICE.get(name, 'omit it')}."
            for name in unknown
        ]
        problems[-1] += f" Supported: {', '.join(sorted(profile.known_settings))}."
        raise DefinitionError(f"Settings of {model!r} (profile {profile.name!r})", problems)
