"""What a configuration file may say; the keys are those of the Python face."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from crew.settings import URL_HINT, is_http_url


class Section(BaseModel):
    """A part of the file: unknown keys are refused, and a text is not a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PolicySection(Section):
    """A history policy with its options."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    name: str


class LimitSettings(Section):
    """The bounds of a run."""

    rounds: int | None = Field(default=200, ge=0)
    handoffs: int | None = Field(default=20, ge=0)
    tool_calls_per_turn: int = Field(default=16, ge=1)
    tokens: int | None = Field(default=None, ge=0)
    cost_usd: float | None = Field(default=None, ge=0)
    seconds: float | None = Field(default=None, ge=0)


class ValidatorSettings(Section):
    """What may come in."""

    max_query_chars: int = Field(default=10_000, ge=1)
    max_history_messages: int = Field(default=1_000, ge=0)
    max_message_chars: int = Field(default=100_000, ge=1)
    tool_pairs: Literal["repair", "refuse"] = "repair"


class TelemetrySettings(Section):
    """Where traces, metrics and logs go."""

    otlp_endpoint: str | None = None
    service_name: str | None = None
    console: bool = False
    sample_ratio: float | None = Field(default=None, ge=0, le=1)
    capture_content: bool | None = None
    logs: Literal["off", "console", "json"] = "off"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    metrics: Literal["otlp", "off"] = "otlp"

    @field_validator("logs", "metrics", mode="before")
    @classmethod
    def _off(cls, given: Any) -> Any:
        """YAML reads an `off` without quotes as false."""
        return "off" if given is False else given

    @field_validator("otlp_endpoint")
    @classmethod
    def _address(cls, given: str | None) -> str | None:
        if given is not None and not is_http_url(given):
            raise PydanticCustomError("address", URL_HINT)

        return given


class ConversationSection(Section):
    """A bounded conversation by its head and tail: the options of the policy `head_tail`."""

    max_messages: int = Field(default=100, ge=0)
    preserve_first_n: int = Field(default=1, ge=0)
    preserve_last_n: int = Field(default=20, ge=0)
    prune_to: int | None = Field(default=None, ge=1)
    summarize_on_trim: bool = False
    summarizer: str | None = None


class ExecutionSection(Section):
    """Names that other frameworks use for the same things."""

    max_conversation_messages: int | None = Field(default=None, ge=0)
    conversation: ConversationSection | None = None
    max_iterations: int | None = Field(default=None, ge=1)


class StrategySettings(Section):
    """How a history is compressed before a model is asked; `n`, `size` and `time` where the strategy has them."""

    name: Literal[
        "whole_history", "last_n_messages", "chunked", "from_timestamp", "whole_history_multiple_system_messages"
    ]
    n: int | None = Field(default=None, ge=0)
    size: int | None = Field(default=None, ge=1)
    time: float | None = None


class ParameterSettings(Section):
    """What every request of a run is told, unless the run says otherwise."""

    compression_strategy: StrategySettings | None = None
    max_history_size: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    enable_token_caching: bool = True


class RouteSection(Section):
    """A signal and where it leads; no target ends the run."""

    signal: str
    to: str | None = None


class HandoffSection(Section):
    """An agent or group that the work may be handed to."""

    to: str
    history: Literal["full", "text_only", "last", "none"] = "full"
    payload: str | None = None


class AgentSection(Section):
    """An agent; tools and pydantic models are written as `module:name`."""

    instructions: str = ""
    model: str
    backup: str | None = None
    description: str = ""
    tools: list[str] = []
    handoffs: list[str | HandoffSection] = []
    routes: list[RouteSection] = []
    then: str | None = None
    wait_for_signal: bool = False
    history: str | PolicySection | None = None
    max_input_tokens: int | None = Field(default=None, ge=1)
    sanitize_output: bool | None = None
    output: str | None = None
    settings: dict[str, Any] = {}


class GroupSection(Section):
    """A parallel group."""

    branches: list[str]
    then: str | None = None
    on_error: Literal["collect", "fail_fast", "first_success"] | int = "collect"
    timeout: float | None = Field(default=None, gt=0)
    max_concurrency: int | None = Field(default=None, ge=1)


class CrewSection(Section):
    """A whole crew; who begins is the entry, or the first agent."""

    agents: dict[str, AgentSection]
    groups: dict[str, GroupSection] = {}
    entry: str | None = None


class ConfigFile(Section):
    """The whole file."""

    max_messages_per_request: int | None = Field(default=None, ge=1)
    prune_to: int | None = Field(default=None, ge=1)
    history: str | PolicySection | None = None
    max_input_tokens: int | None = Field(default=None, ge=1)
    sanitize_output: bool = False
    limits: LimitSettings = LimitSettings()
    parameters: ParameterSettings = ParameterSettings()
    validator: ValidatorSettings = ValidatorSettings()
    telemetry: TelemetrySettings | None = None
    execution: ExecutionSection = ExecutionSection()
    crews: dict[str, CrewSection] = {}


def known_keys(place: tuple[str | int, ...]) -> list[str]:
    """The keys that the file may have at this place."""
    kind: Any = ConfigFile

    for part in place:
        kind = _nested_type(kind, part)

    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def _nested_type(kind: Any, part: str | int) -> Any:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        field = kind.model_fields.get(str(part))
        return _section_type(field.annotation) if field else None

    return _section_type(get_args(kind)[-1]) if get_args(kind) else kind


def _section_type(annotation: Any) -> Any:
    """The section within an optional, a list or a dict of it."""
    for option in get_args(annotation):
        if isinstance(option, type) and issubclass(option, Section):
            return option if getattr(annotation, "__origin__", None) is not dict else annotation

    return annotation
