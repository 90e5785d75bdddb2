"""The schema of a configuration file; its keys are the parameter names of the Python API."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    PlainValidator,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from crew.agents.agent import HandoffMode
from crew.errors import abbreviate, suggest
from crew.history.policies.head_tail import HeadTail
from crew.history.policies.lookup import POLICIES
from crew.interfaces import (
    Chunked,
    CompressionStrategy,
    FromTimestamp,
    LastNMessages,
    RetryPolicy,
    WholeHistory,
    WholeHistoryMultipleSystemMessages,
)
from crew.mcp.server import MCPServer, ToolSettings
from crew.providers.pool import model_name_problem
from crew.providers.rate_limits import RateLimit
from crew.runs.parameters import Limits, RequestParameters
from crew.settings import (
    Accepts,
    MessageLimit,
    NonNegativeInt,
    Place,
    PositiveInt,
    Seconds,
    in_plain_words,
    plain_error,
    read_options,
    read_settings,
)
from crew.store.location import store_problem
from crew.telemetry.setup import TelemetrySettings
from crew.validation.validator import InputValidator


class Section(BaseModel):
    """A mapping in the file. Unknown keys are refused, and values are not converted: "25" is not a number."""

    # The validators are built when the first file is read: a program that has no file does not wait for them.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    @model_validator(mode="wrap")
    @classmethod
    def _explain_errors(cls, value: object, validate: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return validate(value)
        except ValidationError as error:
            raise in_plain_words(error, list(cls.model_fields)) from error


class PolicySection(Section):
    """A history policy, by its name or with its options."""

    model_config = ConfigDict(extra="allow")
    name: str

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        policy = POLICIES.get(self.name)

        if policy is None:
            raise plain_error(
                "name", f"must name a policy, not {self.name!r}. {suggest(self.name, POLICIES)}", self.name
            )

        if isinstance(policy, type) and is_dataclass(policy):
            read_options(policy, self.model_extra, summarizer=str | None)

        return self


def _read_conversation(value: object) -> dict[str, object]:
    """The options of the policy `head_tail`."""
    return read_options(HeadTail, value, summarizer=str | None)


class ExecutionSection(Section):
    """Names that other frameworks use for settings of Crew."""

    max_conversation_messages: NonNegativeInt | None = None
    conversation: Annotated[dict[str, object], PlainValidator(_read_conversation)] | None = None
    max_iterations: PositiveInt | None = None


_STRATEGIES: dict[str, type[CompressionStrategy]] = {
    "whole_history": WholeHistory,
    "last_n_messages": LastNMessages,
    "chunked": Chunked,
    "from_timestamp": FromTimestamp,
    "whole_history_multiple_system_messages": WholeHistoryMultipleSystemMessages,
}


def _read_strategy(value: object) -> CompressionStrategy:
    name = value.get("name") if isinstance(value, Mapping) else None

    if not isinstance(value, Mapping) or not isinstance(name, str) or name not in _STRATEGIES:
        known = ", ".join(map(repr, _STRATEGIES))
        raise plain_error(
            "compression_strategy", f"must be a mapping with a name among {known}, not {abbreviate(value)}", value
        )

    return read_settings(_STRATEGIES[name], {key: option for key, option in value.items() if key != "name"})


def _read_parameters(value: object) -> RequestParameters:
    strategy = Annotated[CompressionStrategy, PlainValidator(_read_strategy)] | None
    return read_settings(RequestParameters, value, compression_strategy=strategy)


def _check_model_name(value: str) -> str:
    if problem := model_name_problem(value):
        raise plain_error("model", f"{value!r}: {problem}", value)

    return value


ModelName = Annotated[str, AfterValidator(_check_model_name)]
RetrySection = Annotated[RetryPolicy, PlainValidator(partial(read_settings, RetryPolicy))]


@dataclass(slots=True)
class Variables:
    """The environment variables that a file uses. Their values may be secret and must not be in an error."""

    _names: dict[str, str] = field(default_factory=dict, repr=False)

    def add(self, name: str, value: str) -> None:
        """Add the value of a variable; a value of less than 4 characters occurs in ordinary words."""
        if len(value) >= 4:
            self._names[value] = name

    def hide(self, text: str) -> str:
        """The text with each value, also one that is cut at its end, replaced by the name of its variable."""
        for value in sorted(self._names, key=len, reverse=True):
            # An error shows the beginning of a long value.
            pattern = re.escape(value[:12]) + (r"[^\s'\"]*" if len(value) > 12 else "")
            text = re.sub(pattern, f"${{{self._names[value]}}}", text)

        return text


class RouteSection(Section):
    """A signal and its target; without a target, the signal ends the run."""

    signal: str
    to: str | None = None
    match: Literal["end", "anywhere"] = "end"


class HandoffSection(Section):
    """An agent or group that the agent can transfer to, by its name or with options."""

    to: str
    history: HandoffMode = "full"
    payload: str | None = None
    on_handoff: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"to": value} if isinstance(value, str) else value


class ThenSection(Section):
    """The agent or group that follows, by its name; or a function, as `module:name`, that selects one of `targets`."""

    to: str | None = None
    choose: str | None = None
    targets: list[str] = []

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"to": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.to is None) == (self.choose is None):
            raise plain_error("then", "must be a name, or a mapping with choose and targets", None)

        return self


class FunctionSection(Section):
    """A function, written as `module:name`."""

    function: str


class AgentSection(Section):
    """An agent. Tools, functions and pydantic models are written as `module:name`, MCP servers by their names."""

    instructions: Annotated[str | FunctionSection, Accepts("a text, or {function: module:name}")] = ""
    model: ModelName
    backup: ModelName | None = None
    description: str = ""
    tools: list[str] = []
    guardrails: list[str] = []
    handoffs: list[HandoffSection] = []
    routes: list[RouteSection] = []
    then: ThenSection | None = None
    wait_for_signal: bool = False
    history: PolicySection | None = None
    max_input_tokens: PositiveInt | None = None
    sanitize_output: bool | None = None
    output: str | None = None
    settings: dict[str, object] = {}
    retry: RetrySection | None = None


class GroupSection(Section):
    """A parallel group."""

    branches: list[str]
    then: ThenSection | None = None
    on_error: Annotated[
        Literal["collect", "fail_fast", "first_success"] | int,
        Accepts("'collect', 'fail_fast', 'first_success' or a number of branches"),
    ] = "collect"
    timeout: Seconds | None = None
    max_concurrency: PositiveInt | None = None
    items: str | None = None
    max_items: PositiveInt = 100


class CrewSection(Section):
    """A crew. `entry` names the agent or group that starts; default: the first agent. Guardrails are `module:name`."""

    agents: dict[str, AgentSection]
    groups: dict[str, GroupSection] = {}
    entry: str | None = None
    guardrails: list[str] = []


def _read_tool_settings(value: object) -> ToolSettings:
    return read_settings(ToolSettings, value, approval=Literal["never", "always"] | None)


def _read_mcp_server(value: object) -> dict[str, Any]:
    """The settings of a server; its name is the key in the file."""
    tools = dict[str, Annotated[ToolSettings, PlainValidator(_read_tool_settings)]]
    texts = dict[str, str]
    options = read_options(
        MCPServer,
        value,
        stdio=list[str],
        env=texts,
        headers=texts,
        tools=tools,
        only=list[str],
        folder=str,
        pins=str,
        approval=Literal["never", "writes", "always"],
    )

    if "name" in options:
        raise plain_error("name", "is not a known key: the name of a server is its key in mcp_servers", options["name"])

    return options


def _check_store(value: str) -> str:
    if problem := store_problem(value):
        raise plain_error("store", f"is not accepted: {problem}", value)

    return value


class ConfigFile(Section):
    """The whole file."""

    max_messages_per_request: MessageLimit | None = None
    prune_to: PositiveInt | None = None
    history: PolicySection | None = None
    max_input_tokens: PositiveInt | None = None
    sanitize_output: bool = False
    max_concurrent_runs: PositiveInt | None = None
    store: Annotated[str, AfterValidator(_check_store)] | None = None
    retry: RetrySection | None = None
    rate_limits: dict[str, Annotated[RateLimit, PlainValidator(partial(read_settings, RateLimit))]] | None = None
    limits: Annotated[Limits, PlainValidator(partial(read_settings, Limits))] = Limits()
    parameters: Annotated[RequestParameters, PlainValidator(_read_parameters)] = RequestParameters()
    validator: Annotated[InputValidator, PlainValidator(partial(read_settings, InputValidator))] = InputValidator()
    telemetry: Annotated[TelemetrySettings, PlainValidator(partial(read_settings, TelemetrySettings))] | None = None
    execution: ExecutionSection = ExecutionSection()
    mcp_servers: dict[str, Annotated[dict[str, Any], PlainValidator(_read_mcp_server)]] = {}
    crews: dict[str, CrewSection] = {}
    _locations: dict[Place, str] = PrivateAttr(default_factory=dict)
    _variables: Variables = PrivateAttr(default_factory=Variables)

    def set_source(self, locations: dict[Place, str], variables: Variables) -> None:
        """Record the file, line and column of each key and item, and the environment variables that were read."""
        self._locations, self._variables = locations, variables

    def hide_variables(self, text: str) -> str:
        """The text with the values of environment variables replaced by their names."""
        return self._variables.hide(text)

    def location(self, *place: str | int) -> str:
        """The file, line and column of a key or item, or of the nearest enclosing one in the file, and a colon."""
        if place[:1] == ("history",) and place[:1] not in self._locations:
            place = ("execution", "conversation", *place[1:])

        while place and place not in self._locations:
            place = place[:-1]

        return f"{self._locations[place]}: " if place else ""


_ALTERNATIVES: tuple[tuple[Place, Place], ...] = (
    (("limits", "rounds"), ("execution", "max_iterations")),
    (("history",), ("execution", "conversation")),
    (("history",), ("execution", "max_conversation_messages")),
    (("execution", "conversation", "max_messages"), ("execution", "max_conversation_messages")),
)
"""Keys with the same meaning."""


def contradictions(values: object) -> Iterator[tuple[Place, str]]:
    """The place and the problem of each setting that is given under two names."""
    for first, second in _ALTERNATIVES:
        if _is_given(values, first) and _is_given(values, second):
            names = ".".join(map(str, first)), ".".join(map(str, second))
            yield second, f"{names[0]} and {names[1]} set the same thing; give only one of them"


def _is_given(values: object, place: Place) -> bool:
    for key in place:
        if not isinstance(values, Mapping) or key not in values:
            return False

        values = values[key]

    # Only `rounds: null` has a meaning, no limit; any other key that is null has its default.
    return values is not None or place == ("limits", "rounds")
