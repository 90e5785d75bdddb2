"""`ModelSettings`: the settings of a model request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from pydantic import JsonValue

from crew.errors import DefinitionError
from crew.settings import setting_problems, value_problems

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_SECRET_NAME = re.compile("auth|key|token|secret|cookie|password|credential|signature", re.IGNORECASE)
_OWN_HEADERS = frozenset(
    {"accept", "accept-encoding", "connection", "content-length", "content-type", "host", "transfer-encoding"}
)
_OWN_FIELDS = frozenset(
    {
        *("model", "messages", "input", "system", "instructions", "tools", "stream", "stream_options", "n"),
        *("response_format", "text", "output_config", "prompt_cache_key", "previous_response_id", "conversation"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Sampling and tool settings of a request. None: the provider's default, and the service checks the range.

    `extra_body` are further fields of the request, for what has no setting here; they can't replace what Crew writes.
    `extra_headers` are further HTTP headers. The value of a header whose name looks like that of a secret, such as
    `x-api-key`, is removed from messages, events, logs and traces.

    The profile of a provider lists the settings that it accepts (`known_settings` in message_rules/profiles.py); any
    other one raises `DefinitionError` when the executor is created. `_settings` in providers/openai_chat.py,
    openai_responses.py and anthropic_render.py sends them. YAML needs no change, and telemetry does not record them.
    """

    max_output_tokens: int | None = None
    temperature: float | None = None
    reasoning: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    thinking_tokens: int | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    top_p: float | None = None
    top_k: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    extra_body: dict[str, JsonValue] | None = field(default=None, hash=False)
    extra_headers: dict[str, str] | None = field(default=None, hash=False, repr=False)

    def __post_init__(self) -> None:
        problems = [*setting_problems(self)]

        if self.extra_body is not None:
            problems += value_problems(dict[str, JsonValue], {"extra_body": self.extra_body}) or self._body_problems()
            object.__setattr__(self, "extra_body", deepcopy(self.extra_body))  # the caller may change its object

        if self.extra_headers is not None:
            accepted = value_problems(dict[str, str], {"extra_headers": self.extra_headers})
            problems += accepted or self._header_problems()
            object.__setattr__(self, "extra_headers", dict(self.extra_headers))

        if problems:
            raise DefinitionError("ModelSettings", problems)

    def _body_problems(self) -> Iterator[str]:
        for name in self.extra_body or {}:
            if name in _OWN_FIELDS:
                yield f"extra_body[{name!r}] is not accepted: Crew writes this field of a request itself"

    def _header_problems(self) -> Iterator[str]:
        for name, value in (self.extra_headers or {}).items():
            if not _HEADER_NAME.fullmatch(name):
                yield f"extra_headers has the name {name!r}, which is not the name of an HTTP header"
            elif name.lower() in _OWN_HEADERS:
                yield f"extra_headers[{name!r}] is not accepted: the HTTP client sets this header"
            elif not _HEADER_VALUE.fullmatch(value):
                yield f"extra_headers[{name!r}] has a character that a header can't hold"

    @property
    def given(self) -> dict[str, Any]:
        """The settings that are not left to the provider, by name."""
        values = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {name: value for name, value in values if value not in (None, ())}

    @property
    def secrets(self) -> Sequence[str]:
        """The values of headers that look like secrets."""
        return tuple(value for name, value in (self.extra_headers or {}).items() if _SECRET_NAME.search(name))

    def overridden_by(self, other: ModelSettings) -> ModelSettings:
        """These settings with those that the other ones set; extra fields and headers are merged."""
        given = other.given

        for name in ("extra_body", "extra_headers"):
            if name in given:
                given[name] = {**(getattr(self, name) or {}), **given[name]}

        return replace(self, **given)
