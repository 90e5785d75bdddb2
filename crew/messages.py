"""The values that a conversation is made of: frozen, with an id and a time, never changed once born."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self, overload

from pydantic import Discriminator, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

Disposition = Literal["kept", "masked", "text_only", "marker", "summarised", "evicted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestLine:
    """One message of a request, or one that left it: what became of it, by which rule, and its estimated tokens."""

    id: str
    disposition: Disposition
    reason: str = ""
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One request, told as the change since this agent's request before it.

    The first `same` messages are those of the request before; `lines` are the ones after them, in order, and `left`
    those that were shown then and are not now. `rule` says what moved the front, "" where it held still. `digest`
    names everything that was sent, `prefix` the part that is the same: where the front held still, it is the digest
    of the request before. `tokens` is estimated, of which `cached` should be read from the provider's prompt cache.
    """

    agent: str
    turn: int
    model: str
    messages: int
    tokens_estimated: int
    count_method: Literal["estimated", "calibrated", "exact"]
    overhead_tokens: int
    window: int
    window_source: str
    same_messages: int
    moved_by: str
    digest: str
    prefix_digest: str
    cached_predicted: int
    tail: tuple[ManifestLine, ...] = ()
    removed: tuple[ManifestLine, ...] = ()
    repairs: tuple[str, ...] = ()
    tokens_billed: int | None = None
    cached_billed: int | None = None


OMITTED = "[Omitted]"
SUMMARY_HEADING = "[Conversation Summary]"

Origin = Literal["user", "route", "then", "branch", "join", "answer", "marker", "output"]
"""Who wrote a user message: the user, the framework for one of its moves, or a person answering a pause."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """Text that every encoder takes: lone surrogates become U+FFFD."""
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


class HasCache:
    """A private slot in which a provider keeps what it rendered; it takes no part in equality or storage."""

    __slots__ = ("_cache",)
    _cache: dict[str, Any]

    def cache(self) -> dict[str, Any]:
        """The slot, by profile and variant."""
        try:
            slot = self._cache
        except AttributeError:
            slot = {}
            object.__setattr__(self, "_cache", slot)

        return slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A picture in a user message: an address, or base64 data with its media type."""

    url: str = ""
    data: str = ""
    media_type: str = "image/png"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call that the model asked for; `arguments` is its JSON text, as it was written."""

    id: str
    name: str
    arguments: str = "{}"


def replace_surrogates_in_call(call: ToolCall) -> ToolCall:
    """The call with texts that every encoder takes."""
    if call.id.isascii() and call.name.isascii() and call.arguments.isascii():
        return call

    return replace(
        call,
        id=replace_surrogates(call.id),
        name=replace_surrogates(call.name),
        arguments=replace_surrogates(call.arguments),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What one call came to, in the words that the model reads."""

    call_id: str
    text: str
    name: str = ""
    outcome: Literal["ok", "error"] = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderData:
    """A reply's opaque original (thinking, reasoning items), for the provider and model that wrote it alone.

    An item that belongs to a call names it under `call_id`, so that it can leave together with that call.
    """

    provider: str
    model: str
    items: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemMessage(HasCache):
    """A standing instruction inside the conversation; never evicted."""

    text: str = field(kw_only=False)
    id: str = ""
    time: float = 0.0
    role: Literal["system"] = "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage(HasCache):
    """What the user said, or what the framework says in the user's place."""

    text: str = field(kw_only=False)
    images: tuple[Image, ...] = ()
    origin: Origin = "user"
    id: str = ""
    time: float = 0.0
    role: Literal["user"] = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessage(HasCache):
    """What an agent's model replied: text, calls, or both. In the transcript, `manifest` tells what it replied to."""

    text: str = field(default="", kw_only=False)
    calls: tuple[ToolCall, ...] = ()
    agent: str = ""
    provider_data: ProviderData | None = None
    manifest: Manifest | None = field(default=None, compare=False, repr=False)
    id: str = ""
    time: float = 0.0
    role: Literal["assistant"] = "assistant"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMessage(HasCache):
    """The results of all calls of one assistant message, in call order."""

    results: tuple[ToolResult, ...] = field(kw_only=False)
    id: str = ""
    time: float = 0.0
    role: Literal["tool"] = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryMessage(HasCache):
    """Stands for the messages that it names; shown to the model as a user's text that is marked as data."""

    text: str = field(kw_only=False)
    covers: tuple[str, ...] = ()
    id: str = ""
    time: float = 0.0
    role: Literal["summary"] = "summary"


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage | SummaryMessage,
    Discriminator("role"),
]


def message_size(message: Message) -> int:
    """How many messages this counts for: a tool message counts one for each result."""
    return max(1, len(message.results)) if isinstance(message, ToolMessage) else 1


def opens_conversation(message: Message) -> bool:
    """Whether a conversation may open with this: providers want a user's message first."""
    return isinstance(message, UserMessage | SummaryMessage)


def is_empty(message: Message) -> bool:
    """Whether there is nothing in it that a provider would accept."""
    match message:
        case AssistantMessage():
            return not message.calls and not message.text.strip()
        case UserMessage():
            return not message.images and not message.text.strip()
        case ToolMessage():
            return not message.results
        case SystemMessage() | SummaryMessage():
            return not message.text.strip()


def mask_results(message: ToolMessage) -> ToolMessage:
    """The same results with their text left out; made once, so that it renders once."""
    slot = message.cache()
    variant: ToolMessage | None = slot.get("masked")

    if variant is None:
        variant = replace(message, results=tuple(replace(result, text=OMITTED) for result in message.results))
        slot["masked"] = variant

    return variant


def without_calls(message: AssistantMessage) -> AssistantMessage:
    """The same reply without its calls; made once, so that it renders once."""
    slot = message.cache()
    variant: AssistantMessage | None = slot.get("text_only")

    if variant is None:
        variant = slot["text_only"] = replace(message, calls=(), provider_data=None)

    return variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What was spent. `input_tokens` includes the cached ones; `cost` is None as soon as one price is unknown."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = 0.0

    @property
    def total_tokens(self) -> int:
        """Tokens in and out."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            requests=self.requests + other.requests,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cost=None if self.cost is None or other.cost is None else self.cost + other.cost,
        )


class Transcript(Sequence[Message]):
    """Everything that happened, in order; append-only.

    A value: `append` returns a new one. Versions share one list and each knows its own length, so that an append
    and a fork cost the same at the tenth and the hundred-thousandth message; a second append to the same version
    copies.
    """

    __slots__ = ("_items", "_size")

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self._items = list(messages)
        self._size = len(self._items)

    def append(self, message: Message) -> Self:
        """A transcript with this message at its end."""
        items = self._items if len(self._items) == self._size else self._items[: self._size]
        items.append(message)
        grown = object.__new__(type(self))
        grown._items, grown._size = items, self._size + 1
        return grown

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return [self._items[i] for i in range(*index.indices(self._size))]

        return self._items[range(self._size)[index]]

    def __iter__(self) -> Iterator[Message]:
        return (self._items[i] for i in range(self._size))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Transcript) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(self._size)

    def __repr__(self) -> str:
        return f"Transcript({self._size} messages)"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            cls,
            handler(list[Message]),
            serialization=core_schema.plain_serializer_function_ser_schema(list, return_schema=handler(list[Message])),
        )
